"""``rookery node``: hosts clients of a federation until it is stopped."""

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from rookery.aggregation.secure.identity import Identity
from rookery.cli.options import Problem, RootCertificates, SuperLink
from rookery.devices import share
from rookery.engines.flower.engine import is_loopback
from rookery.engines.flower.launch.processes import require_flower
from rookery.engines.flower.node import Node
from rookery.engines.flower.wire.listing import partitions
from rookery.experiment.compiled import keep_compiled
from rookery.experiment.sites import open_site


def command(
    superlink: SuperLink,
    problem: Problem,
    partition: Annotated[str, typer.Option(help="The clients hosted here, such as 0 or 0,3 or 0-4.")],
    folder: Annotated[Path, typer.Option(help="Folder for the clients' state.")] = Path("node"),
    name: Annotated[str, typer.Option(help="The name of this node in the server's log.")] = "",
    root_certificates: RootCertificates = None,
    key: Annotated[Path | None, typer.Option(help="The private key of this node.")] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            help="The list of all nodes' public keys, as the server has it with --node-keys but from a hand that you "
            "trust. This node then takes part in secure sums only, and only with nodes of the list."
        ),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(
            help="The least number of listed nodes, this one included, that it sums with; by default more than half."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="The least threshold, a share of its nodes, of a sum that it takes part in; give more than 0.667 where the "
            "server may lie."
        ),
    ] = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to keep trying to join.")] = 120.0,
) -> None:
    """Host clients: load their data here and answer the server until this process is stopped.

    Example: rookery node --superlink 127.0.0.1:8000 --problem my_problem.py --partition 0-4
    """
    require_flower()
    if root_certificates is None and not is_loopback(superlink):
        raise ValueError(
            f"--root-certificates must be given for {superlink}: only a SuperLink on this machine can do without TLS; "
            "rookery deploy certs makes certificates"
        )
    for option, given in (("--least", least), ("--threshold", threshold)):
        if given is not None and peers is None:
            raise ValueError(f"{option} must be given with --peers, whose nodes it is about, got {given}")
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
    from rookery.engines.flower.wire.adapter.node import serve  # which imports Flower

    keep_compiled()
    share()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # which logs a line for every poll
    clients = partitions(partition, "--partition")
    identity = None if peers is None else _identity(key, peers, least, 0.5 if threshold is None else threshold)
    hosted = Node(lambda: open_site(problem), clients, folder, name, identity)
    stop = threading.Event()

    def end(*_: Any) -> None:
        stop.set()
        raise SystemExit(0)  # it may be waiting for a SuperLink that never comes back

    signal.signal(signal.SIGTERM, end)
    root = None if root_certificates is None else root_certificates.read_bytes()

    def admitted(number: int) -> None:
        typer.echo(f"{hosted.name} (process {os.getpid()}, Flower's node {number}) hosts clients {partition}")

    serve(superlink, hosted.answer, stop, certificates=root, key=key, patience=patience, admitted=admitted)


def _identity(key: Path | None, peers: Path, least: int | None, threshold: float) -> Identity:
    """Who this node is, and with whom it sums."""
    from rookery.engines.flower.wire.claims import read_listed

    if key is None:
        raise ValueError("--key must be given with --peers: it is what the others know this node by")
    return Identity.read(key, [known for known, _ in read_listed(peers)], least, threshold)


if __name__ == "__main__":
    typer.run(command)
