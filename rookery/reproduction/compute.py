"""Cells computed and stored: a result is a small JSON file, computed once and again only when its settings change."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import jax
import numpy as np
from numpy.typing import ArrayLike

from rookery import devices
from rookery.datasets.files import where
from rookery.datasets.sources import DATASETS
from rookery.experiment.compiled import keep_compiled
from rookery.experiment.environment import environment
from rookery.experiment.running import prepare_run
from rookery.files import replacing
from rookery.models import resnet
from rookery.report.tables import metrics, spent
from rookery.reproduction.experiment import Cell, Experiment
from rookery.reproduction.search import Searched, search
from rookery.solving.history import History
from rookery.solving.loop import make_rounds

POINTS = 60
"""The most points of a curve that are stored."""


class StoredCurve(TypedDict):
    """At most :data:`POINTS` evaluations of a cell, spread evenly."""

    round: list[int]
    exchanges: list[float | None]
    mean: list[float | None]
    deviation: list[float | None] | None
    """None if there is one seed."""
    seeds: NotRequired[list[list[float | None]]]
    """The metric of each seed at each point, where the experiment asks for it (``curve_seeds``)."""


class Result(TypedDict):
    """What is stored of a cell. A number that is not finite is None."""

    experiment: str
    setting: str
    method: str
    size: str
    digest: str
    metric: str
    at: list[int]
    values: dict[str, list[float | None]]
    """The metric of each seed, by column of the experiment's table."""
    last: dict[str, float | list[float | None] | None]
    curve: StoredCurve
    megabytes: float
    diverged: list[str]
    seconds: float
    """Of the runs; the search has its own. Both as :func:`rookery.devices.seconds` counts them."""
    rounds_seconds: NotRequired[float | None]
    """Of the rounds alone, of all seeds side by side, without compilation and evaluations; None if it was evaluated once."""
    settings: dict[str, Any]
    """With the rates that the runs had."""
    search: Searched | None
    """How they were found; None where all were given."""
    environment: dict[str, Any]


def compute(which: Experiment, cell: Cell, out: Path, progress: bool | None = None) -> Result:
    """Finds the rates of a cell and runs it: all seeds in one program.

    A search that is stored stays as long as nothing changes that it depends on; one that was killed goes on.
    """
    jax.clear_caches()  # no other cell needs these programs, and a process can hold only so many (docs/design.md)
    searched, settings = None, cell.settings
    if cell.search is not None:
        clock = devices.seconds()
        searched = _searched_before(cell, out)
        if searched is None:
            found = search(cell.search, cell.path(out).with_suffix(".search"))
            searched = {**found, "seconds": round(devices.seconds() - clock, 1)}
        settings = replace(settings, rates=_over(settings.rounds, searched["rates"], cell.search.falling))
        jax.clear_caches()
    clock = devices.seconds()
    prepared, _ = prepare_run(settings)
    prepared = replace(prepared, metric=None)  # a cell tells of its curve, not of its best iterate
    solution = make_rounds(prepared, settings.rounds, settings.every, progress)
    at, metric = which.at(cell.size), which.metric
    history = solution.history
    values = history[metric].astype(float)
    for each in solution.diverged:
        values[history["round"] > each.round, each.lane] = np.nan
    places = [_place(history, which.axis, settings.local_steps, point) for point in at]
    shown = np.unique(np.linspace(0, len(history) - 1, min(POINTS, len(history))).round().astype(int))
    last = {name: np.array(value, float) for name, value in history.last.items()}
    for each in solution.diverged:  # what it showed last is no result
        for name in metrics(history):
            if last[name].ndim:
                last[name][each.lane] = np.nan
    curve: StoredCurve = {
        "round": history["round"][shown].tolist(),
        "exchanges": _numbers(history["exchanges"].reshape(len(history), -1).mean(1)[shown]),
        "mean": _numbers(values.mean(1)[shown]),
        "deviation": _numbers(values.std(1, ddof=1)[shown]) if values.shape[1] > 1 else None,
    }
    if which.preset.get("curve_seeds"):
        curve["seeds"] = [_numbers(row) for row in values[shown]]
    return {
        "experiment": cell.experiment,
        "setting": cell.setting,
        "method": cell.method,
        "size": cell.size,
        "digest": cell.digest,
        "metric": metric,
        "at": at,
        "values": {str(point): _numbers(values[place]) for point, place in zip(at, places, strict=True)},
        "last": {name: _numbers(value) if np.ndim(value) else _number(float(value)) for name, value in last.items()},
        "curve": curve,
        "megabytes": float(spent(history, "megabytes")[-1]),
        "diverged": [str(each) for each in solution.diverged],
        "seconds": round(devices.seconds() - clock, 1),
        "rounds_seconds": _rounds_seconds(history),
        "settings": settings.tables(),
        "search": searched,
        "environment": environment(),
    }


def _over(rounds: int, rates: Mapping[str, Any], falling: Sequence[str]) -> dict[str, Any]:
    """The rates found, those that fall over all rounds of the run instead of the search's."""
    return {name: {**rate, "rounds": float(rounds)} if name in falling else rate for name, rate in rates.items()}


def compute_all(
    due: Sequence[tuple[Experiment, Cell]],
    jobs: int,
    out: Path,
    done: Callable[[Cell, Result], None],
) -> None:
    """Computes cells, ``jobs`` at a time, each in a process on a core of its own; calls ``done`` with each result.

    One cell seldom keeps two cores busy, so two cells at a time are faster than one after the other. If a cell fails, the
    others are still computed, and its error is raised at the end. With one job, cells are computed in this process, on all
    cores.
    """
    if min(jobs, len(due)) < 2:
        for which, cell in due:
            done(cell, compute(which, cell, out))
        return
    failed: list[tuple[Cell, Exception]] = []
    with _workers(jobs) as pool:
        with _without_ctrl_c():
            futures: dict[Future[Result], Cell] = {
                pool.submit(compute, which, cell, out, False): cell for which, cell in due
            }
        for future in as_completed(futures):
            cell = futures[future]
            try:
                done(cell, future.result())
            except BrokenProcessPool:
                failed.append(
                    (cell, OSError("the system killed a worker process, probably for lack of memory: try fewer --jobs"))
                )
            except Exception as error:
                failed.append((cell, error))
    if failed:
        cell, first = failed[0]
        first.add_note(
            f"{len(failed)} of {len(due)} cells failed, first {cell.experiment} {cell.setting}/{cell.method}"
        )
        raise first


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """New processes (JAX does not survive a fork), each on the next of the cores that this one may use."""
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    usable = devices.cores()
    for number in range(jobs):
        cores.put(usable[number % len(usable)] if usable else None)
    with ProcessPoolExecutor(jobs, context, _keep_to_a_core, (cores,)) as pool:
        try:
            yield pool
        except BaseException:  # Ctrl-C must not wait for cells that take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C: the process that started them ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep_to_a_core(cores: Any) -> None:
    """Runs before JAX counts the cores for its threads. Not every system can pin a process.

    Settings often differ in numbers alone, so that a cell finds most of its programs compiled by another.
    """
    devices.share()
    keep_compiled()
    if (core := cores.get()) is not None:
        os.sched_setaffinity(0, {core})


def _rounds_seconds(history: History) -> float | None:
    """As if the rounds before the first evaluation, in which the program is compiled, took as long as the others."""
    if len(history) < 3:
        return None
    rounds, seconds = history["round"], history["seconds"]
    return _number(float((seconds[-1] - seconds[1]) / (rounds[-1] - rounds[1]) * rounds[-1]))


def _place(history: History, axis: str, local_steps: Any, point: int) -> int:
    """The last row at or before the point."""
    per_round = local_steps if axis == "step" else 1
    counts = per_round * history["exchanges" if axis == "exchanges" else "round"].reshape(len(history), -1).max(1)
    return int(np.flatnonzero(counts <= point)[-1])


def _numbers(values: ArrayLike) -> list[float | None]:
    return [_number(value) for value in np.asarray(values, float)]


def _number(value: float) -> float | None:
    """As JSON has it: six digits, None if it is not finite."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def stored(cell: Cell, folder: Path) -> Result | None:
    """The cell's result, if there is one with the same settings, metric and columns."""
    result, (metric, at) = stored_before(cell, folder), cell.columns
    if result is None or result["digest"] != cell.digest or (metric and result["metric"] != metric):
        return None
    return result if {str(point) for point in at} <= set(result["values"]) else None


def stored_before(cell: Cell, folder: Path) -> Result | None:
    """The cell's result, of today's settings or of others."""
    path = cell.path(folder)
    if not path.exists():
        return None
    result: Result = json.loads(path.read_text())
    return result


def _searched_before(cell: Cell, folder: Path) -> Searched | None:
    """How its rates were found, if nothing has changed that they depend on."""
    result = stored_before(cell, folder)
    searched = result.get("search") if result is not None else None
    return searched if searched and cell.search and searched["digest"] == cell.search.digest else None


def save(cell: Cell, result: Result, folder: Path) -> None:
    """Stores a result, as a whole or not at all."""
    with replacing(cell.path(folder)) as file:
        file.write((json.dumps(result, indent=None, separators=(",", ":")) + "\n").encode())


def by_hand(cells: Sequence[Cell]) -> list[str]:
    """What of the data of cells a user must provide: data sets, and the numbers of a network that has been trained."""
    sets = {cell.settings.dataset for cell in cells}
    networks = {resnet.FILE for cell in cells if cell.settings.options.get("model") == "resnet18"}
    return sorted({name for name in sets if name in DATASETS and DATASETS[name].by_hand} | networks)


def missing_data(cells: Sequence[Cell]) -> list[str]:
    """What of that is not here."""
    return [
        name
        for name in by_hand(cells)
        if (resnet.weights_file() if name == resnet.FILE else where(DATASETS[name])) is None
    ]
