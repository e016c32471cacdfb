"""The certificates and keys of a federation. They need the package cryptography, which comes with Flower."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def write_certificates(folder: Path, hosts: list[str], days: int) -> None:
    """Writes ``ca.pem``, ``ca.key``, ``server.pem`` and ``server.key``: ECDSA over P-256."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        begin = datetime.now(UTC) - timedelta(minutes=5)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(authority).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(begin).not_valid_after(begin + timedelta(days=days))
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key())
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return made.add_extension(identifier, critical=False)

    authority = named("Rookery federation")
    root, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    usage = {"digital_signature", "key_cert_sign", "crl_sign"}
    flags = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    flags += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    ca = builder(authority, root).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(x509.KeyUsage(**{flag: flag in usage for flag in flags}), critical=True)
    names = x509.SubjectAlternativeName(
        [_general_name(each) for each in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    )
    leaf = builder(named(hosts[0]), server).add_extension(names, critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    for name, certificate, key in (("ca", ca, root), ("server", leaf, server)):
        signed = certificate.sign(root, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write_secret(folder / f"{name}.key", private)


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_node_key(folder: Path, name: str) -> None:
    """Writes ``name.key`` and ``name.pub`` in OpenSSH's format: ECDSA over P-384, as Flower requires."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    _write_secret(folder / f"{name}.key", private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + b"\n")


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
