"""What differs by the kind of device that JAX computes on: here, and nowhere else in the package.

Nothing is asked when a module is imported: the first question starts the device.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Kind = Literal["cpu", "gpu", "tpu"]

_pretended: Kind | None = None
"""A variable of the module and not of a context: a pool's threads must see it as well."""


def kind() -> Kind:
    """What programs run on. Any accelerator that is no TPU counts as a GPU, whatever its maker calls it."""
    if _pretended is not None:
        return _pretended
    told = jax.default_backend()
    return "cpu" if told == "cpu" else "tpu" if told == "tpu" else "gpu"


@contextmanager
def pretend(other: Kind) -> Iterator[None]:
    """For tests: inside, the device is said to be another one, and programs for that one are traced here.

    Compiled programs do not know what they were traced for, so all are dropped on the way in and out.
    """
    global _pretended
    before, _pretended = _pretended, other
    jax.clear_caches()
    try:
        yield
    finally:
        _pretended = before
        jax.clear_caches()


def name() -> str:
    """This process's device as JAX names it: a GPU's or TPU's model, or "cpu"."""
    told: str = jax.local_devices()[0].device_kind
    return told


def cores() -> list[int]:
    """The numbers of the cores that this process may use; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(cores()) or os.cpu_count() or 1


def threads() -> int:
    """How many lanes or small programs that do not need each other are computed at a time, each by a thread.

    A small program leaves cores idle. An accelerator computes one program after the other, whoever asks for it.
    """
    return usable_cores() if kind() == "cpu" else 1


def seconds() -> float:
    """A clock of what this process computes: on CPUs the time that its cores have worked, on average.

    Other work on the machine does not count there. An accelerator's work is no time of a core: there it is the wall's clock.
    """
    return time.process_time() / usable_cores() if kind() == "cpu" else time.perf_counter()


def own_convolution() -> bool:
    """Whether ``lax.conv_general_dilated`` is the way to convolve, also under ``vmap`` over kernels.

    There it is a grouped convolution, which an accelerator's library has. On a CPU, patches and one batched product are
    many times as fast.
    """
    return kind() != "cpu"


def quick_compilation() -> dict[str, bool | int]:
    """Options of the compiler for programs that run a few times. They are LLVM's, which makes a CPU's programs alone."""
    if kind() != "cpu":
        return {}
    return {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def waiting(data: Any) -> Any:
    """Clients' data where they wait for a run: in the host's memory, from where each device takes what it computes with."""
    return jnp.asarray(data) if kind() == "cpu" or jnp.issubdtype(data.dtype, jax.dtypes.prng_key) else np.asarray(data)


def let_compute() -> None:
    """Lets no other thread of this process take a core away from this one because it has been woken.

    Sums over processes on CPUs are made by Gloo, whose receiving thread wakes in the middle of a send, cannot have the lock
    that the sender holds, and asks for it in a loop. On one core the sender does not run meanwhile, until a time slice of
    the kernel ends: 4 ms for a sum that takes 0.2. Threads of the kind "batch" wait until the core is free.
    """
    tasks = Path("/proc/self/task")
    if kind() != "cpu" or not hasattr(os, "SCHED_BATCH") or not tasks.is_dir():
        return
    for task in tasks.iterdir():
        if int(task.name) != threading.get_native_id():
            with suppress(OSError):  # it has ended, or a container forbids it
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))


def share() -> None:
    """For one of several processes on a machine, before it asks for the device: it takes memory as it needs it.

    JAX would take three quarters of a GPU's memory at once, and the next process would find none.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
