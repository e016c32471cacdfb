"""A command that is one of several processes, or uses several devices: the way in and the way out."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import jax
import typer

from rookery import processes


@contextmanager
def joined(
    coordinator: str | None, count: int | None, number: int | None, distributed: bool, devices: str | None
) -> Iterator[int | Literal["all"] | None]:
    """What ``rk.Simulator(devices=...)`` is to be told, while this process is one of those that the options ask for.

    It is None if they ask for nothing, a number of devices in one process, and "all" in several. Nothing may have been
    computed before. An error inside is one of all processes, and all leave together.

    Args:
        coordinator: --coordinator.
        count: --processes.
        number: --process.
        distributed: --distributed.
        devices: --devices.
    """
    _check(coordinator, count, number, distributed)
    wanted = _read(devices)
    if count == 1 and number == 0:
        count = None  # a group of one
    if not distributed and count is None:
        yield _alone(wanted)
        return
    if isinstance(wanted, int):
        _make_devices(wanted)
    done: typer.Exit | None = None
    with _quiet():
        group = processes.join(coordinator, count, number)
        try:
            with group.together():
                _check_devices(wanted)
                try:
                    yield "all" if group.count > 1 else _alone(wanted)
                except typer.Exit as over:  # no error, and not everybody's business
                    done = over
        except BaseException as error:
            processes.leave(error)
            raise
        processes.leave()
    if done is not None:
        raise done


def _check(coordinator: str | None, count: int | None, number: int | None, distributed: bool) -> None:
    given = {"--coordinator": coordinator, "--processes": count, "--process": number}
    there = [name for name, value in given.items() if value is not None]
    missing = [name for name, value in given.items() if value is None]
    if distributed and there:
        raise ValueError(f"--distributed asks the cluster for everything: leave out {' and '.join(there)}")
    if there and missing:
        raise ValueError(f"{' and '.join(there)} need{'s' * (len(there) == 1)} {' and '.join(missing)} as well")


def _read(devices: str | None) -> int | Literal["all"] | None:
    if devices is None or devices == "all":
        return devices  # type: ignore[return-value]
    if not (devices.isascii() and devices.isdigit() and int(devices) > 0):
        raise ValueError(f"--devices must be a number of at least 1, or all, got {devices!r}")
    return int(devices)


def _alone(wanted: int | Literal["all"] | None) -> int | None:
    """The devices of one process."""
    if wanted is None:
        return None
    if wanted == "all":
        return len(jax.local_devices())
    _make_devices(wanted)
    here = len(jax.local_devices())
    if here < wanted:
        raise ValueError(f"--devices {wanted}: JAX has {here} of them here")
    return wanted


def _make_devices(wanted: int) -> None:
    """Divides the CPU into so many, whatever XLA_FLAGS says; no other device takes notice of it."""
    with suppress(RuntimeError):  # JAX has started: then there are as many as there are
        jax.config.update("jax_num_cpu_devices", wanted)


def _check_devices(wanted: int | Literal["all"] | None) -> None:
    """Of one of several processes, all of whose devices are used."""
    here = len(jax.local_devices())
    if isinstance(wanted, int) and here != wanted:
        raise ValueError(
            f"--devices {wanted}: JAX has {here} of them here, and several processes use all that they have"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """What is printed to standard output by others than Python goes nowhere.

    Gloo, by which CPUs add across processes, prints there whom it has met; it may be JSON that a program reads.
    """
    try:
        kept = os.dup(1)
    except OSError:  # there is none
        yield
        return
    before, is_ours = sys.stdout, False
    with suppress(OSError, ValueError, AttributeError):
        before.flush()
        is_ours = before.fileno() == 1
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        with ExitStack() as opened:
            if is_ours:
                how: dict[str, Any] = {"encoding": before.encoding, "errors": before.errors, "closefd": False}
                sys.stdout = opened.enter_context(open(kept, "w", 1 if before.isatty() else -1, **how))
            yield
    finally:
        sys.stdout = before
        os.dup2(kept, 1)
        os.close(kept)
