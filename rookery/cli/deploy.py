"""``rookery deploy``: a federation on real machines: the server's run, an app for Flower, certificates."""

import ipaddress
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Federations on real machines.", no_args_is_help=True)

Problem = Annotated[str, typer.Option(help="The problem: package.module, a Python file, or a run's TOML file.")]


@app.command("run")
def run_command(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    problem: Problem,
    out: Annotated[
        Path, typer.Option(help="The folder of the run; if it holds an unfinished one, it is gone on with.")
    ],
    algorithm: Annotated[str, typer.Option(help="Algorithm.")] = "MeFBO",
    rates: Annotated[str, typer.Option(help='Its rates: "eta_x=0.1 eta_y=0.2".')] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 50,
    every: Annotated[int, typer.Option(min=1, help="Rounds between evaluations.")] = 10,
    participants: Annotated[str, typer.Option(help="Clients in a round: a number, a probability, or all.")] = "all",
    local_steps: Annotated[str, typer.Option(help="Local steps: a number, or a range like 5-15.")] = "1",
    batch_size: Annotated[str, typer.Option(help="Of minibatches: a number, all, or LOWER,UPPER.")] = "all",
    seed: Annotated[int, typer.Option(help="The seed.")] = 0,
    quorum: Annotated[
        str, typer.Option(help="The least share (0.5; 1.0 is all) or number (1, 2, ...) of participants counted.")
    ] = "0.5",
    attempts: Annotated[int, typer.Option(min=1, help="How often a round below the quorum is tried in all.")] = 5,
    over_selection: Annotated[
        float, typer.Option(min=1.0, help="1.3 asks 130 % of the participants and counts the first to answer.")
    ] = 1.0,
    deadline: Annotated[float, typer.Option(help="Seconds to wait for an exchange.")] = 120.0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for all clients at the start.")] = 600.0,
    root_certificates: Annotated[Path | None, typer.Option(help="The root certificate of the SuperLink.")] = None,
    node_keys: Annotated[Path | None, typer.Option(help="A TOML file: the clients of each node's key.")] = None,
) -> None:
    """Be the server of a federation whose clients live on nodes (rookery node), through a SuperLink that is there.

    Example: rookery deploy run --superlink 127.0.0.1:8000 --problem my_problem.py --algorithm FedBiO --out runs/first
    """
    from rookery.engines.flower.engine import Flower
    from rookery.experiment.deployed import run_deployed
    from rookery.experiment.settings import parse_value
    from rookery.experiment.source import open_site

    config = {
        "algorithm": algorithm, "rates": rates, "rounds": rounds, "every": every, "participants": participants,
        "local-steps": local_steps, "batch-size": batch_size, "seed": seed,
    }  # fmt: skip
    least = parse_value(quorum)
    if not isinstance(least, int | float):
        raise ValueError(f"--quorum must be a share such as 0.5 or a number such as 2, got {quorum!r}")
    engine = Flower(
        superlink=superlink, certificates=root_certificates, keys=node_keys, quorum=least, attempts=attempts,
        over_selection=over_selection, deadline=deadline, patience=patience,
    )  # fmt: skip
    solution = run_deployed(open_site(problem), config, engine, out, Path(problem).stem)
    typer.echo(f"{solution.rounds} rounds are done: {out}")


# --- an app for Flower --------------------------------------------------------------------------------------------------


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.")],
    problem: Problem,
) -> None:
    """Write an ordinary Flower App for a problem of yours (a Python file) or for a run's settings (a TOML file).

    Example: rookery deploy init hospital-app --problem my_problem.py
    """
    from rookery.experiment.deployed import DEFAULTS

    source = Path(problem)
    if source.suffix not in (".py", ".toml") or not source.is_file():
        raise ValueError(f"--problem must be a Python file or a TOML file of settings that exists, got {problem!r}")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} must be a new or empty folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    package = folder / "federation"
    package.mkdir(parents=True)
    inside = "problem.py" if source.suffix == ".py" else "settings.toml"
    shutil.copyfile(source, package / inside)
    config = {
        **DEFAULTS,
        "quorum": 0.5,
        "attempts": 5,
        "over-selection": 1.0,
        "deadline": 600.0,
        "patience": 600.0,
        "node-keys": "",
        "out": f"runs/{name}",
    }
    files = {
        "federation/__init__.py": '"""The app of a federation."""\n',
        "federation/client_app.py": _APP.format(side="client", inside=inside, more=""),
        "federation/server_app.py": _APP.format(side="server", inside=inside, more=f', "{name}"'),
        "pyproject.toml": _PROJECT.format(
            name=name, config="\n".join(_toml(key, each) for key, each in config.items())
        ),
        "README.md": _README.format(name=name, inside=inside),
    }
    for path, text in files.items():
        (folder / path).write_text(text)
    typer.echo(f"{folder} is a Flower App; {folder / 'README.md'} says how to run it.")


def _toml(key: str, value: Any) -> str:
    return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"


_APP = '''"""The {side}'s side of the federation."""

from pathlib import Path

from rookery.engines.flower.app import {side}_app
from rookery.engines.flower.source import open_site

PROBLEM = str(Path(__file__).with_name("{inside}"))

app = {side}_app(lambda: open_site(PROBLEM){more})
'''

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "A federated nested optimization problem, solved with Rookery"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["rookery[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["federation"]

[tool.flwr.app]
publisher = "rookery"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
{config}
"""

_README = """# {name}

A Flower App that solves the problem in `federation/` with an algorithm of Rookery. Rookery and Flower must be installed
where the server runs and on every node: `pip install "rookery[flower]"`. Everything below is started in this folder.

    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

## On one machine

In one terminal the SuperLink, in one more for each client a SuperNode (ports must differ):

    flower-superlink --insecure --host 127.0.0.1 --port 8000 --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9100 --node-config 'partition-id=0 folder="nodes/0"'
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9101 --node-config 'partition-id=1 folder="nodes/1"'

Name the SuperLink in `~/.flwr/config.toml`:

    [superlink.here]
    address = "127.0.0.1:8000"
    insecure = true

and run, with an absolute path for the results:

    flwr run . here --run-config 'algorithm="MeFBO" rounds=20 out="/tmp/{name}"' --stream

The folder of the run has the same files as every run of Rookery; the same command goes on with one that was interrupted.

## On several machines

`rookery deploy certs certs --host superlink.example.org --nodes 2` makes certificates and keys. Then the SuperLink is

    flower-superlink --ssl-ca-certfile certs/ca.pem --ssl-certfile certs/server.pem --ssl-keyfile certs/server.key \\
        --enable-supernode-auth --host 0.0.0.0 --port 8000 --disable-runtime-dependency-installation

each node's key is registered once (`flwr supernode register certs/node-0.pub here --name site-0`), and a node is

    flower-supernode --superlink superlink.example.org:8000 --root-certificates ca.pem \\
        --auth-supernode-private-key node-0.key --node-config 'partition-id=0 folder="nodes/0"'

`node-keys="/path/keys.toml"` in the run's configuration lists the clients of each key; then no node can claim another's:

    [nodes]
    "node-0.pub" = "0"
    "node-1.pub" = "1"

Whoever reaches the SuperLink's Control API can submit a run, whose code SuperNodes execute: put a proxy in front of it
that lets only `/v1/fleet/` in from outside.

## Faster

A SuperNode starts a new process for every message, which takes seconds. A node of Rookery keeps its process and its compiled
functions, and runs only code that is installed on it:

    flower-superlink --insecure --host 127.0.0.1 --port 8000 --isolation process --disable-runtime-dependency-installation
    rookery node --superlink 127.0.0.1:8000 --problem federation/{inside} --partition 0
    rookery deploy run --superlink 127.0.0.1:8000 --problem federation/{inside} --rounds 20 --out runs/fast
"""


# --- certificates -------------------------------------------------------------------------------------------------------


@app.command("certs")
def certs(
    folder: Annotated[Path, typer.Argument(help="A new folder for certificates and keys.")],
    host: Annotated[list[str], typer.Option(help="A name or address of the SuperLink; several are possible.")],
    nodes: Annotated[int, typer.Option(min=0, help="How many nodes' keys to make.")] = 0,
    days: Annotated[int, typer.Option(min=1, help="How long the certificates are valid.")] = 365,
) -> None:
    """Make a certificate authority, the SuperLink's certificate, and a pair of keys for each node.

    Example: rookery deploy certs certs --host superlink.example.org --nodes 3
    """
    from rookery.engines.flower.launch.processes import require_flower

    require_flower()  # whose cryptography package is used
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} must be a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_certificates(folder, host, days)
    for number in range(nodes):
        write_node_key(folder, f"node-{number}")
    typer.echo(
        f"{folder}: ca.pem goes to every node; server.pem, server.key and ca.pem to the SuperLink; keep ca.key safe."
    )


def write_certificates(folder: Path, hosts: list[str], days: int) -> None:
    """``ca.pem``, ``ca.key``, ``server.pem`` and ``server.key``: ECDSA over P-256."""
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
    """``name.key`` and ``name.pub`` in OpenSSH's format: ECDSA over P-384, as Flower asks for."""
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
