"""The folder of an ordinary Flower App for a problem: its package, its pyproject.toml, its README."""

import re
import shutil
from pathlib import Path
from typing import Any

from rookery.experiment.deployed import DEFAULTS
from rookery.experiment.source import COPY


def write_flower_app(folder: Path, problem: Path) -> None:
    """Writes an app for a Python file or a TOML file of settings into a folder that is new or empty."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    package = folder / "federation"
    package.mkdir(parents=True)
    inside = "problem.py" if problem.suffix == ".py" else "settings.toml"
    shutil.copyfile(problem, package / inside)
    copy = problem.with_name(COPY)
    if problem.suffix == ".toml" and copy.is_file():  # of a run of a module, which other machines do not have
        shutil.copyfile(copy, package / COPY)
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


def _toml(key: str, value: Any) -> str:
    return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"


_APP = '''"""The {side}'s side of the federation."""

from pathlib import Path

from rookery.experiment.flower_app import {side}_app
from rookery.experiment.sites import open_site

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

A Flower App that solves the problem in `federation/` with an algorithm of Rookery. Install Rookery and Flower on the
server's machine and on every node: `pip install "rookery[flower]"`. Run everything below in this folder.

    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

## On one machine

Start the SuperLink in one terminal, and a SuperNode in another one for each client (ports must differ):

    flower-superlink --insecure --host 127.0.0.1 --port 8000 --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9100 --node-config 'partition-id=0 folder="nodes/0"'
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9101 --node-config 'partition-id=1 folder="nodes/1"'

Name the SuperLink in `~/.flwr/config.toml`:

    [superlink.here]
    address = "127.0.0.1:8000"
    insecure = true

Then run, with an absolute path for the results:

    flwr run . here --run-config 'algorithm="MeFBO" rounds=20 out="/tmp/{name}"' --stream

The folder of the run has the same files as every run of Rookery; the same command continues a run that was interrupted.

## On several machines

`rookery deploy certs certs --host superlink.example.org --nodes 2` makes certificates and keys. Start the SuperLink with

    flower-superlink --ssl-ca-certfile certs/ca.pem --ssl-certfile certs/server.pem --ssl-keyfile certs/server.key \\
        --enable-supernode-auth --host 0.0.0.0 --port 8000 --disable-runtime-dependency-installation

register each node's key once (`flwr supernode register certs/node-0.pub here --name site-0`), and start a node with

    flower-supernode --superlink superlink.example.org:8000 --root-certificates ca.pem \\
        --auth-supernode-private-key node-0.key --node-config 'partition-id=0 folder="nodes/0"'

`node-keys="/path/keys.toml"` in the run's configuration lists the clients of each key, so that no node can claim another's:

    [nodes]
    "node-0.pub" = "0"
    "node-1.pub" = "1"

Anyone who can reach the SuperLink's Control API can submit a run whose code SuperNodes execute: put a proxy in front of
it that lets only `/v1/fleet/` in from outside.

## Faster

A SuperNode starts a new process for every message, which takes seconds. A Rookery node keeps its process and its compiled
functions, and runs only code that is installed on it:

    flower-superlink --insecure --host 127.0.0.1 --port 8000 --isolation process --disable-runtime-dependency-installation
    rookery node --superlink 127.0.0.1:8000 --problem federation/{inside} --partition 0
    rookery deploy run --superlink 127.0.0.1:8000 --problem federation/{inside} --rounds 20 --out runs/fast
"""
