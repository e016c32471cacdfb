"""The server's part in the secure sum of one exchange: it asks step by step, and learns the sum."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from rookery.aggregation.secure.options import SecureSum
from rookery.aggregation.secure.protocol import Server
from rookery.aggregation.secure.ring import decode
from rookery.algorithm.cost import described
from rookery.engines.flower.masking import context_of
from rookery.engines.flower.uploads import alike
from rookery.engines.flower.wire.answers import Answer
from rookery.engines.flower.wire.fields import Order
from rookery.engines.flower.wire.requests import Work
from rookery.engines.flower.wire.summing import (
    Advertise,
    Confirm,
    Masked,
    Share,
    Step,
    Unmask,
    read_confirmed,
    read_keys,
    read_masked,
    read_shared,
    read_unmasked,
)
from rookery.engines.flower.wire.transport import Answers
from rookery.typing import Tree

T = TypeVar("T")
Send = Callable[[Mapping[int, bytes]], Answers]
"""Brings a request to each node, and what is answered back."""
Fail = Callable[[int, Answer | None, bool], None]
"""Notes that a node is out, with what it answered instead, and whether the node itself is lost."""


class Summing:
    """One secure sum over ``nodes``; a node's number as a party is its place among them.

    Every step raises ``TooFew`` if fewer nodes than the threshold are left.
    """

    def __init__(self, options: SecureSum, run: str, told: str, order: Order, nodes: list[int], send: Send, fail: Fail):
        self._options = options
        self._run, self._order = run, order
        self._nodes = nodes
        self._send, self._fail = send, fail
        self._server = Server(context_of(run, told, order), options.needed)
        self._common = b""
        self._like: Tree = None

    def agree(self) -> list[int]:
        """Steps 0 and 1: keys and shares. The nodes that are to be asked for their uploads."""
        parties = range(len(self._nodes))
        keys = self._ask({party: Advertise(self._run, self._order, party) for party in parties}, read_keys)
        self._server.advertised(keys)
        for party in set(keys) - set(self._server.keys):
            self._out(party, "its keys are none, or those of another")
        asked = Share(self._run, self._order, self._server.keys)
        self._server.took(self._ask(dict.fromkeys(self._server.keys, asked), read_shared))
        return [self._nodes[party] for party in self._server.shared]

    def party(self, node: int) -> int:
        """A node's number in this sum."""
        return self._nodes.index(node)

    def sealed_for(self, node: int) -> dict[int, bytes]:
        """The shares that the others sealed for a node."""
        return self._server.sealed_for(self.party(node))

    def take(self, works: Mapping[int, Work], wanted: Mapping[str, str]) -> list[int]:
        """Step 2: the exchange itself. The clients whose uploads are in the sum; ``wanted`` are dtypes and shapes."""
        self._common = next(iter(works.values())).common
        requests = {self.party(node): work for node, work in works.items()}
        masked = {
            party: each
            for party, each in self._ask(requests, read_masked).items()
            if self._is_good(party, each, requests[party], wanted)
        }
        trees, strange = alike({party: each.tree for party, each in masked.items()})
        for party, _ in strange.items():
            self._out(party, "its masked sum has another structure than most")
        self._server.received({party: _flat(tree) for party, tree in trees.items()})
        self._like = next(iter(trees.values()))
        return [client for party in self._server.survivors for client in masked[party].clients]

    def _is_good(self, party: int, masked: Masked, work: Work, wanted: Mapping[str, str]) -> bool:
        """Whether it is a sum of some of the uploads that were asked for."""
        for reason in masked.failed.values():
            self._out(party, reason)
        sizes = {name: "uint64" + each[each.index("[") :] for name, each in wanted.items()}
        if described(masked.tree) == sizes and masked.clients and set(masked.clients) <= set(work.clients):
            return True
        self._out(party, f"its masked sum must be one of {sizes}, it is another")
        return False

    def _out(self, party: int, reason: str) -> None:
        """Notes what is wrong with an answer that came."""
        self._fail(self._nodes[party], Answer({}, {}, reason), False)

    def total(self) -> dict[str, Any]:
        """The last steps: the sum over the survivors."""
        survivors = self._server.survivors
        signatures: dict[int, bytes] = {}
        if all(keys.signature for keys in self._server.keys.values()):
            signatures = self._ask(dict.fromkeys(survivors, Confirm(self._run, self._order, survivors)), read_confirmed)
        asked = Unmask(self._run, self._order, survivors, signatures)
        told = self._ask(dict.fromkeys(signatures or survivors, asked), read_unmasked)
        flat = decode(self._server.total(told, self._common), self._options.fraction_bits)
        leaves, structure = jax.tree.flatten(self._like)
        pieces = np.split(flat, np.cumsum([leaf.size for leaf in leaves])[:-1])
        shaped = [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
        found: dict[str, Any] = jax.tree.unflatten(structure, shaped)
        return found

    def _ask(self, steps: Mapping[int, Step | Work], read: Callable[[bytes | str], T | Answer]) -> dict[int, T]:
        """What came of one step, by party."""
        answers = self._send({self._nodes[party]: step.packed() for party, step in steps.items()})
        good: dict[int, T] = {}
        for party in steps:
            node = self._nodes[party]
            answer = answers.get(node)
            found = None if answer is None else read(answer)
            if found is None or isinstance(found, Answer):
                self._fail(node, found, isinstance(answer, str))
            else:
                good[party] = found
        return good


def _flat(tree: Tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
