"""Known answers of every primitive that secure sums use, from the RFCs; the laws of Shamir's shares and of the ring."""

import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.aggregation.secure import masks, shamir
from rookery.aggregation.secure.identity import Identity
from rookery.aggregation.secure.masks import Pair, Stream, derive, seal, unseal
from rookery.aggregation.secure.options import SecureSum
from rookery.aggregation.secure.ring import decode, encode, largest
from rookery.aggregation.secure.shamir import PRIME, join, split
from tests.helpers.fuzzing import examples

# --- RFC vectors --------------------------------------------------------------------------------------------------------


def test_x25519_rfc_7748():
    """Section 6.1: both agree on the same secret."""
    alice = Pair(ALICE)
    bob = Pair(BOB)
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    agreed = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == agreed
    assert Pair(alice.secret).public == alice.public


ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")


def test_a_key_of_small_order_is_refused():
    for point in (bytes(32), (1).to_bytes(32, "little")):
        with pytest.raises(ValueError, match="full order"):
            Pair().agree(point)


def test_hkdf_rfc_5869():
    """Appendix A.3: SHA-256 without salt and info, the first 32 of its 42 bytes; and A.1 through the same class."""
    found = derive(bytes([0x0B] * 22), b"")
    assert found.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    found = HKDF(SHA256(), 42, salt, info).derive(bytes([0x0B] * 22))
    assert found.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")


def test_chacha20_rfc_8439():
    """Appendix A.1, vectors 1, 2 and 3: key and nonce of zeros, blocks 0 and 1; a key that ends in 1, block 1."""
    first = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    second = (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    third = (
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
    )
    assert Stream(16).of(bytes(32)).tobytes().hex() == first + second
    assert Stream(16).of(bytes(31) + b"\x01").tobytes().hex()[128:] == third


def test_chacha20_poly1305_rfc_8439():
    """Section 2.8.2, with its nonce; and ours is the same with a nonce of zeros."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    about = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
    text += b"sunscreen would be it."
    sealed = ChaCha20Poly1305(key).encrypt(nonce, text, about)
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"
    assert seal(key, text, about) == ChaCha20Poly1305(key).encrypt(bytes(12), text, about)
    assert unseal(key, seal(key, text, about), about) == text


@pytest.mark.parametrize(
    ("curve", "private", "r", "s"),
    [
        (
            "SECP256R1",
            0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721,
            0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
            0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
        ),
        (
            "SECP384R1",
            0x6B9D3DAD2E1B8C1C05B19875B6659F4DE23C3B667BF297BA9AA47740787137D896D5724E4C70A825F872C9EA60D2EDF5,
            0x21B13D1E013C7FA1392D03C5F99AF8B30C570C6F98D4EA8E354B63A21D3DAA33BDE1E888E63355D92FA2B3C36D8FB2CD,
            0xF3AA443FB107745BF4BD77CB3891674632068A10CA67E3D45DB2266FA7D1FEEBEFDC63ECCD1AC42EC0CB8668A4FA0AB0,
        ),
    ],
)
def test_ecdsa_rfc_6979(curve, private, r, s):
    """Appendices A.2.5 and A.2.6, SHA-256: the signature of "sample" is accepted, and of no other message."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.derive_private_key(private, getattr(ec, curve)())
    listed = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    identity = Identity(key, [listed])
    signature = identity.fingerprint + encode_dss_signature(r, s)
    assert identity.signer(signature, b"sample") == identity.fingerprint
    assert identity.signer(signature, b"simple") is None


def test_what_was_changed_is_not_unsealed():
    key = secrets.token_bytes(32)
    sealed = seal(key, b"shares", b"round 1")
    for other in (
        (secrets.token_bytes(32), sealed, b"round 1"),
        (key, sealed, b"round 2"),
        (key, sealed[:-1], b"round 1"),
    ):
        with pytest.raises(ValueError, match="changed"):
            unseal(*other)


def test_a_key_has_one_purpose():
    assert derive(b"secret", b"one") != derive(b"secret", b"other")
    assert len(derive(b"secret", b"one")) == masks.KEY


# --- Shamir -------------------------------------------------------------------------------------------------------------


def is_prime(number):
    """Miller and Rabin's test with 40 random bases."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):
        power = pow(secrets.randbelow(number - 3) + 2, odd, number)
        if power in (1, number - 1):
            continue
        if not any((power := power * power % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True


def test_the_field_is_one():
    assert is_prime(PRIME)
    assert not any(is_prime(number) for number in range(2**256 + 1, PRIME, 2))


@examples(60, 3000)
@given(data=st.data())
def test_any_threshold_shares_give_the_secret_back(data):
    points = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=8, unique=True))
    threshold = data.draw(st.integers(1, len(points)))
    secret = data.draw(st.binary(min_size=32, max_size=32) | st.just(b"\xff" * 32) | st.just(bytes(32)))
    shares = split(secret, threshold, points)
    chosen = data.draw(st.permutations(points))[: data.draw(st.integers(threshold, len(points)))]
    assert join({point: shares[point] for point in chosen}) == secret


def joined_or_none(shares):
    try:
        return join(shares)
    except ValueError:
        return None


def test_fewer_shares_fit_every_secret():
    """Whatever the secret is supposed to be, some last share would give it: fewer than the threshold say nothing."""
    shares = split(secrets.token_bytes(32), 3, [1, 2, 3])
    weights = shamir.weights_at_zero([1, 2, 3])
    known = sum(weights[place] * int.from_bytes(shares[place + 1], "little") for place in range(2))
    for supposed in (bytes(32), b"\xff" * 32, b"rookery!" * 4):
        last = (int.from_bytes(supposed, "little") - known) * pow(weights[2], -1, PRIME) % PRIME
        assert join({1: shares[1], 2: shares[2], 3: last.to_bytes(33, "little")}) == supposed
    assert joined_or_none({1: shares[1], 2: shares[2]}) != join(shares)
    with pytest.raises(ValueError, match="got another"):
        join({1: shares[1], 2: b"\xff" * 33})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"short", 2, [1, 2]), "secret must have 32 bytes, got 5"),
        ((bytes(32), 3, [1, 2]), r"threshold must be in 1\.\.2, .* got 3"),
        ((bytes(32), 1, [0, 1]), "points must be different positive numbers"),
        ((bytes(32), 1, [1, 1]), "points must be different positive numbers"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        split(*arguments)


# --- the ring -----------------------------------------------------------------------------------------------------------


@examples(80, 4000)
@given(
    seed=st.integers(0, 2**32 - 1),
    parties=st.integers(1, 40),
    bits=st.integers(8, 40),
    scale=st.floats(1e-6, 1.0),
    kind=st.sampled_from([np.float32, np.float64]),
)
def test_a_sum_is_off_by_half_a_multiple_for_each_party(seed, parties, bits, scale, kind):
    """A float64 holds 53 bits of the sum, so that its own rounding is all that comes on top."""
    most = min(largest(parties, bits), 2.0**30) * scale
    numbers = (np.random.default_rng(seed).uniform(-most, most, (parties, 7))).astype(kind) * kind(0.999)
    total = np.sum([encode(row, parties, bits) for row in numbers], axis=0, dtype=np.uint64)
    exact = [sum(map(_fraction, column)) for column in numbers.T]
    for found, wanted in zip(decode(total, bits), exact, strict=True):
        rounding = 2.0**-53 * abs(float(wanted))
        assert abs(float(_fraction(found) - wanted)) <= parties * 2.0 ** -(bits + 1) + rounding


def _fraction(number):
    from fractions import Fraction

    return Fraction(float(number))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_is_what_still_fits(sign):
    """All parties just below it: the sum is right. At it, it would be the smallest number instead."""
    for parties, bits in itertools.product((1, 3, 200), (16, 32)):
        most = np.nextafter(largest(parties, bits), 0)
        total = np.sum([encode([sign * most], parties, bits)] * parties, axis=0, dtype=np.uint64)
        assert decode(total, bits)[0] == pytest.approx(sign * most * parties, rel=1e-9)


def test_what_is_rounded_up_to_the_bound_is_refused():
    """Of so many parties the bound is a whole multiple, and the number before it is rounded to it."""
    most = np.nextafter(largest(4096, 32), 0)
    with pytest.raises(ValueError, match="cannot overflow"):
        encode([most], 4096)
    total = np.uint64(4096) * encode([largest(4096, 32) - 2.0**-32], 4096)
    assert decode(total)[0] == 2.0**31 - 4096 * 2.0**-32


@pytest.mark.parametrize("bad", [2.0**31 / 4, -(2.0**31) / 4, np.inf, np.nan, 1e300])
def test_what_would_overflow_is_refused(bad):
    with pytest.raises(ValueError, match=r"values must be finite and below 5\.3\d+e\+08 .* over 4 parties"):
        encode([0.0, bad], 4)


def test_options_that_cannot_work_are_refused():
    for threshold in (0.5, 0.0, -1, 1.01, 3, float("nan"), True, "0.6", None):
        with pytest.raises(ValueError, match=r"threshold must be a share in \(0\.5, 1\].*got"):
            SecureSum(threshold)
    for bits in (0, 53, 32.0, True):
        with pytest.raises(ValueError, match=r"fraction_bits must be an integer in 1\.\.52, got"):
            SecureSum(fraction_bits=bits)
    assert [SecureSum(0.6).needed(n) for n in (3, 4, 5, 10, 200)] == [3, 3, 3, 6, 120], "never a sum of two"
    assert SecureSum(1.0).needed(7) == 7
    assert type(SecureSum(1).threshold) is float
    assert all(2 * SecureSum(0.51).needed(n) > n for n in range(3, 300))
