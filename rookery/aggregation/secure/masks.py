"""The primitives, all from ``cryptography``: X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305.

Every key is used for one purpose, one exchange and one direction: all of these stand in the text from which HKDF derives
it, so that a nonce of zeros is never used twice with a key.
"""

from typing import Any

import numpy as np

KEY = 32
"""Bytes of a key, a seed, a public key."""


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key for this purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived: bytes = HKDF(algorithm=SHA256(), length=KEY, salt=None, info=purpose).derive(secret)
    return derived


class Pair:
    """A fresh pair of X25519 keys, or that of a given secret."""

    def __init__(self, secret: bytes | None = None):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private: Any = (
            X25519PrivateKey.generate() if secret is None else X25519PrivateKey.from_private_bytes(secret)
        )
        self.public: bytes = self._private.public_key().public_bytes_raw()

    @property
    def secret(self) -> bytes:
        """The private key."""
        secret: bytes = self._private.private_bytes_raw()
        return secret

    def agree(self, public: bytes) -> bytes:
        """The secret that this pair and another share.

        Raises:
            ValueError: the other key is of small order, and the secret would be known to everybody.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            agreed: bytes = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise ValueError(f"a public key must be a point of X25519 of full order, got {public.hex()}") from None
        return agreed


class Stream:
    """ChaCha20 keystreams of one length as elements of the ring, added to and subtracted from a vector."""

    def __init__(self, length: int):
        self._zeros = bytes(8 * length)
        self._buffer = bytearray(8 * length)
        self._words = np.frombuffer(self._buffer, "<u8")

    def of(self, seed: bytes) -> np.ndarray:
        """The keystream of a seed; the next call overwrites it."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update_into(self._zeros, self._buffer)
        return self._words


def seal(key: bytes, message: bytes, about: bytes) -> bytes:
    """A message that only whoever has the key can read or change; ``about`` is not in it but must be the same."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    sealed: bytes = ChaCha20Poly1305(key).encrypt(bytes(12), message, about)
    return sealed


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """What was sealed.

    Raises:
        ValueError: it was not sealed with this key and for this purpose.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        message: bytes = ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        raise ValueError(
            "sealed must have been made with the same key, got a message that was changed or is for another"
        ) from None
    return message
