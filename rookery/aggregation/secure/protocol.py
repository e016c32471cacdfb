"""One secure sum: what each party does, and what the server does, step by step.

    0  advertise   a party makes two pairs of keys, one to seal shares and one for masks, and signs the public ones
    1  share       it splits the secret of its mask keys and the seed of a mask of its own, and seals a share for each peer
    2  mask        it adds to its numbers the mask of its own, and one for each pair of parties, which cancels in the sum
    3  confirm     it signs who is still there; only where parties have keys that last
    4  unmask      it tells, of each party that stayed, its share of the own mask's seed; of each that left, that of the
                   mask keys' secret. Of no party both: with both, its numbers would be bare

A party that leaves is recovered as long as ``threshold`` others stay until the end. Parties have numbers from 0. ``context``
names the one exchange that all of it belongs to, and ``common`` is whatever all parties must have been told alike: masks
depend on both, so that those of parties that were told different things do not cancel, and the sum is noise.
"""

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.aggregation.secure.identity import Identity
from rookery.aggregation.secure.masks import KEY, Pair, Stream, derive, seal, unseal
from rookery.aggregation.secure.options import LEAST
from rookery.aggregation.secure.ring import encode
from rookery.aggregation.secure.shamir import SHARE, join, split, weights_at_zero

SEALED = 2 * SHARE + 16
"""Bytes of the two shares that one party seals for another."""


class ProtocolError(ValueError):
    """What was asked or told would break the protocol; the party takes no further part in this sum."""


@dataclass(frozen=True)
class Keys:
    """What a party advertises: its public keys, and a signature of both where it has a key that lasts."""

    sealing: bytes
    masking: bytes
    signature: bytes = b""


@dataclass(frozen=True)
class Shared:
    """What a party gives for the others: a sealed pair of shares for each, and the digest of its own mask's seed."""

    digest: bytes
    sealed: dict[int, bytes]


def _text(*parts: bytes | int) -> bytes:
    """Parts as one text: each with its length, so that no two lists of parts are the same text."""
    each = [part.to_bytes(8, "little") if isinstance(part, int) else part for part in parts]
    return b"".join(len(part).to_bytes(4, "little") + part for part in each)


def _advertised(context: bytes, party: int, keys: Keys) -> bytes:
    return _text(b"rookery secure keys", context, party, keys.sealing, keys.masking)


def _confirmed(context: bytes, told: bytes, survivors: Collection[int]) -> bytes:
    return _text(b"rookery secure survivors", context, told, *sorted(survivors))


def sound(keys: Mapping[int, Keys]) -> dict[int, Keys]:
    """Those that others can agree on secrets with: one bad key would make all others refuse the whole list."""
    probe = Pair()
    told = Counter(key for each in keys.values() for key in (each.sealing, each.masking))

    def good(each: Keys) -> bool:
        try:
            return all(told[key] == 1 and probe.agree(key) for key in (each.sealing, each.masking))
        except ValueError:
            return False

    return {party: each for party, each in sorted(keys.items()) if good(each)}


def _pair_seed(agreed: bytes, context: bytes, common: bytes, one: int, other: int) -> bytes:
    return derive(agreed, _text(b"rookery secure mask", context, common, min(one, other), max(one, other)))


def _seal_key(agreed: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    return derive(agreed, _text(b"rookery secure share", context, sender, receiver))


def _add(total: np.ndarray, mask: np.ndarray, positive: bool) -> None:
    """The ring's addition is that of unsigned integers, which wraps around."""
    (np.add if positive else np.subtract)(total, mask, out=total)


class Party:
    """A party of one sum. Each step can be done once, in order; what is asked out of order is refused.

    With an ``identity`` it deals only with peers whose keys are signed by listed keys, a different one each, and with
    as many, and as high a threshold, as the identity wants at least.
    """

    def __init__(self, context: bytes, number: int, identity: Identity | None = None):
        self.context = context
        self.number = number
        self._identity = identity
        self._sealing, self._masking = Pair(), Pair()
        self._own_seed = secrets.token_bytes(KEY)
        self._step = 0
        self._peers: dict[int, Keys] = {}
        self._signers: dict[bytes, int] = {}
        self._threshold = 0
        self._sealed: dict[int, bytes] = {}
        self._own_shares: dict[int, bytes] = {}
        self._confirmed: frozenset[int] | None = None
        self._agreed: dict[int, bytes] = {}
        self._told = b""

    def _at(self, step: int, name: str) -> None:
        if self._step != step:
            raise ProtocolError(f"{name} is step {step} of a secure sum, this party is at step {self._step}")
        self._step += 1

    def advertise(self) -> Keys:
        """The public keys."""
        self._at(0, "advertise")
        keys = Keys(self._sealing.public, self._masking.public)
        if self._identity is None:
            return keys
        return Keys(*self._public, self._identity.sign(_advertised(self.context, self.number, keys)))

    @property
    def _public(self) -> tuple[bytes, bytes]:
        return self._sealing.public, self._masking.public

    def share(self, peers: Mapping[int, Keys], threshold: int) -> Shared:
        """Shares for all parties that advertised; ``peers`` are all of them, this one too."""
        self._at(1, "share")
        self._check_peers(peers, threshold)
        self._peers, self._threshold = dict(peers), threshold
        points = [party + 1 for party in peers]
        halves = [split(secret, threshold, points) for secret in (self._masking.secret, self._own_seed)]
        pairs = {party: halves[0][party + 1] + halves[1][party + 1] for party in peers}
        self._own_shares = {self.number: pairs[self.number]}
        return Shared(
            hashlib.sha256(self._own_seed).digest(),
            {
                party: seal(self._key(party, self.number, party), pairs[party], self.context)
                for party in peers
                if party != self.number
            },
        )

    def _key(self, peer: int, sender: int, receiver: int) -> bytes:
        if peer not in self._agreed:  # the same for both directions
            self._agreed[peer] = self._sealing.agree(self._peers[peer].sealing)
        return _seal_key(self._agreed[peer], self.context, sender, receiver)

    def _check_peers(self, peers: Mapping[int, Keys], threshold: int) -> None:
        least = LEAST if self._identity is None else max(LEAST, self._identity.least)
        if len(peers) < least:
            raise ProtocolError(f"a secure sum must have at least {least} parties, got {len(peers)}")
        if not len(peers) < 2 * threshold <= 2 * len(peers):
            raise ProtocolError(f"threshold must be more than half of {len(peers)} parties, got {threshold}")
        mine = peers.get(self.number)
        if mine is None or (mine.sealing, mine.masking) != self._public:
            raise ProtocolError(f"the keys of party {self.number} were exchanged for others on the way")
        told = [key for keys in peers.values() for key in (keys.sealing, keys.masking)]
        if len(set(told)) != len(told):
            raise ProtocolError("every public key must be another, two are the same")
        if self._identity is None:
            return
        share = self._identity.threshold
        if threshold < share * len(peers) - 1e-9:
            raise ProtocolError(f"threshold must be at least {share:g} of {len(peers)} parties here, got {threshold}")
        for party, keys in peers.items():
            who = self._identity.signer(keys.signature, _advertised(self.context, party, keys))
            if who is None:
                raise ProtocolError(f"the keys of party {party} are not signed by a listed key: they may be exchanged")
            if self._signers.setdefault(who, party) != party:
                raise ProtocolError(f"parties {self._signers[who]} and {party} have keys that one key signed")

    def mask(self, values: Any, sealed: Mapping[int, bytes], common: bytes, fraction_bits: int = 32) -> np.ndarray:
        """The numbers, masked; ``sealed`` has the shares of all other parties that are still there."""
        self._at(2, "mask")
        strange = [party for party in sealed if party not in self._peers or party == self.number]
        if strange or len(sealed) + 1 < self._threshold:
            raise ProtocolError(
                f"shares must come from {self._threshold - 1} peers or more that advertised keys, got {len(sealed)}"
            )
        try:
            total = encode(values, len(self._peers), fraction_bits)
        except ValueError as problem:
            raise ProtocolError(str(problem)) from None
        stream = Stream(total.size)
        self._sealed = dict(sealed)
        self._told = self._digest(common)
        _add(total, stream.of(self._own_seed), True)
        for party in sealed:
            agreed = self._masking.agree(self._peers[party].masking)
            seed = _pair_seed(agreed, self.context, common, self.number, party)
            _add(total, stream.of(seed), self.number < party)
        return total

    def _digest(self, common: bytes) -> bytes:
        """Of all that the server told this party so far: the keys, fresh ones each time, and what all are told alike."""
        keys = [part for party, k in sorted(self._peers.items()) for part in (party, k.sealing, k.masking)]
        return hashlib.sha256(_text(common, self._threshold, *keys)).digest()

    def confirm(self, survivors: Collection[int]) -> bytes:
        """Our signature of who is still there, and of what we were told before: nobody can use it in another sum."""
        if self._identity is None:
            raise ProtocolError("only a party with a key that lasts can confirm who survived")
        self._at(3, "confirm")
        self._check_survivors(survivors)
        self._confirmed = frozenset(survivors)
        return self._identity.sign(_confirmed(self.context, self._told, survivors))

    def _check_survivors(self, survivors: Collection[int]) -> None:
        here = {self.number, *self._sealed}
        if len(set(survivors)) != len(survivors) or not set(survivors) <= here or self.number not in survivors:
            raise ProtocolError(f"survivors must be different parties that shared, this one too, got {list(survivors)}")
        if len(survivors) < self._threshold:
            raise ProtocolError(f"survivors must be at least {self._threshold}, got {len(survivors)}")

    def unmask(self, survivors: Collection[int], signatures: Mapping[int, bytes] | None = None) -> dict[int, bytes]:
        """One share of each party that shared: of its own mask's seed if it survived, else of its mask keys' secret."""
        if self._identity is None:
            self._at(3, "unmask")
            self._check_survivors(survivors)
        else:
            self._at(4, "unmask")
            self._check_confirmed(survivors, signatures or {})
        told = {}
        for party in [self.number, *self._sealed]:
            pair = self._opened(party)
            told[party] = pair[SHARE:] if party in survivors else pair[:SHARE]
        self._forget()
        return told

    def _forget(self) -> None:
        """Drops all secrets: nothing more is asked of this sum, and no memory of the host can tell them later."""
        self._sealed, self._own_shares, self._agreed = {}, {}, {}
        del self._own_seed, self._sealing, self._masking

    def _check_confirmed(self, survivors: Collection[int], signatures: Mapping[int, bytes]) -> None:
        """As many as the threshold have signed the same list, and were told the same.

        Another list can have as many only if 2·threshold − parties or more have signed both.
        """
        assert self._identity is not None
        if self._confirmed != frozenset(survivors):
            raise ProtocolError("survivors must be those that this party has confirmed, got others")
        text = _confirmed(self.context, self._told, survivors)
        signed = {self._signers.get(self._identity.signer(each, text) or b"") for each in signatures.values()}
        agreeing = signed & set(survivors)
        if len(agreeing) < self._threshold:
            raise ProtocolError(f"{len(agreeing)} parties have confirmed the survivors, {self._threshold} are needed")

    def _opened(self, party: int) -> bytes:
        if party == self.number:
            return self._own_shares[party]
        try:
            pair = unseal(self._key(party, party, self.number), self._sealed[party], self.context)
        except ValueError:
            raise ProtocolError(f"the shares of party {party} were changed on the way") from None
        if len(pair) != 2 * SHARE:
            raise ProtocolError(f"the shares of party {party} must have {2 * SHARE} bytes, got {len(pair)}")
        return pair


class TooFew(Exception):
    """Fewer parties than the threshold are left, or what they told does not fit together: there is no sum."""


class Server:
    """The server of one sum: it is told what came at each step, and says who is still there.

    ``needed(parties)`` is the threshold of so many parties.
    """

    def __init__(self, context: bytes, needed: Callable[[int], int]):
        self.context = context
        self._needed = needed
        self.keys: dict[int, Keys] = {}
        self.shared: dict[int, Shared] = {}
        self.masked: dict[int, np.ndarray] = {}
        self.threshold = 0

    def _enough(self, came: Collection[int], step: str) -> None:
        if len(came) < self.threshold:
            raise TooFew(f"{len(came)} nodes {step} and {self.threshold} are needed for a secure sum")

    def advertised(self, keys: Mapping[int, Keys]) -> None:
        """After step 0: the keys of those that take part; what is no key, or another's, is left out."""
        self.keys = sound(keys)
        if len(self.keys) < LEAST:
            raise TooFew(f"{len(self.keys)} nodes with participants are there and {LEAST} are needed for a secure sum")
        self.threshold = self._needed(len(self.keys))

    def took(self, shared: Mapping[int, Shared]) -> None:
        """After step 1: the shares of those that are still there, one for each party that advertised."""
        self.shared = {
            party: each for party, each in sorted(shared.items()) if set(each.sealed) == set(self.keys) - {party}
        }
        self._enough(self.shared, "gave shares of their secrets")

    def sealed_for(self, party: int) -> dict[int, bytes]:
        """What the others sealed for a party."""
        return {other: each.sealed[party] for other, each in self.shared.items() if other != party}

    def received(self, masked: Mapping[int, np.ndarray]) -> None:
        """After step 2: the masked numbers of the survivors."""
        self.masked = {party: masked[party] for party in self.shared if party in masked}
        self._enough(self.masked, "sent masked uploads")

    @property
    def survivors(self) -> list[int]:
        """Whose numbers are in the sum."""
        return list(self.masked)

    def total(self, told: Mapping[int, Mapping[int, bytes]], common: bytes) -> np.ndarray:
        """After the last step: the sum over the survivors, as elements of the ring. ``told`` has each one's shares."""
        good = {party: shares for party, shares in sorted(told.items()) if set(shares) == set(self.shared)}
        self._enough(good, "helped to remove the masks")
        chosen = list(good)[: self.threshold]
        weights = weights_at_zero([party + 1 for party in chosen])
        secret = {
            party: self._join({helper + 1: good[helper][party] for helper in chosen}, weights, party)
            for party in self.shared
        }
        first, *others = self.masked.values()
        total = first.copy()
        for other in others:
            _add(total, other, True)
        stream = Stream(total.size)
        for party in self.masked:
            if not hmac.compare_digest(hashlib.sha256(secret[party]).digest(), self.shared[party].digest):
                raise TooFew(f"the shares of party {party}'s own mask do not fit together")
            _add(total, stream.of(secret[party]), False)
        for gone in set(self.shared) - set(self.masked):
            pair = Pair(secret[gone])
            if pair.public != self.keys[gone].masking:
                raise TooFew(f"the shares of party {gone}'s mask keys do not fit together")
            for party in self.masked:
                seed = _pair_seed(pair.agree(self.keys[party].masking), self.context, common, party, gone)
                _add(total, stream.of(seed), party > gone)
        return total

    def _join(self, shares: Mapping[int, bytes], weights: list[int], party: int) -> bytes:
        try:
            return join(shares, weights)
        except ValueError as problem:
            raise TooFew(f"the shares of party {party} cannot be joined: {problem}") from None
