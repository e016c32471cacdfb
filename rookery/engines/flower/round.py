"""One attempt at a round: a walk whose exchanges are messages to nodes."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithm.cost import Cost
from rookery.algorithm.exchange import Exchange, Repeat, Server
from rookery.algorithm.setting import Setting, State
from rookery.algorithm.walk import Moment, Walk, count_stages
from rookery.engines.flower.compiled import alone, drawn, is_wanted, local_steps, outgoing, receive
from rookery.engines.flower.roster import Roster
from rookery.engines.flower.rules import Rules
from rookery.engines.flower.uploads import alike, judge
from rookery.engines.flower.wire.answers import read_answer
from rookery.engines.flower.wire.fields import Version
from rookery.engines.flower.wire.requests import Work
from rookery.engines.flower.wire.transport import Answers
from rookery.problem.participation import Participation
from rookery.typing import Tree

log = logging.getLogger("rookery.flower")


class _BelowQuorum(Exception):
    pass


@dataclass(frozen=True)
class Common:
    """What all rounds of a federation have in common."""

    setting: Setting
    rules: Rules
    roster: Roster
    participation: Participation
    """Of the clients that are asked; more of them than those of the setting, if the rules over-select."""
    costs: Sequence[Cost]
    run: str
    started: int


class Round(Walk):
    """One attempt at a round. Participants that fail are out of the rest of their draw, and not counted."""

    def __init__(self, common: Common, state: State, versions: Mapping[int, Version], attempt: int):
        super().__init__(common.setting, jnp.int32(state.round))
        self.common = common
        self.state = state
        self.attempt = attempt
        self.versions = dict(versions)
        """The version of each client's state that is counted."""
        self.last = np.array(state.last)
        self.number = int(state.round)
        self.drawn: list[list[int]] = []
        """The clients that were counted, draw by draw."""
        self.left_out: Counter[str] = Counter()
        """How often something was left out, by the node's name and the reason."""
        self.activity = np.zeros((count_stages(common.setting.algorithm.round()), 2, 3), np.int64)
        """How active each step was, as the simulator counts it."""
        self.shortage = ""
        self._over_selects = common.participation is not common.setting.participation
        self._sequence = 0
        self._first = True
        self._wanted = 0
        self._problems: Counter[str] = Counter()

    def make(self) -> Moment | None:
        """All steps of the round; None if too few participants could be counted, and ``shortage`` says why."""
        try:
            start = Moment(self.state.server, None, None, *self._draw(0), -1)
            return self.run(self.setting.algorithm.round(), start)
        except _BelowQuorum as problem:
            self.shortage = str(problem)
            return None

    def _draw(self, number: int) -> tuple[Any, Any]:
        """The participants of a draw; another attempt has others."""
        setting = self.setting
        attempt = jnp.int32(self.attempt) if self.attempt else None
        ids, used = drawn(
            self.common.participation, setting.key, setting.clients.n, self.round, jnp.int32(number), attempt
        )
        self._first = True
        mask = np.asarray(used)
        asked = int(mask.sum())
        self._wanted = setting.participation.slots(setting.clients.n) if self._over_selects else asked
        return np.asarray(ids), mask

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
        return replace(at, server=alone(self.setting, number, self._where(index, at), at.server))

    def exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """One message to every node that hosts participants; the mean over those that answered well."""
        if stage.when is not None and not bool(is_wanted(self.setting, number, self._where(index, at), at.server)):
            return at
        if stage.draw == "fresh":
            self.count(at)
            ids, mask = self._draw(at.draws + 1)
            at = replace(at, ids=ids, mask=mask, draws=at.draws + 1)
        else:
            at = replace(at, draws=max(at.draws, 0))
        uploads = self._ask(at, index, number)
        if len(uploads) < self.common.rules.needed(self._wanted):
            raise _BelowQuorum(self._why_too_few(uploads))
        self._first = False
        zero = jax.tree.map(np.zeros_like, next(iter(uploads.values())))
        rows = [uploads.get(int(id), zero) if used else zero for id, used in zip(at.ids, at.mask, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *rows)
        at = replace(at, mask=at.mask & np.isin(at.ids, list(uploads)))
        self._note(number, at)
        return replace(at, server=receive(self.setting, number, self._where(index, at), at.server, stacked))

    # --- the messages of an exchange

    def _ask(self, at: Moment, index: int, number: int) -> dict[int, Tree]:
        """The good uploads by client."""
        roster = self.common.roster
        roster.greet()
        self._problems.clear()
        down, private = jax.device_get(outgoing(self.setting, number, at.server))
        slots = self._slots_by_node(at)
        requests = {
            node: self._request(at, index, number, own, down, private).packed() for node, own in sorted(slots.items())
        }
        self._sequence += 1

        good: dict[int, dict[int, Tree]] = {}

        def read(node: int, answer: bytes | str | None) -> None:
            if node not in good:
                good[node] = self._good(node, [int(at.ids[slot]) for slot in slots[node]], answer, number)

        def enough(answers: Answers) -> bool:
            for node in slots if self._over_selects else ():
                if node in answers:
                    read(node, answers[node])
            return self._over_selects and sum(map(len, good.values())) >= self._wanted

        answers = roster.transport.send(requests, self.common.rules.deadline, enough)
        for node in sorted(slots):
            read(node, answers.get(node))
        uploads, strange = alike({client: each for node in sorted(slots) for client, each in good[node].items()})
        for client, reason in strange.items():
            self._leave_out(roster.names.get(roster.hosts[client], "a node"), reason)
        return uploads

    def _slots_by_node(self, at: Moment) -> dict[int, list[int]]:
        """Where the participants of each node stand in the draw."""
        slots: dict[int, list[int]] = {}
        for slot, client in enumerate(at.ids):
            if not at.mask[slot]:
                continue
            node = self.common.roster.hosts.get(int(client))
            if node is None:
                self._leave_out("no node", f"client {client} is on no node that is there")
            else:
                slots.setdefault(node, []).append(slot)
        return slots

    def _request(self, at: Moment, index: int, number: int, slots: list[int], down: Tree, private: Tree) -> Work:
        """What one node is asked, for its participants."""
        clients = [int(at.ids[slot]) for slot in slots]
        rows = {
            client: jax.tree.map(lambda leaf, slot=slot: leaf[slot], private)
            for client, slot in zip(clients, slots, strict=True)
        }
        return Work(
            run=self.common.run,
            order=(self.common.started, self.number, self.attempt, self._sequence),
            exchange=number,
            index=int(index),
            version=(self.number, self.attempt, int(at.draws)),
            first=self._first,
            clients=clients,
            last=[int(self.state.last[client]) for client in clients],
            counted=[self.versions.get(client) for client in clients],
            equal={level: len(set(sizes.values())) == 1 for level, sizes in self.common.roster.sizes.items()},
            down=down,
            private=rows if private else {},
        )

    def _good(self, node: int, clients: list[int], answer: bytes | str | None, number: int) -> dict[int, Tree]:
        """The uploads of a node that can be counted; the others are left out, with a reason."""
        roster = self.common.roster
        name = roster.name(node)
        if answer is None:
            if not self._over_selects:  # else it may be one that was not waited for
                roster.doubt(node)
                self._leave_out(name, "no answer by the deadline")
            return {}
        read = read_answer(answer)
        if read.error is not None:
            if isinstance(answer, str):
                roster.doubt(node)
            if read.kind == "unknown-run":  # it was restarted
                roster.forget(node)
            self._leave_out(name, read.error)
            return {}
        good, bad = judge(read, clients, self.common.costs[number].upload)
        for reason in bad.values():
            self._leave_out(name, reason)
        return good

    def _leave_out(self, name: str, reason: str) -> None:
        self._problems[f"{name}: {reason}"] += 1
        self.left_out[f"{name}: {reason}"] += 1
        log.warning("round %d: left out %s: %s", self.number, name, reason)

    def _why_too_few(self, uploads: Mapping[int, Tree]) -> str:
        needed = self.common.rules.needed(self._wanted)
        reasons = "; ".join(reason for reason, _ in self._problems.most_common(3))
        return f"{len(uploads)} of {self._wanted} participants could be counted and {needed} are needed ({reasons})"

    # --- what the walk keeps account of

    def _where(self, index: Any, at: Moment) -> tuple[Any, ...]:
        return self.round, jnp.int32(index), jnp.asarray(at.ids), jnp.asarray(at.mask)

    def _note(self, number: int, at: Moment) -> None:
        """One more execution of a step, as the simulator counts them."""
        steps = self.setting.steps
        if steps.fixed:
            taus = np.full(at.ids.shape, steps.low)
        else:
            taus = np.asarray(local_steps(self.setting, self.round, jnp.asarray(at.ids)))
        now = np.array([1, at.mask.sum(), taus[at.mask].sum()])
        self.activity[number] += np.stack([now, now if self.number == 0 else 0 * now])
