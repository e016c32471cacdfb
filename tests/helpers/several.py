"""Several processes of one group, each a script of a few lines, on this machine; none is left behind."""

import json
import os
import queue
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rookery.processes import free_port

ROOT = Path(__file__).parent.parent.parent

PRELUDE = f"""
import json, math, os, signal, sys, time, types
package = types.ModuleType("rookery")  # without all that ``import rookery`` imports: seconds in each process
package.__path__ = [{str(ROOT / "rookery")!r}]
sys.modules["rookery"] = package
from rookery import processes
from rookery.processes import group as of_group, joining, meeting
from rookery.stopping import Interrupted
number, count, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def join(**more):
    return processes.join(**{{"coordinator": f"127.0.0.1:{{port}}", "processes": count, "process": number, **more}})

def tell(value):
    print(json.dumps(value), flush=True)

def raised(work):
    try:
        work()
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return None

def endless(group):
    "Never returns: each device waits for those of the other processes, again and again."
    from functools import partial
    import jax, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("c",), devices=devices)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P("c"), P()), out_specs=P("c"))
    def loop(x, times):
        return jax.lax.fori_loop(0, times, lambda i, x: x / 2 + jax.lax.psum(x, "c") / 10, x)

    place = NamedSharding(mesh, P("c"))
    x = jax.make_array_from_callback((len(devices),), place, lambda index: np.ones(len(devices), np.float32)[index])
    loop(x, 3).block_until_ready()
    tell("ready")
    loop(x, 2**30).block_until_ready()

def stuck():
    "Never returns, in compiled code, whatever happens to others."
    import jax
    tell("ready")
    jax.jit(lambda x: jax.lax.while_loop(lambda x: x >= 0, lambda x: (x + 1) % 7, x))(1).block_until_ready()
"""


class Child:
    """One of them."""

    def __init__(self, script: str, arguments: Sequence[object], environment: Mapping[str, str]):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "OMPI_", "SLURM_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, "JAX_PLATFORMS": "cpu", **environment},
        )
        self.errors = ""
        self._told: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if not line.startswith("[Gloo]"):
                self._told.put(line)
        self._told.put(None)

    def _read_errors(self) -> None:
        self.errors = self.process.stderr.read()

    def told(self, seconds: float = 60) -> Any:
        """The next that it tells."""
        line = self._told.get(timeout=seconds)
        assert line is not None, f"ended with {self.process.wait()}: {self.ended()[1]}"
        return json.loads(line)

    def ended(self, seconds: float = 60) -> tuple[int, str]:
        """Its status and what it wrote to stderr."""
        status = self.process.wait(seconds)
        self._reader.join(10)
        return status, self.errors


@contextmanager
def several(
    scripts: Sequence[str],
    numbers: Sequence[int] | None = None,
    counts: Sequence[int] | None = None,
    environments: Sequence[Mapping[str, str]] | None = None,
    port: int | None = None,
) -> Iterator[list[Child]]:
    """A process for each script: process 0, 1, … of as many, unless numbers and counts say otherwise."""
    port, total = port or free_port(), len(scripts)
    children = []
    try:
        for i, script in enumerate(scripts):
            own = (numbers or range(total))[i], (counts or [total] * total)[i], port
            children.append(Child(script, own, {} if environments is None else environments[i]))
        yield children
    finally:
        for child in children:
            child.process.kill()
            child.process.wait()
