"""One attempt at a round: a walk whose exchanges are messages to nodes."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.aggregation.secure.protocol import TooFew
from rookery.algorithm.cost import Cost
from rookery.algorithm.exchange import Exchange, Repeat, Server, count_stages
from rookery.algorithm.setting import Setting, State
from rookery.algorithm.walk import Moment, Walk
from rookery.engines.flower.compiled import (
    alone,
    drawn,
    is_wanted,
    local_steps,
    outgoing,
    receive,
    receive_sum,
    scales,
    secret_noise,
)
from rookery.engines.flower.masking import mass_of
from rookery.engines.flower.roster import Roster
from rookery.engines.flower.rules import Rules
from rookery.engines.flower.summing import Summing
from rookery.engines.flower.uploads import alike, judge, part_names
from rookery.engines.flower.wire.answers import Answer, read_answer
from rookery.engines.flower.wire.fields import Version
from rookery.engines.flower.wire.requests import Work
from rookery.engines.flower.wire.summing import Masking
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
            start = Moment(self.state.server, None, None, *self._draw(0), -1, clips=self.state.clips)
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
        return self._secure(at, index, number) if self.common.rules.secure else self._plain(stage, at, index, number)

    def _plain(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """The server sees every upload."""
        uploads = self._ask(at, index, number)
        self._check_quorum(len(uploads))
        zero = jax.tree.map(np.zeros_like, next(iter(uploads.values())))
        rows = [uploads.get(int(id), zero) if used else zero for id, used in zip(at.ids, at.mask, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *rows)
        at = replace(at, mask=at.mask & np.isin(at.ids, list(uploads)))
        self._note(number, at)
        normals = secret_noise(stage, stacked) if self.setting.privacy is not None else None
        server, clips = receive(self.setting, number, self._where(index, at), at.server, at.clips, stacked, normals)
        return replace(at, server=server, clips=clips)

    def _secure(self, at: Moment, index: Any, number: int) -> Moment:
        """The server sees the weighted sum alone, over whoever stays; so weights are told first and corrected after."""
        wanted = self.common.costs[number].upload
        parts = part_names(wanted)
        weights, most = jax.device_get(scales(self.setting, number, self._where(index, at), at.server, parts))
        try:
            counted, summed = self._sum(at, index, number, weights, most)
        except TooFew as problem:
            raise _BelowQuorum(f"{problem} ({self._reasons})") from None
        at = replace(at, mask=at.mask & np.isin(at.ids, counted))
        self._note(number, at)  # whatever the quorum, the server has seen the sum
        self._check_quorum(len(counted))
        where = self._where(index, at)
        after, _ = jax.device_get(scales(self.setting, number, where, at.server, parts))
        for part in parts:
            here = np.flatnonzero(at.mask)
            place = here[np.argmax(np.abs(weights[part][here]))]  # all have changed alike
            factor = float(after[part][place]) / float(weights[part][place]) if weights[part][place] else 1.0
            summed[part] = jax.tree.map(lambda leaf, factor=factor: factor * leaf, summed[part])
        leaves, structure = jax.tree.flatten(summed)
        typed = [jnp.asarray(leaf, each.partition("[")[0]) for leaf, each in zip(leaves, wanted.values(), strict=True)]
        received = jax.tree.unflatten(structure, typed)
        server, clips = receive_sum(self.setting, number, where, at.server, at.clips, received)
        return replace(at, server=server, clips=clips)

    def _check_quorum(self, counted: int) -> None:
        needed = self.common.rules.needed(self._wanted)
        if counted < needed:
            raise _BelowQuorum(
                f"{counted} of {self._wanted} participants could be counted and {needed} are needed ({self._reasons})"
            )
        self._first = False

    # --- the messages of an exchange

    def _sum(
        self, at: Moment, index: int, number: int, weights: dict[str, Any], most: dict[str, Any]
    ) -> tuple[list[int], dict[str, Any]]:
        """The participants that are counted, and the weighted sum of their uploads."""
        roster, rules = self.common.roster, self.common.rules
        assert rules.secure is not None
        requests, slots = self._requests(at, index, number)

        def send(asked: Mapping[int, bytes]) -> Answers:
            return roster.transport.send(asked, rules.deadline)

        order = (self.common.started, self.number, self.attempt, self._sequence)
        summing = Summing(rules.secure, self.common.run, roster.told, order, sorted(slots), send, self._is_out)
        self._sequence += 1
        there = summing.agree()
        own = {
            node: {part: [float(each[slot]) for slot in slots[node]] for part, each in weights.items()}
            for node in there
        }
        masses = {part: {summing.party(node): mass_of(own[node][part]) for node in there} for part in weights}
        largest = {part: float(each) for part, each in most.items()}
        works = {
            node: replace(requests[node], secure=Masking(summing.sealed_for(node), own[node], masses, largest))
            for node in there
        }
        counted = summing.take(works, self.common.costs[number].upload)
        return counted, summing.total()

    def _ask(self, at: Moment, index: int, number: int) -> dict[int, Tree]:
        """The good uploads by client."""
        roster = self.common.roster
        works, slots = self._requests(at, index, number)
        requests = {node: work.packed() for node, work in works.items()}
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

    def _requests(self, at: Moment, index: int, number: int) -> tuple[dict[int, Work], dict[int, list[int]]]:
        """What each node is asked, and where its participants stand in the draw."""
        self.common.roster.greet()
        self._problems.clear()
        down, private = jax.device_get(outgoing(self.setting, number, at.server))
        slots = self._slots_by_node(at)
        works = {node: self._request(at, index, number, own, down, private) for node, own in sorted(slots.items())}
        return works, slots

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
            clips=None if at.clips is None else np.asarray(at.clips[number]),
        )

    def _good(self, node: int, clients: list[int], answer: bytes | str | None, number: int) -> dict[int, Tree]:
        """The uploads of a node that can be counted; the others are left out, with a reason."""
        read = None if answer is None else read_answer(answer)
        if read is None or read.error is not None:
            if read is not None or not self._over_selects:  # else it may be one that was not waited for
                self._is_out(node, read, isinstance(answer, str))
            return {}
        name = self.common.roster.name(node)
        good, bad = judge(read, clients, self.common.costs[number].upload)
        for reason in bad.values():
            self._leave_out(name, reason)
        return good

    def _is_out(self, node: int, read: Answer | None, lost: bool = False) -> None:
        """A node whose answer says what is wrong, or that has not answered."""
        roster = self.common.roster
        name = roster.name(node)
        if read is None or lost:
            roster.doubt(node)
        if read is not None and read.kind == "unknown-run":  # it was restarted
            roster.forget(node)
        self._leave_out(name, "no answer by the deadline" if read is None else str(read.error))

    def _leave_out(self, name: str, reason: str) -> None:
        self._problems[f"{name}: {reason}"] += 1
        self.left_out[f"{name}: {reason}"] += 1
        log.warning("round %d: left out %s: %s", self.number, name, reason)

    @property
    def _reasons(self) -> str:
        return "; ".join(reason for reason, _ in self._problems.most_common(3))

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
