"""The protocol of secure sums without any network: drop-outs at every step, what the server saw, servers that cheat."""

import hashlib
import itertools
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from rookery.aggregation.secure.identity import Identity
from rookery.aggregation.secure.masks import Pair, Stream
from rookery.aggregation.secure.options import SecureSum
from rookery.aggregation.secure.protocol import Keys, Party, ProtocolError, Server, TooFew, _confirmed, _pair_seed
from rookery.aggregation.secure.ring import decode
from rookery.aggregation.secure.shamir import PRIME, SHARE, join

CONTEXT, COMMON = b"run 1, round 2", b"what was broadcast"
STEPS = ("advertise", "share", "mask", "unmask")


def identities(number, least=None, threshold=0.5):
    """Parties with keys that know each other."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private = [ec.generate_private_key(ec.SECP384R1()) for _ in range(number)]
    public = [key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in private]
    return [Identity(key, public, least, threshold) for key in private]


class Sum:
    """One sum of some parties; ``gone[party]`` is the step that a party does not do any more."""

    def __init__(self, values, threshold=0.6, gone=(), known=None):
        self.values, self.gone, self.known = values, dict(gone), known
        self.parties = [
            Party(CONTEXT, number, None if known is None else known[number]) for number in range(len(values))
        ]
        self.server = Server(CONTEXT, SecureSum(threshold).needed)
        self.told = {}

    def there(self, step, among=None):
        among = range(len(self.parties)) if among is None else among
        return [
            self.parties[i]
            for i in among
            if STEPS.index(self.gone.get(i, "unmask")) > STEPS.index(step) or i not in self.gone
        ]

    def masked(self):
        """Up to the masked uploads."""
        server = self.server
        server.advertised({party.number: party.advertise() for party in self.there("advertise")})
        server.took({p.number: p.share(server.keys, server.threshold) for p in self.there("share", server.keys)})
        server.received(
            {
                p.number: p.mask(self.values[p.number], server.sealed_for(p.number), COMMON)
                for p in self.there("mask", server.shared)
            }
        )
        return server

    def total(self):
        server = self.masked()
        helpers = self.there("unmask", server.masked)
        signatures = None
        if self.known is not None:
            signatures = {p.number: p.confirm(server.survivors) for p in helpers}
        self.told = {p.number: p.unmask(server.survivors, signatures) for p in helpers}
        return server.total(self.told, COMMON)


def numbers(parties, size=5, seed=0):
    return 10 * np.random.default_rng(seed).standard_normal((parties, size))


def check(run):
    found = decode(run.total())
    expected = run.values[run.server.survivors].sum(0)
    assert np.abs(found - expected).max() <= len(run.values) * 2.0**-33 + 1e-14 * np.abs(expected).max()
    assert np.abs(found).min() > 0


@pytest.mark.parametrize("parties", [3, 4, 7])
@pytest.mark.parametrize("step", STEPS)
def test_every_subset_down_to_the_threshold_is_recovered_and_none_below(parties, step):
    for left in range(parties + 1):
        for gone in itertools.combinations(range(parties), left):
            run = Sum(numbers(parties), gone=dict.fromkeys(gone, step))
            stay = parties - left
            if stay >= (3 if step == "advertise" else SecureSum(0.6).needed(parties)):
                check(run)
                survivors = range(parties) if step == "unmask" else set(range(parties)) - set(gone)
                assert set(run.server.survivors) == set(survivors)
            else:
                with pytest.raises(TooFew, match="needed for a secure sum"):
                    run.total()


def test_parties_that_leave_at_different_steps():
    for leaving in itertools.permutations(range(7), 3):
        check(Sum(numbers(7), threshold=0.55, gone=dict(zip(leaving, ("share", "mask", "unmask"), strict=True))))


def test_parties_with_keys_of_their_own():
    known = identities(5)
    check(Sum(numbers(5), known=known))
    check(Sum(numbers(5), gone={1: "mask", 4: "unmask"}, known=known))


def test_a_second_implementation_decodes_the_same():
    """From what the server received and was told alone, in plain integers: the masks as the paper writes them."""
    run = Sum(numbers(5, 6), gone={2: "mask"})
    found = run.total()
    server, told = run.server, run.told
    helpers = sorted(told)[-server.threshold :]  # others than the server took

    def secret(party):
        value = 0
        for one in helpers:
            weight = 1
            for other in helpers:
                if other != one:
                    weight = weight * (other + 1) * pow(other - one, -1, PRIME) % PRIME
            value += weight * int.from_bytes(told[one][party], "little")
        return (value % PRIME).to_bytes(32, "little")

    def stream(seed):
        return [int.from_bytes(block(seed, k // 8)[8 * (k % 8) : 8 * (k % 8) + 8], "little") for k in range(6)]

    total = [sum(int(server.masked[p][k]) for p in server.masked) for k in range(6)]
    for party in server.masked:
        total = [t - s for t, s in zip(total, stream(secret(party)), strict=True)]
        own = Pair(secret(2)).agree(server.keys[party].masking)
        low, high = min(party, 2), max(party, 2)
        parts = [b"rookery secure mask", CONTEXT, COMMON, low.to_bytes(8, "little"), high.to_bytes(8, "little")]
        info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        sign = 1 if party < 2 else -1
        total = [t - sign * s for t, s in zip(total, stream(expand(own, info)), strict=True)]
    assert [t % 2**64 for t in total] == found.tolist()


def expand(secret, info):
    """HKDF of RFC 5869 for one block."""
    import hmac

    key = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()


def block(key, counter):
    """One block of ChaCha20, as RFC 8439 writes it, with a nonce of zeros."""
    words = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    words += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)] + [counter, 0, 0, 0]
    state = list(words)

    def quarter(a, b, c, d):
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) % 2**32
            mixed = state[z] ^ state[x]
            state[z] = (mixed << turn | mixed >> (32 - turn)) % 2**32

    for _ in range(10):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for row in range(4):
            quarter(row, 4 + (row + 1) % 4, 8 + (row + 2) % 4, 12 + (row + 3) % 4)
    return b"".join(((s + w) % 2**32).to_bytes(4, "little") for s, w in zip(state, words, strict=True))


# --- what the server saw --------------------------------------------------------------------------------------------------


def chi_square(data):
    """Of the frequencies of the 256 bytes: 255 in the mean, with a standard deviation of 22.6 if they are uniform."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return ((counts - counts.mean()) ** 2 / counts.mean()).sum()


def test_the_server_saw_uniform_bytes_and_no_upload():
    values = np.ones((5, 20_000))  # as far from uniform as can be
    run = Sum(values, gone={1: "mask"})
    server = run.masked()
    for party, seen in server.masked.items():
        assert 140 < chi_square(seen.tobytes()) < 400
        for other in server.masked:
            if other > party:  # and no two are related
                assert 140 < chi_square((seen - server.masked[other]).tobytes()) < 400
    bare = np.rint(values[0] * 2.0**32).astype(np.uint64).tobytes()
    assert chi_square(bare) > 10**6, "the test sees what is not masked"
    sealed = b"".join(each for shared in server.shared.values() for each in shared.sealed.values())
    assert len(sealed) == 5 * 4 * 82
    secrets = [party._own_seed for party in run.parties] + [party._masking.secret for party in run.parties]
    log = b"".join([*(seen.tobytes() for seen in server.masked.values()), sealed])
    assert not any(secret in log for secret in secrets)


def test_without_the_shares_the_sum_of_what_came_says_nothing():
    server = Sum(np.ones((4, 20_000))).masked()
    total = np.sum(list(server.masked.values()), axis=0, dtype=np.uint64)
    assert 140 < chi_square(total.tobytes()) < 400, "the pairs' masks cancel, those of the parties' own do not"


def test_parties_that_were_told_different_things_give_noise():
    """A server that broadcasts another model to one party cannot tell its upload apart from the sum."""
    run = Sum(np.ones((3, 20_000)))
    server = run.server
    server.advertised({p.number: p.advertise() for p in run.parties})
    server.took({p.number: p.share(server.keys, server.threshold) for p in run.parties})
    server.received(
        {
            p.number: p.mask(run.values[p.number], server.sealed_for(p.number), b"%d" % (p.number == 1))
            for p in run.parties
        }
    )
    total = server.total({p.number: p.unmask(server.survivors) for p in run.parties}, b"0")
    assert 140 < chi_square(total.tobytes()) < 400


# --- servers that cheat ---------------------------------------------------------------------------------------------------


def test_a_party_never_gives_both_shares_of_another():
    run = Sum(numbers(5))
    server = run.masked()
    first = run.parties[0]
    told = first.unmask([0, 1, 2, 3])
    assert len(told) == 5
    assert all(len(share) == 33 for share in told.values()), "one share of each"
    with pytest.raises(ProtocolError, match=r"step 3 .* at step 4"):
        first.unmask([0, 1, 2, 4])
    with pytest.raises(ProtocolError, match=r"step 2 .* at step 4"):
        first.mask(run.values[0], server.sealed_for(0), COMMON)


def test_with_keys_two_lists_of_survivors_cannot_both_be_confirmed():
    """A server tells one half that party 4 left and the other that it stayed: it would have both of its shares."""
    run = Sum(numbers(5), known=identities(5))
    server = run.masked()
    one, other = [0, 1, 2, 3], [0, 1, 2, 3, 4]
    signatures = {number: run.parties[number].confirm(one if number < 2 else other) for number in range(5)}
    for number in range(5):
        with pytest.raises(
            ProtocolError, match=r"parties have confirmed the survivors, 3 are needed|confirmed, got others"
        ):
            run.parties[number].unmask(one, signatures)
    assert server.threshold == 3
    with pytest.raises(ProtocolError, match=r"step 3 .* at step"):
        run.parties[0].confirm(other)


def uncovered(run, colluders, stay):
    """The last party's numbers, as a lying server and the first ``colluders`` parties find them; None if they cannot.

    Of the other honest parties, ``stay`` are told that the last one stayed, and the rest that it left.
    """
    server, victim = run.masked(), len(run.parties) - 1
    honest = range(colluders, victim)
    lists = list(range(victim + 1)), list(range(victim))
    groups = [*honest[:stay], victim], list(honest[stay:])
    shares = []
    for survivors, group, half in zip(lists, groups, (slice(SHARE, None), slice(SHARE)), strict=True):
        signatures = {i: run.parties[i].confirm(survivors) for i in group}
        for i in range(colluders):
            text = _confirmed(CONTEXT, run.parties[victim]._told, survivors)
            signatures[i] = run.known[i].sign(text)
        found = {i + 1: run.parties[i]._opened(victim)[half] for i in range(colluders)}
        with suppress(ProtocolError):
            found |= {i + 1: run.parties[i].unmask(survivors, signatures)[victim] for i in group}
        if len(found) < server.threshold:
            return None
        shares.append(found)
    seed, secret = map(join, shares)
    total, stream = server.masked[victim].copy(), Stream(run.values.shape[1])
    total -= stream.of(seed)
    for party in range(victim):  # the victim has the largest number: it subtracted all of them
        agreed = Pair(secret).agree(server.keys[party].masking)
        total += stream.of(_pair_seed(agreed, CONTEXT, COMMON, party, victim))
    return decode(total)


@pytest.mark.parametrize(("parties", "threshold", "colluders"), [(4, 0.6, 2), (5, 0.6, 1), (7, 0.7, 3)])
def test_split_lists_of_survivors_need_as_many_colluders_as_is_said(parties, threshold, colluders):
    """2·threshold − parties of them confirm both lists. With one fewer, no way to split the honest ones is enough."""

    def tried(number):
        for stay in range(parties - number):
            yield uncovered(Sum(numbers(parties), threshold, known=identities(parties)), number, stay)

    assert colluders == 2 * SecureSum(threshold).needed(parties) - parties
    found = [each for each in tried(colluders) if each is not None]
    assert len(found) == 1, "one split has as many of both"
    np.testing.assert_allclose(found[0], numbers(parties)[-1], atol=2.0**-32)
    assert all(each is None for each in tried(colluders - 1))


def test_a_party_sums_with_no_lower_a_threshold_than_it_wants():
    """That of a run comes from the server, which may lie."""
    check(Sum(numbers(5), 0.8, known=identities(5, threshold=0.67)))
    with pytest.raises(ProtocolError, match=r"threshold must be at least 0\.67 of 5 parties here, got 3"):
        Sum(numbers(5), 0.6, known=identities(5, threshold=0.67)).masked()
    with pytest.raises(ValueError, match=r"threshold must be a share in \[0\.5, 1\], got 2"):
        identities(5, threshold=2)


def test_a_party_sums_with_no_fewer_than_it_wants():
    for least, wanted in ((None, 6), (4, 4)):
        run = Sum(numbers(3), known=identities(10, least))
        keys = {party.number: party.advertise() for party in run.parties}
        with pytest.raises(ProtocolError, match=f"at least {wanted} parties, got 3"):
            run.parties[0].share(keys, 3)
    check(Sum(numbers(3), known=identities(10, 3)))
    for least in (2, 11):
        with pytest.raises(ValueError, match=rf"least must be in 3\.\.10, .* got {least}"):
            identities(10, least)


def test_secrets_are_gone_when_a_sum_is_done():
    run = Sum(numbers(3))
    run.total()
    for party in run.parties:
        assert not {"_own_seed", "_sealing", "_masking"} & set(vars(party))
        assert not party._agreed
        assert not party._own_shares


@pytest.mark.parametrize(
    ("survivors", "message"),
    [
        ([0, 1], "survivors must be at least 3, got 2"),
        ([1, 2, 3], "this one too"),
        ([0, 1, 2, 9], "different parties that shared"),
        ([0, 1, 1, 2], "different parties"),
    ],
)
def test_strange_survivors_are_refused(survivors, message):
    run = Sum(numbers(5))
    run.masked()
    with pytest.raises(ProtocolError, match=message):
        run.parties[0].unmask(survivors)


def advertised(number=4, known=None):
    run = Sum(numbers(number), known=known)
    return run, {party.number: party.advertise() for party in run.parties}


def test_a_server_that_exchanges_keys_is_found_out():
    """It puts keys of its own in the place of party 2's: all others see that no listed key signed them."""
    run, keys = advertised(known=identities(4))
    own = Party(CONTEXT, 2, identities(1)[0]).advertise()
    for swapped in (
        own,
        replace(own, signature=keys[2].signature),
        replace(keys[2], signature=b""),
        replace(own, signature=b""),
    ):
        with pytest.raises(ProtocolError, match="the keys of party 2 are not signed by a listed key"):
            run.parties[0].share({**keys, 2: swapped}, 3)
        run, keys = advertised(known=run.known)
    with pytest.raises(ProtocolError, match="the keys of party 2 were exchanged"):
        run.parties[2].share({**keys, 2: own}, 3)


def test_one_key_cannot_be_two_parties():
    known = identities(4)
    run, keys = advertised(known=known)
    double = Party(CONTEXT, 2, known[1]).advertise()
    with pytest.raises(ProtocolError, match="parties 1 and 2 have keys that one key signed"):
        run.parties[0].share({**keys, 2: double}, 3)


def test_keys_of_another_exchange_are_refused():
    known = identities(4)
    run, keys = advertised(known=known)
    old = Party(b"round 1", 2, known[2]).advertise()
    with pytest.raises(ProtocolError, match="party 2 are not signed"):
        run.parties[0].share({**keys, 2: old}, 3)


@pytest.mark.parametrize(
    ("change", "threshold", "message"),
    [
        (lambda keys: {0: keys[0], 1: keys[1]}, 2, "at least 3 parties, got 2"),
        (lambda keys: keys, 2, "more than half of 4 parties, got 2"),
        (lambda keys: keys, 5, "more than half of 4 parties, got 5"),
        (lambda keys: {**keys, 1: keys[2]}, 3, "two are the same"),
        (lambda keys: {1: keys[1], 2: keys[2], 3: keys[3]}, 2, "party 0 were exchanged"),
    ],
)
def test_what_would_break_the_protocol_is_refused(change, threshold, message):
    run, keys = advertised()
    with pytest.raises(ProtocolError, match=message):
        run.parties[0].share(change(keys), threshold)


def test_a_key_of_small_order_is_refused():
    run, keys = advertised()
    with pytest.raises(ValueError, match="full order"):
        run.parties[0].share({**keys, 1: Keys(bytes(32), keys[1].masking)}, 3)


def test_shares_that_were_changed_are_found_out():
    run = Sum(numbers(4))
    server = run.server
    server.advertised({p.number: p.advertise() for p in run.parties})
    server.took({p.number: p.share(server.keys, server.threshold) for p in run.parties})
    sealed = server.sealed_for(0)
    run.parties[0].mask(run.values[0], {**sealed, 1: sealed[2]}, COMMON)
    with pytest.raises(ProtocolError, match="the shares of party 1 were changed"):
        run.parties[0].unmask([0, 1, 2, 3])


def test_wrong_shares_end_in_no_sum_and_never_in_a_wrong_one():
    for gone, name in (({}, "own mask"), ({1: "mask"}, "mask keys")):
        run = Sum(numbers(4), gone=gone)
        server = run.masked()
        told = {p.number: p.unmask(server.survivors) for p in run.there("unmask", server.masked)}
        share = told[0][1]
        told[0] = {
            **told[0],
            1: share[:9] + bytes([share[9] ^ 1]) + share[10:],
        }  # X25519 has no use for the lowest bits
        with pytest.raises(TooFew, match=f"{name} do not fit together|cannot be joined"):
            server.total(told, COMMON)


def test_a_party_that_gives_too_few_shares_is_left_out():
    run, keys = advertised()
    run.server.advertised(keys)
    shared = {p.number: p.share(keys, 3) for p in run.parties}
    shared[3] = replace(shared[3], sealed={0: shared[3].sealed[0]})
    run.server.took(shared)
    assert list(run.server.shared) == [0, 1, 2]


def test_too_large_numbers_are_refused_before_they_are_masked():
    run = Sum(np.full((3, 2), 1e10))
    with pytest.raises(ValueError, match="cannot overflow"):
        run.masked()


def test_a_list_of_keys_without_the_own_is_refused():
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    with pytest.raises(ValueError, match="this node's own key"):
        Identity(ec.generate_private_key(ec.SECP256R1()), [])
    with pytest.raises(ValueError, match="ECDSA key, got"):
        Identity(ed25519.Ed25519PrivateKey.generate(), [])
