"""Who speaks: the long-lived keys of parties, which sign the keys of an exchange."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rookery.aggregation.secure.options import LEAST


class Identity:
    """A party's own private key, and the public keys of all parties that may take part.

    ``least`` is the smallest number of parties that it sums with, itself included; by default more than half of those
    that are listed. ``threshold`` is the least share of them that must stay. Both are the party's own: a server that lies
    could else choose a sum so small, or a threshold so low, that a few colluders are enough.

    A signature is the fingerprint of the key that made it, followed by the signature itself (ECDSA with SHA-256).
    """

    def __init__(self, private: Any, peers: Iterable[bytes], least: int | None = None, threshold: float = 0.5):
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

        if not isinstance(private, EllipticCurvePrivateKey):
            raise ValueError(f"the key of a node must be an ECDSA key, got {type(private).__name__}")
        self._private = private
        self._peers = {hashlib.sha256(peer).digest(): load_der_public_key(peer) for peer in peers}
        own = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.fingerprint = hashlib.sha256(own).digest()
        if self.fingerprint not in self._peers:
            raise ValueError("the list of node keys must have this node's own key, got a list without it")
        listed = len(self._peers)
        if least is not None and not LEAST <= least <= listed:
            raise ValueError(f"least must be in {LEAST}..{listed}, the number of listed keys, got {least}")
        if not 0.5 <= threshold <= 1:
            raise ValueError(f"threshold must be a share in [0.5, 1], got {threshold}")
        self.least = listed // 2 + 1 if least is None else least
        self.threshold = threshold

    @classmethod
    def read(cls, key: Path, peers: Iterable[bytes], least: int | None = None, threshold: float = 0.5) -> "Identity":
        """From a private key in OpenSSH's format, and the public keys of all (DER)."""
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        return cls(load_ssh_private_key(key.read_bytes(), None), peers, least, threshold)

    def sign(self, message: bytes) -> bytes:
        """Our signature of a message."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        signature: bytes = self._private.sign(message, ECDSA(SHA256()))
        return self.fingerprint + signature

    def signer(self, signature: bytes, message: bytes) -> bytes | None:
        """The fingerprint of the listed key that signed a message; None if none did."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        who, made = signature[:32], signature[32:]
        key: Any = self._peers.get(who)
        if key is None:
            return None
        try:
            key.verify(made, message, ECDSA(SHA256()))
        except (InvalidSignature, AttributeError, TypeError):  # or a listed key that is of another kind
            return None
        return who
