"""An ordinary Flower App: ``ServerApp`` and ``ClientApp`` for any problem module and any registered algorithm.

Only Flower's public API. A stock SuperNode starts a process for every message, so a node finds all it needs on disk.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from rookery.engines.flower.engine import Over
from rookery.engines.flower.node import Node
from rookery.engines.flower.site import Site
from rookery.engines.flower.wire.claims import KeyedGrid, read_owners
from rookery.engines.flower.wire.grid import OverGrid
from rookery.engines.flower.wire.grid import client_app as _handing_on
from rookery.experiment.deployed import run_deployed

OpenSite = Callable[[], Site]


def client_app(open_site: OpenSite) -> ClientApp:
    """The app of a node: ``--node-config 'partition-id=3 folder="..."'``; clients' state is stored in the folder."""
    nodes: dict[Path, Node] = {}

    def answer(request: bytes, context: Context) -> bytes:
        config = context.node_config
        if "partition-id" not in config:
            raise ValueError('the SuperNode must be started with --node-config "partition-id=..."')
        partition = int(str(config["partition-id"]))
        folder = Path(str(config.get("folder", f"rookery-node-{partition}"))).resolve()
        if folder not in nodes:
            jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))  # the next process finds it there
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            nodes[folder] = Node(open_site, [partition], folder, f"client-{partition}")
        return nodes[folder].answer(request)

    return _handing_on(answer)


def server_app(open_site: OpenSite, title: str) -> ServerApp:
    """The app of the server; the run's configuration names the algorithm and the numbers of the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        site, quorum, listed = open_site(), config["quorum"], str(config["node-keys"])
        pace = 0.1, 1.0  # seconds between looks for answers, at first and at most
        owners = read_owners(Path(listed).expanduser(), site.n) if listed else None
        engine = _Lasting(
            transport=OverGrid(grid, *pace) if owners is None else KeyedGrid(grid, owners, *pace),
            quorum=quorum if isinstance(quorum, int) else float(str(quorum)),
            attempts=int(str(config["attempts"])),
            over_selection=float(str(config["over-selection"])),
            deadline=float(str(config["deadline"])),
            patience=float(str(config["patience"])),
            collect=not config["privacy"],
        )
        folder = Path(str(config["out"])).expanduser().resolve()
        solution = run_deployed(site, config, engine, folder, title)
        print(f"round {solution.rounds}: {solution.history.last}; the run is in {folder} (process {os.getpid()})")

    return app


@dataclass(frozen=True)
class _Lasting(Over):
    """Nodes keep clients' state: the run can be gone on with by another ``flwr run`` with the same ``out``."""

    @property
    def lasting(self) -> bool:
        return True

    @property
    def ours(self) -> bool:
        return False
