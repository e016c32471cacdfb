"""The messages of a secure sum: what each step asks of a node, and what the node answers.

Between the second and the third step stands the exchange itself (``requests.Work``), which then has a :class:`Masking`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rookery.aggregation.secure.masks import KEY
from rookery.aggregation.secure.options import SecureSum
from rookery.aggregation.secure.protocol import SEALED, Keys, Shared
from rookery.aggregation.secure.shamir import SHARE
from rookery.engines.flower.wire.answers import Answer, read_answer
from rookery.engines.flower.wire.fields import (
    Check,
    Fields,
    Order,
    T,
    client,
    clients,
    listed,
    order,
    run_name,
    table,
    text,
    within,
)
from rookery.engines.flower.wire.pack import Malformed, brief, pack, plain, unpack
from rookery.typing import Tree

PARTIES = 10_000
"""The most nodes of one sum."""
SIGNATURE = 256
"""The most bytes of a signature."""
_HEX = re.compile("(?:[0-9a-f]{2})*")


@dataclass(frozen=True)
class Advertise:
    """Step 0: make keys for the exchange that ``order`` names, in which this node is number ``party``."""

    run: str
    order: Order
    party: int

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed("advertise", self.run, self.order, party=self.party)


@dataclass(frozen=True)
class Share:
    """Step 1: these are the keys of all; share your secrets among them."""

    run: str
    order: Order
    keys: dict[int, Keys]

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed("share", self.run, self.order, keys={str(party): tell_keys(k) for party, k in self.keys.items()})


@dataclass(frozen=True)
class Confirm:
    """Step 3: sign who is still there."""

    run: str
    order: Order
    survivors: list[int]

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed("confirm", self.run, self.order, survivors=self.survivors)


@dataclass(frozen=True)
class Unmask:
    """Step 4: tell the shares that remove the masks of these survivors' sum."""

    run: str
    order: Order
    survivors: list[int]
    signatures: dict[int, bytes]

    def packed(self) -> bytes:
        """The request as it travels."""
        signatures = tell_bytes(self.signatures)
        return _packed("unmask", self.run, self.order, survivors=self.survivors, signatures=signatures)


Step = Advertise | Share | Confirm | Unmask


@dataclass(frozen=True)
class Masking:
    """What an exchange brings beside itself where its sum is secure."""

    sealed: dict[int, bytes]
    """The shares that the other parties sealed for this one."""
    weights: dict[str, list[float]]
    """Of each part of an upload, the weights of this node's participants."""
    masses: dict[str, dict[int, float]]
    """Of each part, what the weights of each party's participants are in all: everybody is told the same."""
    most: dict[str, float]
    """Of each part, the largest weight that any client can have: the noise of private rounds is made for it."""

    @property
    def common(self) -> dict[str, Any]:
        """What all parties must be told alike."""
        return {"masses": {part: _named(each) for part, each in self.masses.items()}, "most": self.most}

    def told(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"sealed": tell_bytes(self.sealed), "weights": self.weights, **self.common}


def _packed(kind: str, run: str, order: Order, **more: Any) -> bytes:
    return pack(None, {"kind": kind, "run": run, "order": list(order), **more})


def _named(each: Mapping[int, Any]) -> dict[str, Any]:
    return {str(party): value for party, value in each.items()}


def tell_keys(keys: Keys) -> dict[str, str]:
    """Keys as JSON can hold them."""
    return {name: getattr(keys, name).hex() for name in ("sealing", "masking", "signature")}


def tell_bytes(each: Mapping[int, bytes]) -> dict[str, str]:
    """Bytes by party as JSON can hold them."""
    return {str(party): value.hex() for party, value in each.items()}


def tell_shared(shared: Shared) -> dict[str, Any]:
    """What a party gives for the others as JSON can hold it."""
    return {"digest": shared.digest.hex(), "sealed": tell_bytes(shared.sealed)}


# --- what may stand in a field --------------------------------------------------------------------------------------------

_party = within(0, PARTIES - 1)


def _octets(least: int, most: int | None = None) -> Check[bytes]:
    """So many bytes as hexadecimal digits."""
    most = least if most is None else most

    def checked(value: Any, name: str) -> bytes:
        good = len(text(value, name)) <= 2 * most and _HEX.fullmatch(value) is not None
        if not good or len(value) < 2 * least:
            raise Malformed(f"{name} must be {least} to {most} bytes in hexadecimal digits, got {brief(value)}")
        return bytes.fromhex(value)

    return checked


def _by_party(check: Check[T]) -> Check[dict[int, T]]:
    """A table by the numbers of parties."""

    def checked(value: Any, name: str) -> dict[int, T]:
        found = {_party(client(party), name): check(each, name) for party, each in table(value, name).items()}
        if len(found) > PARTIES:
            raise Malformed(f"{name} must be of at most {PARTIES} parties, got {len(found)}")
        return found

    return checked


def _keys(value: Any, name: str) -> Keys:
    got = Fields(table(value, name), name)
    keys = Keys(got("sealing", _octets(KEY)), got("masking", _octets(KEY)), got("signature", _octets(0, SIGNATURE)))
    got.done()
    return keys


def _finite(value: Any, name: str) -> float:
    if type(value) is not float or not abs(value) < float("inf"):
        raise Malformed(f"{name} must be a finite number, got {brief(value)}")
    return value


def _by_part(check: Check[T]) -> Check[dict[str, T]]:
    return lambda value, name: {part: check(each, name) for part, each in table(value, name).items()}


def masking(value: Any, name: str) -> Masking:
    """What an exchange brings for a secure sum."""
    got = Fields(table(value, name), name)
    read = Masking(
        sealed=got("sealed", _by_party(_octets(SEALED))),
        weights=got("weights", _by_part(listed(_finite))),
        masses=got("masses", _by_part(_by_party(_finite))),
        most=got("most", _by_part(_finite)),
    )
    got.done()
    return read


def secure_sum(value: Any, name: str) -> dict[str, Any]:
    """What ``rk.SecureSum`` is given."""
    got = Fields(table(value, name), name)
    told: dict[str, Any] = {
        "threshold": got("threshold", _finite),
        "fraction_bits": got("fraction_bits", within(1, 52)),
    }
    got.done()
    try:
        SecureSum(**told)
    except ValueError as error:
        raise Malformed(f"{name}: {plain(str(error))}") from None
    return told


# --- reading requests -----------------------------------------------------------------------------------------------------


def _advertise(got: Fields) -> Advertise:
    return Advertise(got("run", run_name), got("order", order), got("party", _party))


def _share(got: Fields) -> Share:
    return Share(got("run", run_name), got("order", order), got("keys", _by_party(_keys)))


def _confirm(got: Fields) -> Confirm:
    return Confirm(got("run", run_name), got("order", order), got("survivors", clients))


def _unmask(got: Fields) -> Unmask:
    run, when, survivors = got("run", run_name), got("order", order), got("survivors", clients)
    return Unmask(run, when, survivors, got("signatures", _by_party(_octets(0, SIGNATURE))))


def _without_arrays(read: Callable[[Fields], Step]) -> Callable[[Tree, Fields], Step]:
    def checked(tree: Tree, got: Fields) -> Step:
        if tree is not None:
            raise Malformed("a step of a secure sum has no arrays")
        return read(got)

    return checked


STEPS: dict[str, Callable[[Tree, Fields], Step]] = {
    "advertise": _without_arrays(_advertise),
    "share": _without_arrays(_share),
    "confirm": _without_arrays(_confirm),
    "unmask": _without_arrays(_unmask),
}
"""The reader of each step by the kind of the request."""


# --- reading answers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masked:
    """A node's masked sum of its participants' uploads, and whose uploads are in it."""

    tree: dict[str, Any]
    clients: list[int]
    failed: dict[int, str]


def _read(answer: bytes | str, read: Callable[[Tree, Fields], T]) -> T | Answer:
    """What an answer holds, or the answer that says why it holds nothing."""
    if isinstance(answer, str):
        return read_answer(answer)
    try:
        tree, meta = unpack(answer)
        return read_answer(answer) if "error" in meta else read(tree, Fields(meta, "the answer"))
    except Malformed as error:
        return Answer({}, {}, f"its answer cannot be read: {plain(str(error))}")


def read_keys(answer: bytes | str) -> Keys | Answer:
    """The answer to step 0."""
    return _read(answer, lambda tree, got: got("keys", _keys))


def read_shared(answer: bytes | str) -> Shared | Answer:
    """The answer to step 1."""
    return _read(
        answer, lambda tree, got: Shared(got("digest", _octets(KEY)), got("sealed", _by_party(_octets(SEALED))))
    )


def read_masked(answer: bytes | str) -> Masked | Answer:
    """The answer to the exchange."""

    def read(tree: Tree, got: Fields) -> Masked:
        if not isinstance(tree, dict):
            raise Malformed("a masked sum must be a table of arrays")
        failed = {client(each): plain(text(why, "failed")) for each, why in got("failed", table).items()}
        return Masked(tree, got("clients", clients), failed)

    return _read(answer, read)


def read_confirmed(answer: bytes | str) -> bytes | Answer:
    """The answer to step 3: a signature."""
    return _read(answer, lambda tree, got: got("signature", _octets(1, SIGNATURE)))


def read_unmasked(answer: bytes | str) -> dict[int, bytes] | Answer:
    """The answer to step 4: a share of each party."""
    return _read(answer, lambda tree, got: got("shares", _by_party(_octets(SHARE))))
