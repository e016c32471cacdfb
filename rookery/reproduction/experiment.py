"""The papers' experiments: presets, their cells, and the tables that put our numbers beside the published ones.

An experiment is a TOML file in ``rookery/presets`` or in a folder of one's own: settings × methods, each pair a *cell*. A
cell's result is a small JSON file that is computed once and again only when its settings change.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

from rookery import files
from rookery.experiment.environment import environment
from rookery.experiment.running import prepare_run
from rookery.experiment.settings import Settings, resolve, write_toml
from rookery.experiment.sweep import best, best_settings, grid, sweep
from rookery.names import unknown
from rookery.report.figures import Curve, plot_panels
from rookery.report.tables import spent
from rookery.solving.history import History
from rookery.solving.loop import make_rounds

PRESETS = Path(__file__).parent / "presets"
SIZES = ("full", "quick", "tiny")
POINTS = 60
"""At most so many points of a curve are stored."""


@dataclass(frozen=True)
class Cell:
    """One method in one setting of an experiment."""

    experiment: str
    setting: str
    method: str
    size: str
    settings: Settings

    @property
    def digest(self) -> str:
        """Changes when the settings do."""
        told = json.dumps(self.settings.tables(), sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def path(self, folder: Path) -> Path:
        """Where its result is stored."""
        name = "".join(c if c.isalnum() or c in "+-." else "_" for c in f"{self.setting}--{self.method}")
        return folder / self.experiment / ("" if self.size == "full" else self.size) / f"{name}.json"


@dataclass(frozen=True)
class Experiment:
    """A preset: what is run, and what was published."""

    name: str
    preset: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What it is about."""
        return str(self.preset["title"])

    @property
    def metric(self) -> str:
        """What its tables show."""
        return str(self.preset.get("metric", "accuracy"))

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return bool(self.preset.get("higher_is_better", True))

    @property
    def axis(self) -> str:
        """What the columns of its tables count: "round" or "exchanges"."""
        return str(self.preset.get("axis", "round"))

    @property
    def also(self) -> list[str]:
        """What else of the last evaluation its tables show."""
        return list(self.preset.get("also", []))

    def at(self, size: str = "full") -> list[int]:
        """The columns: after how many rounds or exchanges."""
        return list(self.preset.get(size, {}).get("at", self.preset["at"]))

    def cells(self, size: str = "full", only: Sequence[str] = ()) -> list[Cell]:
        """All pairs of a setting and a method, or those whose name is one of ``only``, or else contains it."""
        found = []
        for setting, in_setting in self.preset["settings"].items():
            for method, how in self.preset["methods"].items():
                if "only" in how and setting not in how["only"]:
                    continue
                settings = self._settings(in_setting, setting, method, how, size)
                found.append(Cell(self.name, setting, method, size, settings))
        names = [f"{cell.setting}/{cell.method}" for cell in found]
        wanted = {name for word in only for name in ([word] if word in names else [n for n in names if word in n])}
        return [cell for cell, name in zip(found, names, strict=True) if not only or name in wanted]

    def _settings(
        self, in_setting: Mapping[str, Any], setting: str, method: str, how: Mapping[str, Any], size: str
    ) -> Settings:
        smaller = self.preset.get(size, {}) if size != "full" else {}
        run = {**self.preset["run"], **in_setting.get("run", {}), **how.get("run", {}), **smaller.get("run", {})}
        if size != "full" and "rounds" in how.get("run", {}):  # a method that counts otherwise stays in proportion
            share = smaller.get("run", {}).get("rounds", self.preset["run"]["rounds"]) / self.preset["run"]["rounds"]
            run["rounds"] = max(1, round(share * how["run"]["rounds"]))
            run["every"] = max(1, min(run["rounds"], how["run"].get("every", run["rounds"])))
        task = {**self.preset.get("task", {}), **in_setting.get("task", {}), **how.get("task", {})} | smaller.get(
            "task", {}
        )
        found = how.get("best", {})
        best = found.get(setting, found.get(self.preset.get("tuning", {}).get("setting"), {}))
        rates = {**how.get("rates", {}), **in_setting.get("rates", {}), **best}
        return resolve({**run, "algorithm": how.get("algorithm", method)}, task, rates)


def experiments(folder: Path | None = None) -> dict[str, Experiment]:
    """Every preset by its name: those of the package, and those in ``folder``, which come before them."""
    found = {path.stem: path for place in (PRESETS, folder) if place is not None for path in place.glob("*.toml")}
    names = sorted(found, key=lambda name: (len(name.split("-")[0]), name))
    return {name: Experiment(name, _read(found[name])) for name in names}


def _read(preset: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(preset.read_text())
    except ValueError as error:
        raise ValueError(f"{preset} is not TOML: {error}") from None


def experiment(name: str, folder: Path | None = None) -> Experiment:
    """The experiment of this name."""
    known = experiments(folder)
    if name not in known:
        raise ValueError(f"experiment: {unknown(name, known)}")
    return known[name]


def compute(cell: Cell, axis_at: tuple[str, list[int]], metric: str, progress: bool | None = None) -> dict[str, Any]:
    """Runs a cell: all seeds in one program, which no other cell needs."""
    clock = time.perf_counter()
    jax.clear_caches()  # of cells before: a process has room for so many compiled programs, see docs/design.md
    prepared, _ = prepare_run(cell.settings)
    solution = make_rounds(prepared, cell.settings.rounds, cell.settings.every, progress)
    axis, at = axis_at
    history = solution.history
    values = history[metric].astype(float)
    for each in solution.diverged:
        values[history["round"] > each.round, each.lane] = np.nan
    places = [_place(history, axis, point) for point in at]
    shown = np.unique(np.linspace(0, len(history) - 1, min(POINTS, len(history))).round().astype(int))
    last = {name: np.asarray(value, float) for name, value in history.last.items()}
    return {
        "experiment": cell.experiment,
        "setting": cell.setting,
        "method": cell.method,
        "size": cell.size,
        "digest": cell.digest,
        "metric": metric,
        "at": at,
        "values": {str(point): _numbers(values[place]) for point, place in zip(at, places, strict=True)},
        "last": {name: _numbers(value) for name, value in last.items()},
        "curve": {
            "round": history["round"][shown].tolist(),
            "exchanges": _numbers(history["exchanges"].reshape(len(history), -1).mean(1)[shown]),
            "mean": _numbers(values.mean(1)[shown]),
            "deviation": _numbers(values.std(1, ddof=1)[shown]) if values.shape[1] > 1 else None,
        },
        "megabytes": float(spent(history, "megabytes")[-1]),
        "diverged": [str(each) for each in solution.diverged],
        "seconds": round(time.perf_counter() - clock, 1),
        "settings": cell.settings.tables(),
        "environment": environment(),
    }


def compute_all(
    due: Sequence[tuple[Experiment, Cell]],
    jobs: int,
    done: Callable[[Cell, dict[str, Any]], None],
) -> None:
    """Computes cells, ``jobs`` at once, each in a process that keeps to one core; ``done`` is called with each result.

    One cell seldom fills two cores: two cells at once take less time than one after the other. A cell that fails does not
    keep others from being done; its error is raised when they are. With one job it is computed here, on all cores.
    """
    if min(jobs, len(due)) < 2:
        for which, cell in due:
            done(cell, compute(cell, (which.axis, which.at(cell.size)), which.metric))
        return
    failed: list[tuple[Cell, Exception]] = []
    with _workers(jobs) as pool:
        with _without_ctrl_c():
            futures: dict[Future[dict[str, Any]], Cell] = {
                pool.submit(compute, cell, (which.axis, which.at(cell.size)), which.metric, False): cell
                for which, cell in due
            }
        for future in as_completed(futures):
            cell = futures[future]
            try:
                done(cell, future.result())
            except BrokenProcessPool:
                failed.append(
                    (cell, OSError("the system ended a process that computed; with fewer --jobs it may have room"))
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
    """Fresh processes (JAX does not outlive a fork), each on the next of the cores that this one may use."""
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for number in range(jobs):
        cores.put(usable[number % len(usable)] if usable else None)
    with ProcessPoolExecutor(jobs, context, _keep_to_a_core, (cores,)) as pool:
        try:
            yield pool
        except BaseException:  # Ctrl-C does not wait for cells that take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes that are started inside never hear it: the one that started them ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep_to_a_core(cores: Any) -> None:
    """Before JAX counts the cores for its threads. Not every system can do it."""
    if (core := cores.get()) is not None:
        os.sched_setaffinity(0, {core})


def _place(history: History, axis: str, point: int) -> int:
    """The last row that is not beyond the point."""
    counts = history[axis].reshape(len(history), -1).max(1)
    return int(np.flatnonzero(counts <= point)[-1])


def _numbers(values: Any) -> list[float | None] | float | None:
    """As JSON has them: six digits, None where a number is not finite."""
    if np.ndim(values) == 0:
        return float(f"{float(values):.6g}") if np.isfinite(values) else None
    return [_numbers(value) for value in np.asarray(values)]  # type: ignore[misc]


def stored(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """The cell's result, if there is one of the same settings."""
    path = cell.path(folder)
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text())
    return result if result["digest"] == cell.digest else None


def save(cell: Cell, result: Mapping[str, Any], folder: Path) -> None:
    """Stores a result."""
    text = json.dumps(result, indent=None, separators=(",", ":")) + "\n"
    files.write(cell.path(folder), text.encode())


def to_tune(which: Experiment, size: str = "full", only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(setting, method) of what ``tune`` searches for these cells: each, or each method in the one setting of all."""
    alone = which.preset.get("tuning", {}).get("setting")
    pairs = [(alone or cell.setting, cell.method) for cell in which.cells(size, only)]
    return [pair for pair in dict.fromkeys(pairs) if "grid" in which.preset["methods"][pair[1]]]


def tune(
    name: str, method: str, setting: str, folder: Path, size: str = "full", lanes: int = 8
) -> dict[str, float] | None:
    """Searches the method's grid in a setting on held-out training data, and writes the best rates into a preset.

    The preset is that of ``folder``, which is made from the package's if there is none. None if every configuration
    diverged; the preset then says so, and keeps the rates it has.
    """
    which = experiment(name, folder)
    how = which.preset["methods"][method]
    if "grid" not in how:
        raise ValueError(f"{which.name}: {method} has no grid to search")
    cell = next(c for c in which.cells(size) if (c.setting, c.method) == (setting, method))
    budget = {**which.preset.get("tuning", {}), **how.get("tuning", {}).get(setting, {})}
    settings = resolve(
        {**_run(cell.settings), "seeds": budget.get("seeds", 1), "seed": 1000,
         "rounds": max(1, round(budget.get("rounds_share", 1.0) * cell.settings.rounds))},
        cell.settings.options, cell.settings.rates,
    )  # fmt: skip
    trials = sweep(settings, _grid(how, setting), lanes, metric=which.metric)
    preset = experiment(name, folder).preset  # once more: searches take long, and another may have written meanwhile
    written = preset["methods"][method]
    written.setdefault("held_out", {})[setting] = "every configuration diverged"
    found = None
    if any(np.isfinite(trial.mean) for trial in trials):
        found = best(trials, which.higher_is_better)
        rates = best_settings(settings, found).tables()["algorithm"]
        before = written.setdefault("best", {}).get(setting, {})  # rates that were searched around, not over
        written["best"][setting] = before | {part: rates[part] for part in (n.partition(".")[0] for n in found.rates)}
        written["held_out"][setting] = round(found.mean, 5)
    folder.mkdir(parents=True, exist_ok=True)
    write_toml(folder / f"{name}.toml", preset)
    return None if found is None else dict(found.rates)


def _grid(how: Mapping[str, Any], setting: str) -> list[dict[str, float]]:
    """The configurations to try: those of the setting (``grids``), or of all."""
    return grid(how.get("grids", {}).get(setting, how["grid"]))


def _run(settings: Settings) -> dict[str, Any]:
    return dict(settings.tables()["run"])


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A line of an experiment's table: ours and, where there are, the published values for each column."""

    setting: str
    method: str
    ours: list[str]
    also: list[str]
    published: list[str]
    tried: str
    """How many configurations of its rates were compared on held-out data."""
    note: str


def rows(which: Experiment, folder: Path, size: str = "full") -> list[Row]:
    """A row for each cell that has a result."""
    found = []
    for cell in which.cells(size):
        result = stored(cell, folder)
        if result is None:
            continue
        ours = [_cell_text(result["values"][str(point)], which) for point in which.at(size)]
        also = [_also_text(result["last"][name]) for name in which.also]
        published = [_published(which, cell, column) for column in range(len(which.at(size)))]
        told = result["diverged"]
        note = f"{len(told)} of {cell.settings.seeds} seeds diverged" if told else ""
        found.append(Row(cell.setting, cell.method, ours, also, published, _tried(which, cell), note))
    return found


def _tried(which: Experiment, cell: Cell) -> str:
    how = which.preset["methods"][cell.method]
    searched = {cell.setting, which.preset.get("tuning", {}).get("setting")} & set(how.get("held_out", {}))
    return str(len(_grid(how, searched.pop()))) if searched else "none"


def _scale(which: Experiment) -> float:
    return 100.0 if which.preset.get("percent", True) else 1.0


def _cell_text(values: list[float | None], which: Experiment) -> str:
    finite = np.array([value for value in values if value is not None])
    if not finite.size:
        return "diverged"
    digits = 2 if which.preset.get("percent", True) else 4
    mean = f"{_scale(which) * finite.mean():.{digits}f}"
    return f"{mean} ± {_scale(which) * finite.std(ddof=1):.{digits}f}" if finite.size > 1 else mean


def _also_text(values: list[float | None]) -> str:
    finite = np.array([value for value in values if value is not None])
    if not finite.size:
        return "diverged"
    return f"{finite.mean():.3g}" + (f" ± {finite.std(ddof=1):.2g}" if finite.size > 1 else "")


def _published(which: Experiment, cell: Cell, column: int) -> str:
    for entry in which.preset.get("published", []):
        if entry["setting"] == cell.setting and entry["method"] == cell.method:
            value, deviations = entry["values"][column], entry.get("deviations")
            return f"{value:g}" + (f" ± {deviations[column]:g}" if deviations else "")
    return ""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim of the paper holds here: method ``better`` against ``worse`` in a setting, paired over seeds."""

    setting: str
    better: str
    worse: str
    difference: float
    p: float
    holds: str

    @property
    def told(self) -> str:
        """The p-value, as tables show it."""
        return "one seed" if np.isnan(self.p) else f"{self.p:.2g}"


def verdicts(which: Experiment, folder: Path, size: str = "full") -> list[Verdict]:
    """The claims of the preset, tested by a paired one-sided t-test over seeds.

    At the last column, or where the claim says ``better_at`` and ``worse_at``: the papers do not all count alike. A claim
    with ``steady`` is of a method's range over its settings (the largest value less the smallest, for each seed): less is
    better.
    """
    results = {(c.setting, c.method): stored(c, folder) for c in which.cells(size)}
    last = str(which.at(size)[-1])
    found = []
    for claim in which.preset.get("claims", []):
        settings = claim.get("settings", list(which.preset["settings"]))
        if claim.get("steady"):
            ranges = [_range([results.get((setting, claim[side])) for setting in settings], last)
                      for side in ("better", "worse")]  # fmt: skip
            if all(len(each) for each in ranges):
                lower = replace(which, preset={**which.preset, "higher_is_better": False})
                found.append(_verdict(lower, "range over the settings", claim, *ranges))
            continue
        for setting in settings:
            pair = [results.get((setting, claim[side])) for side in ("better", "worse")]
            points = [str(claim.get(f"{side}_at", last)) for side in ("better", "worse")]
            sides = [r["values"].get(point) for r, point in zip(pair, points, strict=True) if r is not None]
            if len(sides) < 2 or None in sides:
                continue
            a, b = ([np.nan if v is None else v for v in values] for values in sides)
            told = {side: claim[side] + (f" after {claim[f'{side}_at']}" if f"{side}_at" in claim else "")
                    for side in ("better", "worse")}  # fmt: skip
            found.append(_verdict(which, setting, told, np.array(a), np.array(b)))
    return found


def _range(results: Sequence[Mapping[str, Any] | None], point: str) -> np.ndarray:
    """Of each seed over results: the largest value less the smallest, nan if one diverged; empty if one is missing."""
    if any(r is None or r["values"].get(point) is None for r in results):
        return np.empty(0)
    return np.ptp(np.array([r["values"][point] for r in results if r is not None], float), axis=0)


def _verdict(which: Experiment, setting: str, claim: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> Verdict:
    """A seed that diverged counts as the worst."""
    sign = 1.0 if which.higher_is_better else -1.0
    common = min(len(a), len(b))  # a slow method may have fewer seeds, which are the first ones
    a, b = a[:common], b[:common]
    a, b = (np.where(np.isnan(v), -sign * np.inf, v) for v in (a, b))
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        wins, losses = int((sign * (a - b) > 0).sum()), int((sign * (a - b) < 0).sum())
        p = float(stats.binomtest(wins, wins + losses, alternative="greater").pvalue) if wins + losses else 1.0
        difference = sign * (float("inf") if wins > losses else float("-inf"))
    else:
        gain = sign * (a - b)
        difference = float(_scale(which) * (a - b).mean())
        if len(gain) < 2:
            p = float("nan")  # one seed decides nothing
        elif np.ptp(gain) == 0:
            p = 0.0 if gain.mean() > 0 else 1.0
        else:
            p = float(stats.ttest_1samp(gain, 0, alternative="greater").pvalue)
    holds = "yes" if p < 0.05 else "reversed" if p > 0.95 else "not decided"
    return Verdict(setting, claim["better"], claim["worse"], difference, p, holds)


def draw(which: Experiment, folder: Path, path: Path, size: str = "full") -> None:
    """The stored curves as a figure, a panel for each setting."""
    panels: dict[str, dict[str, Curve]] = {}
    for cell in which.cells(size):
        result = stored(cell, folder)
        if result is not None:
            curve = result["curve"]
            mean = _scale(which) * np.array(curve["mean"], float)
            deviation = _scale(which) * np.array(curve["deviation"] or np.zeros(len(mean)), float)
            panels.setdefault(cell.setting, {})[cell.method] = curve[which.axis], mean, deviation
    path.parent.mkdir(parents=True, exist_ok=True)
    up = which.metric.replace("_", " ") + (" (%)" if which.preset.get("percent", True) else "")
    plot_panels(panels, _UNITS[which.axis], up, path)


_UNITS = {"round": "rounds", "exchanges": "exchanges"}


def computed(folder: Path) -> dict[str, str]:
    """The experiments that have results, each with the size that is shown of it."""
    sizes = {
        which.name: next((size for size in ("full", "quick") if rows(which, folder, size)), None)
        for which in experiments().values()
    }
    return {name: size for name, size in sizes.items() if size is not None}


def write_docs(folder: Path, page: Path) -> None:
    """``docs/reproduction.md`` with its figures."""
    page.write_text(markdown(folder))
    for name, size in computed(folder).items():
        draw(experiment(name), folder, page.parent / "images" / "reproduction" / f"{name}.png", size)


def markdown(folder: Path) -> str:
    """``docs/reproduction.md``, from the stored results alone."""
    parts = [
        "# What was reproduced\n\n"
        "Generated by `rookery reproduce --write-docs` from the stored results in `reproduction/`, not by hand. "
        "Ours: mean ± sample standard deviation over seeds. All methods of an experiment share splits, models and "
        "seeds (a slow one may have only the first of them); rates were chosen on a held-out part of the training "
        "data, the best of so many as the last column says. A claim *holds* if a paired one-sided "
        "t-test over seeds gives p < 0.05, is *reversed* if p > 0.95. A published number is *reached* if our mean and "
        "one standard error make at least as much; the numbers of all methods count, the rivals' too. Minutes are sums over "
        "cells for 2 cores, without tuning, not the time of one whole run: a cell that had one core counts half, for two "
        "are computed at once. Many cells that had two cores shared them with other runs.\n"
    ]
    sizes = computed(folder)
    parts.append(_overview(sizes, folder))
    for which in experiments().values():
        size = sizes.get(which.name)
        if size is None:
            parts.append(f"## {which.name}: {which.title}\n\n{which.preset['paper']}. Not computed yet.\n")
            continue
        parts.append(_section(which, folder, size))
    return "\n".join(parts)


def _overview(sizes: Mapping[str, str], folder: Path) -> str:
    """A line for each experiment: what of it holds."""
    head = ("experiment", "paper", "cells", "published numbers reached", "claims that hold", "not decided", "reversed")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, size in sizes.items():
        which = experiment(name)
        cells = which.cells(size)
        done = sum(stored(cell, folder) is not None for cell in cells)
        good, of = reached(which, folder, size)
        told = [verdict.holds for verdict in verdicts(which, folder, size)]
        counts = [str(told.count(holds)) if told else "" for holds in ("yes", "not decided", "reversed")]
        texts = [name, which.preset["paper"], f"{done} of {len(cells)}", f"{good} of {of}" if of else "none published"]
        lines.append("| " + " | ".join([*texts, *counts]) + " |")
    cells = [cell for name, size in sizes.items() for cell in experiment(name).cells(size)]
    hours = minutes_on_two_cores([r for cell in cells if (r := stored(cell, folder)) is not None]) / 60
    return "\n".join(lines) + f"\n\n`rookery reproduce all` computes all of it: {hours:.1f} hours.\n"


def minutes_on_two_cores(results: Sequence[Mapping[str, Any]]) -> float:
    """On two cores, where two cells that keep to one core are computed at once."""
    return float(sum(r["seconds"] * (0.5 if r["environment"]["cores"] == 1 else 1.0) for r in results) / 60)


def reached(which: Experiment, folder: Path, size: str = "full") -> tuple[int, int]:
    """How many published numbers our mean reaches less one standard error, of how many that were computed."""
    sign = 1 if which.higher_is_better else -1
    good = of = 0
    for cell in which.cells(size):
        result = stored(cell, folder)
        if result is None or size != "full":
            continue
        for entry in which.preset.get("published", []):
            if (entry["setting"], entry["method"]) != (cell.setting, cell.method):
                continue
            for point, value in zip(which.at(size), entry["values"], strict=True):
                ours = _scale(which) * np.array([np.nan if v is None else v for v in result["values"][str(point)]])
                error = ours.std(ddof=1) / len(ours) ** 0.5 if len(ours) > 1 else 0.0
                of += 1
                good += bool(sign * (ours.mean() - value) >= -error)  # a seed that diverged reaches nothing
    return good, of


def _section(which: Experiment, folder: Path, size: str) -> str:
    table = rows(which, folder, size)
    results = [r for cell in which.cells(size) if (r := stored(cell, folder)) is not None]
    at, unit = which.at(size), _UNITS[which.axis]
    shows_published = any(any(row.published) for row in table)
    head = ["setting", "method", *(f"{which.metric} after {point} {unit}" for point in at)]
    head += [*which.also, *([f"published, {point}" for point in at] if shows_published else []), "rates tried"]
    lines = [
        f"## {which.name}: {which.title}",
        "",
        f"{which.preset['paper']}. {which.preset.get('notes', '')}".strip(),
        "",
    ]
    command = f"rookery reproduce {which.name}" + ("" if size == "full" else " --quick")
    made = results[-1]["environment"]
    seeds = "/".join(map(str, sorted({r["settings"]["run"]["seeds"] for r in results})))
    processors = ", ".join(sorted({r["environment"].get("processor", "of a kind not noted") for r in results}))
    lines.append(
        f"`{command}`{'' if size == 'full' else ' (a smaller version)'}: {len(results)} of {len(which.cells(size))} cells, "
        f"{seeds} seeds, {minutes_on_two_cores(results):.0f} minutes on 2 cores ({processors}), {made['date'][:10]}, "
        f"rookery {made['rookery']}, jax {made['jax']}.\n"
    )
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table:
        name = row.method + (f" ({row.note})" if row.note else "")
        lines.append(
            "| "
            + " | ".join([row.setting, name, *row.ours, *row.also, *(row.published * shows_published), row.tried])
            + " |"
        )
    checked = verdicts(which, folder, size)
    if checked:
        lines += ["", "| setting | claim | difference | p | holds |", "|---|---|---|---|---|"]
        lines += [
            f"| {v.setting} | {v.better} better than {v.worse} | {v.difference:+.3g} | {v.told} | {v.holds} |"
            for v in checked
        ]
    lines += ["", f"![The curves of {which.name}](images/reproduction/{which.name}.png)"]
    return "\n".join(lines) + "\n"
