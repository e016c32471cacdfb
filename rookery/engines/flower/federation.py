"""The server's side of a run on nodes: makes rounds, and knows which version of its state each client has."""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.cost import Cost, described
from rookery.algorithm.exchange import Algorithm, Exchange, count_stages
from rookery.algorithm.setting import State
from rookery.algorithm.walk import Moment, all_finite, stage_at
from rookery.algorithms.rates import tell_algorithm
from rookery.engines.base import Run
from rookery.engines.flower.precision import x64_enabled
from rookery.engines.flower.roster import Roster
from rookery.engines.flower.round import Common, Round
from rookery.engines.flower.rules import FederationError, Rules
from rookery.engines.flower.wire.answers import read_answer
from rookery.engines.flower.wire.fields import Version
from rookery.engines.flower.wire.pack import plain
from rookery.engines.flower.wire.requests import Begin, End, Keep
from rookery.engines.flower.wire.transport import Transport
from rookery.problem.layout import same_structure
from rookery.typing import Tree

log = logging.getLogger("rookery.flower")

LEFT_OUT = 1000
"""How many different reasons for leaving something out are remembered: each may have a round's number in it."""


class Federation:
    """A run on nodes, while it is open.

    Where the server holds no data to trace what a round costs with, nodes are asked, and ``costs`` is empty until
    :meth:`gather_nodes` is done.
    """

    stride: int | None = 1
    """Rounds are made one at a time: each is a checkpoint."""

    def __init__(self, run: Run, transport: Transport, rules: Rules):
        setting, memory, start = run.setting, run.memory, run.start
        self.setting = setting
        self.rules = rules
        self.costs: Sequence[Cost] = () if run.costs is None else run.costs
        self.participation = rules.asked(setting.participation, setting.clients.n)
        self.run = uuid.uuid4().hex if memory is None else str(memory["run"])
        self.versions: dict[int, Version] = {}
        """The version of each client's state that is counted."""
        if memory is not None:
            self.versions = {int(client): tuple(version) for client, version in memory["versions"].items()}
        self.started = max(time.time_ns() // 1000, 0 if memory is None else memory["started"] + 1)
        """The time at which this server started: its requests are newer than those of any before it."""
        self.left_out: Counter[str] = Counter()
        """How often a node's upload was left out, by the node's name and the reason."""
        self.trace: list[list[list[int]]] = []
        """For each round the clients that were counted, draw by draw: ``rk.Replay(trace)`` repeats them."""
        self.record: dict[str, Any] = {}
        """Of the last round: who was counted, who was left out and why, and at which attempt it was done."""
        self._asks_costs = run.costs is None
        self._failed = run.failed
        self._shows_state = shows_state(setting.algorithm, run.x, run.y)
        stages = setting.algorithm.round()
        self.roster = Roster(
            transport,
            rules,
            self._begin(run.x, run.y),
            [isinstance(stage_at(stages, number), Exchange) for number in range(count_stages(stages))],
            start.keep if memory is None and start is not None and int(start.round) > 0 else None,
        )

    def _begin(self, x: Array, y: Array) -> Begin:
        setting = self.setting
        return Begin(
            run=self.run,
            n=setting.clients.n,
            x64=x64_enabled(),
            algorithm=tell_algorithm(setting.algorithm),
            batch_size=setting.batch_size,
            steps=(setting.steps.low, setting.steps.high),
            costs=self._asks_costs,
            x=x,
            y=y,
            key=jax.random.key_data(setting.key),
            keep={},
            privacy=None if setting.privacy is None else {**setting.privacy.told(), "expected": self._expected},
            secure=None if self.rules.secure is None else asdict(self.rules.secure),
        )

    @property
    def _expected(self) -> float:
        return float(self.setting.participation.expected(self.setting.clients.n))

    def gather_nodes(self) -> None:
        """Waits until every client lives on some node."""
        self.roster.gather()
        if self._asks_costs:
            self.costs = self.roster.told_costs()

    # --- rounds

    def advance(self, state: State, rounds: int) -> tuple[State, np.ndarray]:
        """``rounds`` more rounds: the new state, and how active each step was."""
        activity = np.zeros((count_stages(self.setting.algorithm.round()), 2, 3), np.int64)
        for _ in range(rounds):
            if bool(state.died >= 0):
                break
            state, made = self._round(state)
            activity += made
        return state, activity

    def _round(self, state: State) -> tuple[State, np.ndarray]:
        """A round, tried until a quorum is there; what failed attempts cost is counted too."""
        common = Common(self.setting, self.rules, self.roster, self.participation, self.costs, self.run, self.started)
        faults: Counter[str] = Counter()
        activity: Any = 0
        for attempt in range(self.rules.attempts):
            walk = Round(common, state, self.versions, attempt)
            try:
                at = walk.make()
            except BaseException:
                self._may_try_again(walk)
                raise
            faults.update(walk.left_out)
            self.left_out.update(walk.left_out)
            activity = activity + walk.activity
            if at is not None:
                self.record = {"counted": walk.drawn, "left_out": dict(faults), "attempts": attempt + 1}
                for old in list(self.left_out)[:-LEFT_OUT]:
                    del self.left_out[old]
                return self._finish(state, walk, at), activity
            log.warning("round %d, attempt %d: %s", state.round, attempt + 1, walk.shortage)
            if not self._may_try_again(walk):
                raise FederationError(
                    f"round {state.round} failed at attempt {attempt + 1}, because {walk.shortage}; another attempt could "
                    "spend more than epsilon"
                )
            if attempt + 1 < self.rules.attempts:
                time.sleep(self.rules.pause_after(attempt))
        raise FederationError(
            f"round {state.round} failed {self.rules.attempts} times, the last time because {walk.shortage}; "
            "the state before it is that of the last checkpoint"
        )

    def _may_try_again(self, walk: Round) -> bool:
        """Whoever keeps account is told what a failed attempt has made: its sums were seen."""
        return self._failed is None or self._failed(walk.activity)

    def _finish(self, state: State, walk: Round, at: Moment) -> State:
        if not bool(all_finite(at.server)):
            return replace(state, died=jnp.int32(state.round))
        walk.count(at)
        self.versions = walk.versions
        self.trace.append(walk.drawn)
        last = jnp.asarray(walk.last, jnp.int32)
        return State(state.round + 1, at.server, state.keep, last, state.died, at.clips)

    def memory(self) -> dict[str, Any]:
        """What a server needs beside its state to go on with this federation."""
        versions = {str(client): list(version) for client, version in self.versions.items()}
        return {"run": self.run, "started": self.started, "versions": versions, "record": self.record}

    # --- what clients keep

    def gather(self, state: State, final: bool = False) -> State:
        """The state with what clients keep, if the solution shows it; at the end always, unless ``collect`` is off."""
        kept = bool(jax.tree.leaves(state.keep))
        if not kept or not (self._shows_state or (final and self.rules.collect)):
            return state
        table = jax.tree.map(np.array, state.keep)
        missing = set(range(self.setting.clients.n))
        for attempt in range(self.rules.attempts):
            if attempt:
                time.sleep(self.rules.pause_after(attempt - 1))
                self.roster.greet()
            missing -= self._collect(table, missing)
            if not missing:
                break
        else:
            log.warning("what clients %s keep is not known; as they were at the last time", sorted(missing))
        return replace(state, keep=jax.tree.map(jnp.asarray, table))

    def _collect(self, table: Tree, clients: set[int]) -> set[int]:
        """Fills in the rows of these clients; returns whose came."""
        hosted: dict[int, list[int]] = {}
        for client in sorted(clients):
            if client in self.roster.hosts:
                hosted.setdefault(self.roster.hosts[client], []).append(client)
        requests = {
            node: Keep(self.run, own, [self.versions.get(client) for client in own]).packed()
            for node, own in hosted.items()
        }
        came: set[int] = set()
        wanted = jax.tree.map(lambda leaf: leaf[0], table)
        for node, answer in self.roster.transport.send(requests, self.rules.deadline).items():
            read = read_answer(answer)
            for text in [read.error, *read.failed.values()]:
                if text is not None:
                    log.warning("%s did not tell what its clients keep: %s", self.roster.name(node), text)
            for client in [client for client in hosted.get(node, []) if client in read.rows]:
                row = read.rows[client]
                if not same_structure(row, wanted) or described(row) != described(wanted):
                    told = plain(str(described(row)))
                    log.warning("client %s keeps %s, it should be %s", client, told, described(wanted))
                    continue
                jax.tree.map(lambda leaf, new, client=client: leaf.__setitem__(client, new), table, row)
                came.add(client)
        return came

    def end(self) -> None:
        """Tells all nodes that the run is over."""
        request = End(self.run).packed()
        self.roster.transport.send(dict.fromkeys(self.roster.names, request), min(10.0, self.rules.deadline))


def shows_state(algorithm: Algorithm, x: Array, y: Array) -> bool:
    """Whether the algorithm's (x, y) depend on what clients keep: a lower level of each client's own."""
    try:
        jax.eval_shape(lambda: algorithm.output(algorithm.init(x, y), None))
    except TypeError:
        return True
    return False
