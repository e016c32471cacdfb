"""The server's side of a federation: a walk through a round whose exchanges are messages to nodes."""

import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.aggregation.mean import mean_of
from rookery.algorithm.cost import Cost, described
from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Server
from rookery.algorithm.setting import Setting, State
from rookery.algorithm.walk import Moment, Walk, all_finite, count_stages, not_finite, stage_at
from rookery.algorithms.rates import tell_algorithm
from rookery.engines.flower.node import x64_enabled
from rookery.engines.flower.store import Version
from rookery.engines.flower.wire.messages import Answer, Greeting, read_answer, read_greeting
from rookery.engines.flower.wire.pack import pack, plain
from rookery.engines.flower.wire.transport import Answers, Transport
from rookery.problem.keys import PARTICIPANTS, fold
from rookery.problem.layout import same_structure
from rookery.problem.participation import Participation, Uniform
from rookery.typing import Tree

log = logging.getLogger("rookery.flower")

SILENCE = 30.0
"""Seconds before a node that did not answer is greeted again: a SuperLink lists one that was killed for another minute."""
PROBE = 5.0
"""Seconds for a node to show that it is there when another claims its clients."""

LEFT_OUT = 1000
"""How many different reasons for leaving something out are remembered: each may have a round's number in it."""


class FederationError(ConnectionError):
    """A federation that cannot go on: too few clients, or nodes that do not fit the run."""


@dataclass(frozen=True)
class Rules:
    """What a federation does about participants that fail.

    quorum           the least share (a float in (0, 1]) or number of a draw's participants whose uploads are counted;
                     below it the round is repeated with other participants
    attempts         how often a round is tried in all
    deadline         seconds to wait for the uploads of an exchange
    over_selection   how many times more participants are asked than are wanted; the first to answer are counted
    patience         seconds to wait for all clients to be there at the start
    pause            seconds before a round is repeated, doubled each time up to 30
    collect          whether what clients keep comes to the server at the end, so that the solution is that of the
                     simulator; without it, it never leaves them
    """

    quorum: float | int = 0.5
    attempts: int = 5
    deadline: float = 120.0
    over_selection: float = 1.0
    patience: float = 60.0
    pause: float = 1.0
    collect: bool = True

    def __post_init__(self) -> None:
        whole = isinstance(self.quorum, int) and not isinstance(self.quorum, bool) and self.quorum >= 1
        if not whole and not (isinstance(self.quorum, float) and 0 < self.quorum <= 1):
            raise ValueError(f"quorum must be a fraction in (0, 1] or a number of at least 1, got {self.quorum!r}")
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise ValueError(f"attempts must be an integer of at least 1, got {self.attempts!r}")
        for name, least in (("deadline", 0), ("patience", 0), ("pause", 0), ("over_selection", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < least:
                raise ValueError(f"{name} must be a number of at least {least}, got {value!r}")
        if self.deadline == 0:
            raise ValueError("deadline must be positive, got 0")

    @property
    def ours(self) -> bool:
        """Whether whoever runs the server runs all nodes: then one that cannot take part ends the run at once."""
        return True

    def pause_after(self, attempt: int) -> float:
        """Seconds after a failed attempt. After ``SILENCE`` all nodes are greeted again: to wait longer helps nobody."""
        return min(self.pause * 2**attempt, max(self.pause, SILENCE))

    def needed(self, wanted: int) -> int:
        """The quorum of a draw of so many participants."""
        return min(self.quorum if isinstance(self.quorum, int) else math.ceil(self.quorum * wanted - 1e-9), wanted)


class _BelowQuorum(Exception):
    pass


class Federation:
    """A run on nodes: greets them, makes rounds, and knows which version of its state each client has."""

    stride = 1

    def __init__(
        self,
        setting: Setting,
        x: Array,
        y: Array,
        costs: list[Cost],
        transport: Transport,
        rules: Rules,
        memory: Mapping[str, Any] | None = None,
        start: State | None = None,
    ):
        self.setting = setting
        self.costs = costs
        self.transport = transport
        self.rules = rules
        self.participation = over_selected(setting.participation, rules.over_selection, setting.clients.n)
        self.run = uuid.uuid4().hex if memory is None else str(memory["run"])
        self.versions: dict[int, Version] = {}
        if memory is not None:
            self.versions = {int(client): tuple(version) for client, version in memory["versions"].items()}
        self.activity = np.zeros((count_stages(setting.algorithm.round()), 2, 3), np.int64)
        self.session = max(time.time_ns() // 1000, 0 if memory is None else memory.get("session", 0) + 1)
        self.claims: dict[int, Greeting] = {}
        """What each node that is there said of itself; a client lives on the first that claims it."""
        self.hosts: dict[int, int] = {}
        self._refused: dict[int, str] = {}
        self._silent: dict[int, float] = {}
        self.sizes: dict[str, dict[int, int]] = {"lower": {}, "upper": {}}
        self.left_out: Counter[str] = Counter()
        """How often a node's upload was left out, by the node's name and the reason."""
        self.trace: list[list[list[int]]] = []
        """For each round the clients that were counted, draw by draw: ``rk.Replay(trace)`` repeats them."""
        self.record: dict[str, Any] = {}
        """Of the last round: who was counted, who was left out and why, and at which attempt it was done."""
        self._x, self._y = x, y
        self._start = start if memory is None and start is not None and int(start.round) > 0 else None

    # --- nodes

    @property
    def names(self) -> dict[int, str]:
        """The nodes that are there."""
        return {node: greeting.name for node, greeting in self.claims.items()}

    def gather_nodes(self) -> None:
        """Waits until every client lives on some node."""
        end = time.monotonic() + self.rules.patience
        while True:
            self.greet(strict=True)
            missing = [client for client in range(self.setting.clients.n) if client not in self.hosts]
            if not missing:
                self._settle_costs()
                return
            if time.monotonic() > end:
                some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
                refused = "; ".join(list(self._refused.values())[:3])
                raise FederationError(
                    f"after {self.rules.patience:g} s {len(missing)} of {self.setting.clients.n} clients are on no "
                    f"node ({some}); nodes that are there: {', '.join(self.names.values()) or 'none'}"
                    + (f"; nodes that cannot take part: {refused}" if refused else "")
                )
            time.sleep(0.1)

    def greet(self, strict: bool = False) -> None:
        """Tells the run to nodes that are new, and forgets those that left."""
        there = self.transport.nodes()
        self.claims = {node: greeting for node, greeting in self.claims.items() if node in there}
        self._settle_claims()
        now = time.monotonic()
        new = [node for node in there if node not in self.claims and self._silent.get(node, 0.0) <= now]
        if not new:
            return
        request = self._begin({})
        enough = self._all_hosted if strict else None
        answers = self.transport.send(dict.fromkeys(new, request), self.rules.deadline, enough)
        if not strict or self._all_hosted(answers):
            self._silent |= {node: time.monotonic() + SILENCE for node in new if node not in answers}
        came = {node: self._read_greeting(node, answer) for node, answer in answers.items() if node in new}
        welcome = {node: read for node, read in came.items() if isinstance(read, Greeting)}
        doubtful = self._doubtful(welcome)
        for node, read in came.items():
            if isinstance(read, Greeting):
                self._welcome(node, read)
                self._settle_claims()
            else:
                self._refuse(node, read, strict)
        for node in doubtful:
            self._doubt(node)
        self._settle_claims()
        if self._start is not None:
            self._restore(welcome, strict)

    def _restore(self, welcome: Mapping[int, Greeting], strict: bool) -> None:
        """Tells new nodes what their clients kept in the run that this one goes on from."""
        requests = {node: self._begin(self._rows(greeting.clients)) for node, greeting in welcome.items()}
        for node, answer in self.transport.send(requests, self.rules.deadline).items() if requests else ():
            if isinstance(read := self._read_greeting(node, answer), Answer):
                self.claims.pop(node, None)
                self._refuse(node, replace(read, error=f"it cannot go on from the given start: {read.error}"), strict)
        self._settle_claims()

    def _read_greeting(self, node: int, answer: bytes | str) -> Greeting | Answer:
        """What a node said of itself, as far as it may speak for those clients."""
        steps = self.setting.algorithm.round()
        exchanges = [isinstance(stage_at(steps, number), Exchange) for number in range(count_stages(steps))]
        read = read_greeting(answer, self.setting.clients.n, exchanges, not self.costs)
        if isinstance(read, Greeting) and (owned := self.transport.owned(node)) is not None:
            strange = [client for client in read.clients if client not in owned]
            if strange:
                return Answer({}, {}, f"clients {strange} are not listed for its key", name=read.name)
        return read

    def _refuse(self, node: int, read: Answer, strict: bool) -> None:
        """Leaves a node out for a while, with the reason."""
        self._silent[node] = time.monotonic() + SILENCE
        self._refused[node] = f"{read.name or f'node {node}'}: {read.error}"
        log.warning("%s cannot take part: %s", read.name or f"node {node}", read.error)
        if strict and read.kind and self.rules.ours:
            raise FederationError(f"{read.name} cannot take part: {read.error}")

    def _all_hosted(self, answers: Answers) -> bool:
        """Whether every client is on a node that is known or has answered: a dead one need not be waited for."""
        read = [self._read_greeting(node, answer) for node, answer in answers.items()]
        told = [each.clients for each in read if isinstance(each, Greeting)]
        return len(set(self.hosts).union(*told)) == self.setting.clients.n

    def _welcome(self, node: int, greeting: Greeting) -> None:
        self.claims[node] = greeting
        self._refused.pop(node, None)
        taken = [client for client in greeting.clients if client in self.hosts]
        if taken:
            log.warning("%s claims clients %s, which live on another node while that is there", greeting.name, taken)
        log.info("%s is there with clients %s", greeting.name, greeting.clients)

    def _doubtful(self, welcome: Mapping[int, Greeting]) -> set[int]:
        """Nodes whose clients others claim, and that do not show that they are there."""
        rivals = {self.hosts[client] for each in welcome.values() for client in each.clients if client in self.hosts}
        if not rivals:
            return set()
        answers = self.transport.send(dict.fromkeys(rivals, self._begin({})), min(PROBE, self.rules.deadline))
        return {node for node in rivals if read_answer(answers.get(node, "no answer")).error is not None}

    def _doubt(self, node: int) -> None:
        """A node that did not answer comes after all others that claim its clients."""
        if node in self.claims:
            self.claims[node] = self.claims.pop(node)

    def _settle_claims(self) -> None:
        """Every client lives on the first node that claims it and is still there."""
        self.hosts = {}
        for node, greeting in self.claims.items():
            for place, client in enumerate(greeting.clients):
                if self.hosts.setdefault(client, node) == node:
                    for name, sizes in greeting.sizes.items():
                        self.sizes[name][client] = sizes[place]

    def _settle_costs(self) -> None:
        """A server that holds no data cannot trace clients' work: what a round costs is what most clients' nodes say."""
        if self.costs:
            return
        votes: list[tuple[list[Cost], int]] = []
        for node, clients in Counter(self.hosts.values()).items():
            told = self.claims[node].costs
            votes.append((told, clients + sum(other for costs, other in votes if costs == told)))
        self.costs.extend(max(votes, key=lambda vote: vote[1])[0])

    def _begin(self, keep: Tree) -> bytes:
        setting = self.setting
        meta = {
            "kind": "begin",
            "run": self.run,
            "n": setting.clients.n,
            "x64": x64_enabled(),
            "algorithm": tell_algorithm(setting.algorithm),
            "batch_size": list(setting.batch_size),
            "steps": [setting.steps.low, setting.steps.high],
            "costs": not self.costs,
        }
        tree = {"x": self._x, "y": self._y, "key": jax.random.key_data(setting.key), "keep": keep}
        return pack(jax.device_get(tree), meta)

    def _rows(self, clients: list[int]) -> Tree:
        """What these clients kept in the run that this one goes on from."""
        assert self._start is not None
        table = self._start.keep
        return {str(client): jax.tree.map(lambda leaf, client=client: leaf[client], table) for client in clients}

    # --- rounds

    def advance(self, state: State, rounds: int) -> tuple[State, np.ndarray]:
        """``rounds`` more rounds: the new state, and how active each step was."""
        self.activity[:] = 0
        for _ in range(rounds):
            if bool(state.died >= 0):
                break
            state = self._round(state)
        return state, self.activity.copy()

    def _round(self, state: State) -> State:
        before = Counter(self.left_out)
        for attempt in range(self.rules.attempts):
            walk = Round(self, state, attempt)
            try:
                after = self._finish(state, walk, walk.run(self.setting.algorithm.round(), walk.start()))
                faults = dict(self.left_out - before)
                self.record = {"counted": walk.drawn, "left_out": faults, "attempts": attempt + 1}
                for reason in list(self.left_out)[:-LEFT_OUT]:
                    del self.left_out[reason]
                return after
            except _BelowQuorum as problem:
                reason = str(problem)
                log.warning("round %d, attempt %d: %s", state.round, attempt + 1, reason)
                if attempt + 1 < self.rules.attempts:
                    time.sleep(self.rules.pause_after(attempt))
        raise FederationError(
            f"round {state.round} failed {self.rules.attempts} times, the last time because {reason}; "
            "the state before it is that of the last checkpoint"
        )

    def _finish(self, state: State, walk: "Round", at: Moment) -> State:
        if not bool(all_finite(at.server)):
            return replace(state, died=jnp.int32(state.round))
        walk.count(at)
        self.versions = walk.versions
        self.trace.append(walk.drawn)
        last = jnp.asarray(walk.last, jnp.int32)
        return State(state.round + 1, at.server, state.keep, last, state.died)

    def memory(self) -> dict[str, Any]:
        """What a server needs beside its state to go on with this federation."""
        versions = {str(client): list(version) for client, version in self.versions.items()}
        return {"run": self.run, "session": self.session, "versions": versions, "record": self.record}

    def gather(self, state: State, final: bool = False) -> State:
        """The state with what clients keep, if the solution shows it; at the end always, unless ``collect`` is off."""
        kept = bool(jax.tree.leaves(state.keep))
        if not kept or not (shows_state(self.setting.algorithm, self._x, self._y) or (final and self.rules.collect)):
            return state
        table = jax.tree.map(np.array, state.keep)
        missing = set(range(self.setting.clients.n))
        for attempt in range(self.rules.attempts):
            if attempt:
                time.sleep(self.rules.pause_after(attempt - 1))
                self.greet()
            missing -= self._collect(table, missing)
            if not missing:
                break
        else:
            log.warning("what clients %s keep is not known; as they were at the last time", sorted(missing))
        return replace(state, keep=jax.tree.map(jnp.asarray, table))

    def _collect(self, table: Tree, clients: set[int]) -> set[int]:
        """Fills in the rows of these clients; returns whose came."""
        requests = {}
        for node in {self.hosts[client] for client in clients if client in self.hosts}:
            own = sorted(client for client in clients if self.hosts.get(client) == node)
            counted = [self.versions.get(client) for client in own]
            meta = {"kind": "keep", "run": self.run, "clients": own, "counted": counted}
            requests[node] = pack(None, meta)
        came: set[int] = set()
        wanted = jax.tree.map(lambda leaf: leaf[0], table)
        for node, answer in self.transport.send(requests, self.rules.deadline).items():
            read = read_answer(answer)
            for text in [read.error, *read.failed.values()]:
                if text is not None:
                    log.warning("%s did not tell what its clients keep: %s", self.names.get(node, node), text)
            for client in [client for client in sorted(clients) if self.hosts.get(client) == node]:
                if client not in read.rows:
                    continue
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
        request = pack(None, {"kind": "end", "run": self.run})
        self.transport.send(dict.fromkeys(self.names, request), min(10.0, self.rules.deadline))


class Round(Walk):
    """One attempt at a round. Participants that fail are out of the rest of their draw, and not counted."""

    def __init__(self, federation: Federation, state: State, attempt: int):
        super().__init__(federation.setting, jnp.int32(state.round))
        self.federation = federation
        self.state = state
        self.attempt = attempt
        self.versions = dict(federation.versions)
        self.last = np.array(state.last)
        self.number = int(state.round)
        self.sequence = 0
        self.first = True
        self.wanted = 0
        self.drawn: list[list[int]] = []

    def start(self) -> Moment:
        """Before the first step."""
        return Moment(self.state.server, None, None, *self._draw(0), -1)

    def _draw(self, number: int) -> tuple[Any, Any]:
        """The participants of a draw; another attempt has others."""
        setting, participation = self.setting, self.federation.participation
        attempt = jnp.int32(self.attempt) if self.attempt else None
        ids, used = _drawn(participation, setting.key, setting.clients.n, self.round, jnp.int32(number), attempt)
        self.first = True
        mask = np.asarray(used)
        asked = int(mask.sum())
        self.wanted = setting.participation.slots(setting.clients.n) if self._over_selects else asked
        return np.asarray(ids), mask

    @property
    def _over_selects(self) -> bool:
        return self.federation.participation is not self.setting.participation

    def count(self, at: Moment) -> None:
        """The participants that answered in every exchange of their draw are counted."""
        if int(at.draws) < 0:
            return
        counted = [int(id) for id in np.asarray(at.ids)[np.asarray(at.mask)]]
        self.drawn.append(counted)
        for client in counted:
            self.versions[client] = self.number, self.attempt, int(at.draws)
            self.last[client] = self.number

    def repeat(self, stage: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """A Python loop."""
        for k in range(stage.count):
            at = self.run(stage.stages, at, index * stage.count + k, number)
        return at

    def server(self, stage: Server, at: Moment, index: Any, number: int) -> Moment:
        """The server's step, compiled."""
        self._note(number, at)
        return replace(at, server=_alone(self.setting, number, self._where(index, at), at.server))

    def exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """One message to every node that hosts participants; the mean over those that answered well."""
        if stage.when is not None and not bool(_wanted(self.setting, number, self._where(index, at), at.server)):
            return at
        if stage.draw == "fresh":
            self.count(at)
            ids, mask = self._draw(at.draws + 1)
            at = replace(at, ids=ids, mask=mask, draws=at.draws + 1)
        else:
            at = replace(at, draws=max(at.draws, 0))
        uploads = self._ask(at, index, number)
        if len(uploads) < self.federation.rules.needed(self.wanted):
            raise _BelowQuorum(self._shortage(uploads))
        self.first = False
        zero = jax.tree.map(np.zeros_like, next(iter(uploads.values())))
        rows = [uploads.get(int(id), zero) if used else zero for id, used in zip(at.ids, at.mask, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *rows)
        at = replace(at, mask=at.mask & np.isin(at.ids, list(uploads)))
        self._note(number, at)
        return replace(at, server=_receive(self.setting, number, self._where(index, at), at.server, stacked))

    def _ask(self, at: Moment, index: int, number: int) -> dict[int, Tree]:
        """The good uploads by client."""
        federation = self.federation
        federation.greet()
        self.problems: Counter[str] = Counter()
        down, private = jax.device_get(_outgoing(self.setting, number, at.server))
        slots: dict[int, list[int]] = {}
        for slot, client in enumerate(at.ids):
            if not at.mask[slot]:
                continue
            node = federation.hosts.get(int(client))
            if node is None:
                self._leave_out("no node", f"client {client} is on no node that is there")
            else:
                slots.setdefault(node, []).append(slot)
        requests = {node: self._request(at, index, number, own, down, private) for node, own in sorted(slots.items())}
        self.sequence += 1

        good: dict[int, dict[int, Tree]] = {}

        def judge(node: int, answer: bytes | str | None) -> None:
            if node not in good:
                good[node] = self._good(node, [int(at.ids[slot]) for slot in slots[node]], answer, number)

        def enough(answers: Answers) -> bool:
            for node in slots if self._over_selects else ():
                if node in answers:
                    judge(node, answers[node])
            return self._over_selects and sum(map(len, good.values())) >= self.wanted

        answers = federation.transport.send(requests, federation.rules.deadline, enough)
        for node in sorted(slots):
            judge(node, answers.get(node))
        return self._alike({client: upload for node in sorted(slots) for client, upload in good[node].items()})

    def _alike(self, uploads: dict[int, Tree]) -> dict[int, Tree]:
        """Those of one structure, that of most: the same arrays could be in lists or in tuples, or beside a None."""
        shapes = {client: str(jax.tree.structure(upload)) for client, upload in uploads.items()}
        if len(set(shapes.values())) <= 1:
            return uploads
        usual = max(sorted(set(shapes.values())), key=lambda shape: (list(shapes.values()).count(shape), -len(shape)))
        for client in [client for client, shape in shapes.items() if shape != usual]:
            name = self.federation.names.get(self.federation.hosts[client], "a node")
            self._leave_out(name, f"the upload of client {client} has another structure than most")
        return {client: upload for client, upload in uploads.items() if shapes[client] == usual}

    def _request(self, at: Moment, index: int, number: int, slots: list[int], down: Tree, private: Tree) -> bytes:
        federation = self.federation
        clients = [int(at.ids[slot]) for slot in slots]
        meta = {
            "kind": "exchange",
            "run": federation.run,
            "order": [federation.session, self.number, self.attempt, self.sequence],
            "exchange": number,
            "index": int(index),
            "version": [self.number, self.attempt, int(at.draws)],
            "first": self.first,
            "clients": clients,
            "last": [int(self.state.last[client]) for client in clients],
            "counted": [self.versions.get(client) for client in clients],
            "equal": {name: len(set(sizes.values())) == 1 for name, sizes in federation.sizes.items()},
        }
        rows = {
            str(client): jax.tree.map(lambda leaf, slot=slot: leaf[slot], private)
            for client, slot in zip(clients, slots, strict=True)
        }
        return pack({"down": down, "private": rows if private else {}}, meta)

    def _good(self, node: int, clients: list[int], answer: bytes | str | None, number: int) -> dict[int, Tree]:
        """The uploads of a node that can be counted; the others are left out, with a reason."""
        name = self.federation.names.get(node, f"node {node}")
        if answer is None:
            if not self._over_selects:  # else it may be one that was not waited for
                self.federation._doubt(node)
                self._leave_out(name, "no answer by the deadline")
            return {}
        read = read_answer(answer)
        if read.error is not None:
            if isinstance(answer, str):
                self.federation._doubt(node)
            if read.kind == "unknown-run":  # it was restarted: it will be greeted again
                self.federation.claims.pop(node, None)
            self._leave_out(name, read.error)
            return {}
        wanted = self.federation.costs[number].upload
        good = {}
        for client in clients:
            if client not in read.rows:
                self._leave_out(name, read.failed.get(client, f"no upload of client {client}"))
                continue
            upload = read.rows[client]
            if not isinstance(upload, dict) or described(upload) != wanted:
                found = plain(str(described(upload)))
                self._leave_out(name, f"client {client} must upload {dict(wanted)}, it uploads {found}")
            elif (bad := not_finite(upload)) is not None:
                self._leave_out(name, f"{bad} in the upload of client {client} is not finite")
            else:
                good[client] = upload
        return good

    def _leave_out(self, name: str, reason: str) -> None:
        self.problems[f"{name}: {reason}"] += 1
        self.federation.left_out[f"{name}: {reason}"] += 1
        log.warning("round %d: left out %s: %s", self.number, name, reason)

    def _shortage(self, uploads: Mapping[int, Tree]) -> str:
        needed = self.federation.rules.needed(self.wanted)
        reasons = "; ".join(reason for reason, _ in self.problems.most_common(3))
        return f"{len(uploads)} of {self.wanted} participants could be counted and {needed} are needed ({reasons})"

    def _where(self, index: Any, at: Moment) -> tuple[Any, ...]:
        return self.round, jnp.int32(index), jnp.asarray(at.ids), jnp.asarray(at.mask)

    def _note(self, number: int, at: Moment) -> None:
        """One more execution of a step, as the simulator counts them."""
        steps = self.setting.steps
        if steps.fixed:
            taus = np.full(at.ids.shape, steps.low)
        else:
            taus = np.asarray(_local_steps(self.setting, self.round, jnp.asarray(at.ids)))
        now = np.array([1, at.mask.sum(), taus[at.mask].sum()])
        self.federation.activity[number] += np.stack([now, now if self.number == 0 else 0 * now])


def over_selected(participation: Participation, factor: float, n: int) -> Participation:
    """``factor`` times as many participants."""
    if factor == 1:
        return participation
    if not isinstance(participation, Uniform):
        raise ValueError(f"over_selection must be 1 unless participation is rk.Uniform(...), got {factor}")
    return Uniform(min(n, math.ceil(factor * participation.count - 1e-9)))


def shows_state(algorithm: Algorithm, x: Array, y: Array) -> bool:
    """Whether the algorithm's (x, y) depend on what clients keep: a lower level of each client's own."""
    try:
        jax.eval_shape(lambda: algorithm.output(algorithm.init(x, y), None))
    except TypeError:
        return True
    return False


# --- the server's part of a step, compiled: one program for each step of the round -------------------------------------


@eqx.filter_jit
def _drawn(participation: Participation, key: Array, n: int, round: Array, number: Array, attempt: Any) -> Any:
    """(ids, mask) of a draw. Drawn eagerly, Floyd's loop would be compiled anew, and kept, each time."""
    key = fold(key, PARTICIPANTS, round, number)
    return participation.draw(key if attempt is None else fold(key, "attempt", attempt), n, round, number)


@eqx.filter_jit
def _wanted(setting: Setting, number: int, where: tuple[Any, ...], server: Tree) -> Any:
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    assert stage.when is not None
    return stage.when(server, setting.context(*where))


@eqx.filter_jit
def _outgoing(setting: Setting, number: int, server: Tree) -> tuple[Tree, Tree]:
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    return stage.down(server), {} if stage.private is None else stage.private(server)


@eqx.filter_jit
def _receive(setting: Setting, number: int, where: tuple[Any, ...], server: Tree, up: Tree) -> Tree:
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    ids, mask = where[2:]
    return stage.server(
        setting.context(*where), server, mean_of(stage.weighting, server, setting.clients.weights, ids, mask, up)
    )


@eqx.filter_jit
def _alone(setting: Setting, number: int, where: tuple[Any, ...], server: Tree) -> Tree:
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Server)
    return stage.fn(setting.context(*where), server)


@eqx.filter_jit
def _local_steps(setting: Setting, round: Any, ids: Array) -> Array:
    return jax.vmap(lambda id: setting.steps.draw(setting.key, id, round))(ids)
