"""``rookery node``: hosts clients for a SuperLink until it is stopped."""

import logging
import os
import platform
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from rookery.datasets.files import DataError, user_cache


def node(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    problem: Annotated[str, typer.Option(help="The problem: package.module, a Python file, or a run's TOML file.")],
    partition: Annotated[str, typer.Option(help="The clients that live here, like 0, 0,3 or 0-4.")],
    folder: Annotated[Path, typer.Option(help="Where clients' state is stored.")] = Path("node"),
    name: Annotated[str, typer.Option(help="What this node is called in the server's log.")] = "",
    root_certificates: Annotated[Path | None, typer.Option(help="The root certificate of the SuperLink.")] = None,
    key: Annotated[Path | None, typer.Option(help="The private key of this node.")] = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to go on asking to be let in.")] = 120.0,
) -> None:
    """Host clients: load their data here, and answer the server until this process is stopped.

    Example: rookery node --superlink 127.0.0.1:8000 --problem my_problem.py --partition 0-4
    """
    from rookery.engines.flower.engine import is_loopback
    from rookery.engines.flower.launch.processes import require_flower
    from rookery.engines.flower.node import Node
    from rookery.engines.flower.wire.listing import partitions
    from rookery.experiment.source import open_site

    require_flower()
    if root_certificates is None and not is_loopback(superlink):
        raise ValueError(
            f"--root-certificates must be given for {superlink}: only a SuperLink on this machine is spoken to without "
            "TLS; rookery deploy certs makes some"
        )
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
    from rookery.engines.flower.wire.adapter.node import serve

    keep_compiled()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else every look for messages is a line
    clients = partitions(partition, "--partition")
    hosted = Node(lambda: open_site(problem), clients, folder, name)
    stop = threading.Event()

    def end(*_: Any) -> None:
        stop.set()
        raise SystemExit(0)  # it may be waiting for a SuperLink that does not come back

    signal.signal(signal.SIGTERM, end)
    root = None if root_certificates is None else root_certificates.read_bytes()

    def admitted(number: int) -> None:
        typer.echo(f"{hosted.name} (process {os.getpid()}, Flower's node {number}) hosts clients {partition}")

    serve(superlink, hosted.answer, stop, certificates=root, key=key, patience=patience, admitted=admitted)


def keep_compiled() -> None:
    """Compiled functions outlive the process: a node that starts again begins with what the last one had.

    They are kept in the user's cache, apart for each machine, or where ``JAX_COMPILATION_CACHE_DIR`` says.
    """
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        try:
            folder = user_cache() / "compiled" / platform.node()
        except DataError:  # a user without a home: every start compiles anew
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


if __name__ == "__main__":
    typer.run(node)
