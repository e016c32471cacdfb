"""The nodes of a federation: who is there, who speaks for which clients, and who is left alone for a while."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax

from rookery.algorithm.cost import Cost
from rookery.engines.flower.rules import SILENCE, FederationError, Rules
from rookery.engines.flower.wire.answers import Answer, Greeting, read_answer, read_greeting
from rookery.engines.flower.wire.requests import Begin, read_request
from rookery.engines.flower.wire.transport import Answers, Transport
from rookery.typing import Tree

log = logging.getLogger("rookery.flower")

PROBE = 5.0
"""Seconds for a node to show that it is there when another claims its clients."""


class Roster:
    """Greets nodes with the request that begins a run, and knows on which of them each client lives.

    ``exchanges`` says of each step of a round whether it is an exchange. ``kept`` is what all clients keep at the start,
    where the run goes on from one whose nodes are gone: each new node is told.
    """

    def __init__(
        self, transport: Transport, rules: Rules, begin: Begin, exchanges: Sequence[bool], kept: Tree | None = None
    ):
        self.transport = transport
        self.rules = rules
        self.claims: dict[int, Greeting] = {}
        """What each node that is there said of itself; a client lives on the first that claims it."""
        self.hosts: dict[int, int] = {}
        """The node of each client that lives on one."""
        self.sizes: dict[str, dict[int, int]] = {"lower": {}, "upper": {}}
        """How many examples each client has, by level."""
        self._begin = begin
        self.told = _told(begin)
        """The digest of what begins the run, as nodes compute it."""
        self._exchanges = exchanges
        self._kept = kept
        self._refused: dict[int, str] = {}
        self._silent: dict[int, float] = {}

    @property
    def names(self) -> dict[int, str]:
        """The nodes that are there."""
        return {node: greeting.name for node, greeting in self.claims.items()}

    def name(self, node: int) -> str:
        """What a node is called in logs."""
        return self.claims[node].name if node in self.claims else f"node {node}"

    # --- greeting

    def gather(self) -> None:
        """Waits until every client lives on some node."""
        end = time.monotonic() + self.rules.patience
        while True:
            self.greet(strict=True)
            missing = [client for client in range(self._begin.n) if client not in self.hosts]
            if not missing:
                self._begin = replace(self._begin, costs=False)  # whoever comes later need not tell them
                return
            if time.monotonic() > end:
                some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
                refused = "; ".join(list(self._refused.values())[:3])
                raise FederationError(
                    f"after {self.rules.patience:g} s {len(missing)} of {self._begin.n} clients are on no "
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
        enough = self._all_hosted if strict else None
        answers = self.transport.send(dict.fromkeys(new, self._begin.packed()), self.rules.deadline, enough)
        if not strict or self._all_hosted(answers):
            self._silent |= {node: time.monotonic() + SILENCE for node in new if node not in answers}
        came = {node: self._read(node, answer) for node, answer in answers.items() if node in new}
        welcome = {node: read for node, read in came.items() if isinstance(read, Greeting)}
        doubtful = self._absent_rivals(welcome)
        for node, read in came.items():
            if isinstance(read, Greeting):
                self._welcome(node, read)
                self._settle_claims()
            else:
                self._refuse(node, read, strict)
        for node in doubtful:
            self.doubt(node)
        self._settle_claims()
        if self._kept is not None:
            self._restore(welcome, strict)

    def _restore(self, welcome: Mapping[int, Greeting], strict: bool) -> None:
        """Tells new nodes what their clients kept in the run that this one goes on from."""
        requests = {
            node: replace(self._begin, keep=_rows(self._kept, greeting.clients)).packed()
            for node, greeting in welcome.items()
        }
        for node, answer in self.transport.send(requests, self.rules.deadline).items() if requests else ():
            if isinstance(read := self._read(node, answer), Answer):
                self.forget(node)
                self._refuse(node, replace(read, error=f"it cannot go on from the given start: {read.error}"), strict)
        self._settle_claims()

    def _read(self, node: int, answer: bytes | str) -> Greeting | Answer:
        """What a node said of itself, as far as it may speak for those clients."""
        read = read_greeting(answer, self._begin.n, self._exchanges, self._begin.costs)
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
        read = [self._read(node, answer) for node, answer in answers.items()]
        told = [each.clients for each in read if isinstance(each, Greeting)]
        return len(set(self.hosts).union(*told)) == self._begin.n

    def _welcome(self, node: int, greeting: Greeting) -> None:
        self.claims[node] = greeting
        self._refused.pop(node, None)
        taken = [client for client in greeting.clients if client in self.hosts]
        if taken:
            log.warning("%s claims clients %s, which live on another node while that is there", greeting.name, taken)
        log.info("%s is there with clients %s", greeting.name, greeting.clients)

    # --- whose claims count

    def _absent_rivals(self, welcome: Mapping[int, Greeting]) -> set[int]:
        """Nodes whose clients others claim, and that do not show that they are there."""
        rivals = {self.hosts[client] for each in welcome.values() for client in each.clients if client in self.hosts}
        if not rivals:
            return set()
        answers = self.transport.send(dict.fromkeys(rivals, self._begin.packed()), min(PROBE, self.rules.deadline))
        return {node for node in rivals if read_answer(answers.get(node, "no answer")).error is not None}

    def doubt(self, node: int) -> None:
        """A node that did not answer comes after all others that claim its clients."""
        if node in self.claims:
            self.claims[node] = self.claims.pop(node)

    def forget(self, node: int) -> None:
        """A node that does not know the run any more is greeted again."""
        self.claims.pop(node, None)

    def _settle_claims(self) -> None:
        """Every client lives on the first node that claims it and is still there."""
        self.hosts = {}
        for node, greeting in self.claims.items():
            for place, client in enumerate(greeting.clients):
                if self.hosts.setdefault(client, node) == node:
                    for name, sizes in greeting.sizes.items():
                        self.sizes[name][client] = sizes[place]

    def told_costs(self) -> list[Cost]:
        """What a round costs, as the nodes of most clients say: a server that holds no data cannot trace their work."""
        votes: list[tuple[list[Cost], int]] = []
        for node, clients in Counter(self.hosts.values()).items():
            told = self.claims[node].costs
            votes.append((told, clients + sum(other for costs, other in votes if costs == told)))
        return max(votes, key=lambda vote: vote[1])[0]


def _told(begin: Begin) -> str:
    read = read_request(begin.packed())
    assert isinstance(read, Begin)
    return read.told


def _rows(table: Tree, clients: Sequence[int]) -> dict[int, Tree]:
    """The rows of these clients."""
    return {client: jax.tree.map(lambda leaf, client=client: leaf[client], table) for client in clients}
