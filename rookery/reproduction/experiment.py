"""The papers' experiments as presets: settings × methods, each pair a *cell*.

A preset is a TOML file in ``rookery/reproduction/presets`` or in a folder of one's own. It has no rates but those of the
papers: a cell finds its own (:class:`Search`), by one rule for all.
"""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rookery.algorithm.rate import declared
from rookery.experiment.settings import Settings, resolve
from rookery.names import unknown
from rookery.problem.schedules import Cosine, Schedule

PRESETS = Path(__file__).parent / "presets"
SIZES = ("full", "quick", "tiny")
SEED = 1000
"""Of all searches: of the instance or split, of participants and minibatches. Runs have the seeds from 0 on."""
BUDGET, GROWTH = 6.0, 3.0
"""Runs' worth of rounds of a search, and at most so many more if it ends at an edge."""
FALL = 0.05
"""What is left at the end of a rate that falls."""


@dataclass(frozen=True)
class Search:
    """How the rates of a cell are found: with what is given, on data of the training part that are held out."""

    settings: Settings
    """Of the search: its seed, its rounds, and the rates and options that are given."""
    budget: float
    growth: float
    metric: str
    higher_is_better: bool
    falling: tuple[str, ...] = ()
    """Rates that fall by half a cosine over the rounds, to :data:`FALL` of what they begin with, which is searched for."""

    @property
    def shapes(self) -> dict[str, Schedule]:
        """The falling rates, as they change."""
        return {name: Cosine(1.0, FALL, float(self.settings.rounds)) for name in self.falling}

    @property
    def digest(self) -> str:
        """Of all that the rates depend on: what was found stays as long as it is the same."""
        run = {**self.settings.tables(), "rates": sorted(self.settings.rates)}
        falling = [sorted(self.falling)] if self.falling else []
        return _digest([run, self.budget, self.growth, self.metric, *falling])


@dataclass(frozen=True)
class Cell:
    """One method in one setting of an experiment."""

    experiment: str
    setting: str
    method: str
    size: str
    settings: Settings
    """Without the rates that are searched for."""
    search: Search | None
    """None where all rates are given."""
    columns: tuple[str, tuple[int, ...]] = ("", ())
    """The metric of its table, and where it stands there."""

    @property
    def digest(self) -> str:
        """Of the settings and the search: a stored result with another digest is out of date."""
        return _digest([self.settings.tables(), self.search and self.search.digest])

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
    def form(self) -> Literal["comparison", "speed-up"]:
        """What its results are made into: claims that a method is better, or powers of the number of participants."""
        form: Literal["comparison", "speed-up"] = self.preset.get("form", "comparison")
        return form

    @property
    def metric(self) -> str:
        """What its tables show."""
        return str(self.preset.get("metric", "accuracy"))

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return bool(self.preset.get("higher_is_better", True))

    @property
    def percent(self) -> bool:
        """Whether its tables show the metric in percent."""
        return bool(self.preset.get("percent", True))

    @property
    def scale(self) -> float:
        """What the metric is multiplied by in tables and figures."""
        return 100.0 if self.percent else 1.0

    @property
    def axis(self) -> str:
        """What the columns of its tables count: "round", "exchanges" or "step" (a client's local steps)."""
        return str(self.preset.get("axis", "round"))

    @property
    def unit(self) -> str:
        """What the columns of its tables count, for readers: "rounds", "exchanges" or "local steps"."""
        return {"round": "rounds", "step": "local steps"}.get(self.axis, self.axis)

    @property
    def asks(self) -> str:
        """What the paper claims."""
        return str(self.preset["asks"])

    @property
    def why(self) -> str:
        """The cause, where a claim or a number is not reached and the cause was tested."""
        return str(self.preset.get("why", ""))

    @property
    def legend(self) -> str:
        """What the letters and short names in its tables mean."""
        return str(self.preset.get("legend", ""))

    @property
    def also(self) -> list[str]:
        """What else of the last evaluation its tables show."""
        return list(self.preset.get("also", []))

    def at(self, size: str = "full") -> list[int]:
        """The columns: after how many rounds or exchanges. A speed-up has none."""
        if self.form == "speed-up":
            return []
        return list(self.preset.get(size, {}).get("at", self.preset["at"]))

    def cells(self, size: str = "full", only: Sequence[str] = ()) -> list[Cell]:
        """All pairs of a setting and a method, or those whose SETTING/METHOD is one of ``only`` or else contains it."""
        found = []
        for setting, in_setting in self.preset["settings"].items():
            for method, how in self.preset["methods"].items():
                if "only" in how and setting not in how["only"]:
                    continue
                found.append(self._cell(in_setting, setting, method, how, size))
        names = [f"{cell.setting}/{cell.method}" for cell in found]
        wanted = {name for word in only for name in ([word] if word in names else [n for n in names if word in n])}
        return [cell for cell, name in zip(found, names, strict=True) if not only or name in wanted]

    def _cell(
        self, in_setting: Mapping[str, Any], setting: str, method: str, how: Mapping[str, Any], size: str
    ) -> Cell:
        smaller = self.preset.get(size, {}) if size != "full" else {}
        run = {**self.preset["run"], **in_setting.get("run", {}), **how.get("run", {}), **smaller.get("run", {})}
        if size != "full" and "rounds" in how.get("run", {}):  # a method that counts otherwise stays in proportion
            share = smaller.get("run", {}).get("rounds", self.preset["run"]["rounds"]) / self.preset["run"]["rounds"]
            run["rounds"] = max(1, round(share * how["run"]["rounds"]))
            run["every"] = max(1, min(run["rounds"], how["run"].get("every", run["rounds"])))
        task = {**self.preset.get("task", {}), **in_setting.get("task", {}), **how.get("task", {})} | smaller.get(
            "task", {}
        )
        rates = {**in_setting.get("rates", {}), **how.get("rates", {})}
        settings = resolve({**run, "algorithm": how.get("algorithm", method)}, task, rates)
        settings = dataclasses.replace(settings, rates=rates)  # none of the task's own
        search = None if how.get("published") else self._search(settings, smaller, tuple(how.get("falling", ())))
        return Cell(self.name, setting, method, size, settings, search, (self.metric, tuple(self.at(size))))

    def _search(self, settings: Settings, smaller: Mapping[str, Any], falling: tuple[str, ...]) -> Search | None:
        """How the rates that are not given are found; None if there are none."""
        if not set(declared(settings.source.algorithm(settings.algorithm))) - set(settings.rates):
            return None
        told = {**self.preset.get("tuning", {}), **smaller.get("tuning", {})}
        rounds = max(1, round(told.get("share", 1.0) * settings.rounds))
        alone = dataclasses.replace(settings, seed=SEED, seeds=1, rounds=rounds, every=rounds, held_out=True)
        metric, higher = told.get("metric", self.metric), told.get("higher_is_better", self.higher_is_better)
        return Search(alone, told.get("budget", BUDGET), told.get("growth", GROWTH), metric, higher, falling)


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def experiments(folder: Path | None = None) -> dict[str, Experiment]:
    """Every preset by its name: the package's and those in ``folder``, which win where both have one."""
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
