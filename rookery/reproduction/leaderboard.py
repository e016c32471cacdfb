"""The leaderboard: all algorithms of the global bilevel problem on one task, as a page and a CSV, from stored results."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rookery.catalogue import STATUSES, catalogue
from rookery.experiment.settings import Settings
from rookery.files import write
from rookery.problem.oracles import UNITS
from rookery.report.markdown import table_head, table_row
from rookery.report.race import Race, plot_race
from rookery.report.tables import COSTS, PARTS
from rookery.reproduction.compute import Result, stored, stored_before
from rookery.reproduction.experiment import SEED, Cell, Experiment, Search, experiment, experiments
from rookery.reproduction.reals import COMPLEXITY, FREE, bilevel, box_of, counted
from rookery.reproduction.verdicts import Verdict, judge, rows, shown_size

NAME = "leaderboard"
COMPARED = ("megabytes", "oracle_calls")
"""Costs at which accuracies are compared as well."""
AGAINST = (*COMPARED, "seconds")
CLEAR = 0.05
"""One method is clearly before another if p is smaller."""
_PARTS = {
    **PARTS,
    "gradients": (("grad_f", "grad_g", "server_grad_f"), 1.0),
    "products": (("hvp", "jvp"), 1.0),
}
BEST = 8
"""Methods that the figure names: as many as there are colours."""


@dataclass(frozen=True)
class Standing:
    """A method in a setting, at the last column of the preset."""

    which: Experiment
    cell: Cell
    result: Result

    @property
    def values(self) -> np.ndarray:
        """The metric of each seed at :attr:`end`; NaN where it diverged."""
        return np.array(self.result["values"][str(self.which.at(self.cell.size)[-1])], float)

    @property
    def score(self) -> float:
        """By which methods are ranked: the mean; if a seed diverged the median, for which that is the worst."""
        values = self.values if self.which.higher_is_better else -self.values
        return float(values.mean() if np.isfinite(values).all() else np.median(np.nan_to_num(values, nan=-np.inf)))

    @property
    def exchanges(self) -> np.ndarray:
        """At the points of its curve."""
        return np.array(self.result["curve"]["exchanges"], float)

    @property
    def curve(self) -> np.ndarray:
        """The mean over seeds there; NaN where one diverged."""
        return np.array(self.result["curve"]["mean"], float)

    @property
    def end(self) -> int:
        """The point of its curve at which the stored values of the last column were taken.

        That is the last one before any seed made more exchanges than the column says. Where exchanges are drawn, the curve
        has only their mean over seeds: the point is then the one whose mean is that of the stored values.
        """
        limit = self.which.at(self.cell.size)[-1]
        rounds, most = np.array(self.result["curve"]["round"], float), self._last("exchanges").max()
        guess = int(np.flatnonzero(rounds * most <= limit * rounds[-1] * (1 + 1e-9))[-1])
        alike = np.isclose(self.curve, self.values.mean(), rtol=1e-5, atol=0, equal_nan=True)  # stored with six digits
        points = np.flatnonzero(alike & (self.exchanges <= limit))
        return int(min(points, key=lambda point: abs(point - guess), default=guess))

    def cost(self, name: str) -> np.ndarray:
        """A cost, the mean over seeds, at the points of its curve: in proportion to the exchanges made by then."""
        curve = self.result["curve"]
        if name == "seconds":
            seconds = self.result.get("rounds_seconds")
            seconds = np.nan if seconds is None else seconds / self.result["settings"]["run"]["seeds"]
            return np.array(curve["round"], float) / max(curve["round"][-1], 1) * seconds
        parts, factor = _PARTS.get(name, ((name,), 1.0))
        total, made = (sum(self._last(part).sum() for part in each) for each in (parts, ("exchanges",)))
        return self.exchanges * (factor * total / made if made else np.nan)

    def _last(self, name: str) -> np.ndarray:
        """A column of the last row of its history."""
        return np.array(self.result["last"][name], float)

    def at(self, cost: str, amount: float) -> float:
        """The metric when it has cost so much, at most as at its end: on the line between two evaluations."""
        there = slice(self.end + 1)
        return float(np.interp(amount, self.cost(cost)[there], self.curve[there]))


def standings(which: Experiment, folder: Path, size: str) -> dict[str, list[Standing]]:
    """Those with a result, by setting, the best first."""
    found: dict[str, list[Standing]] = {}
    there = {(row.setting, row.method) for row in rows(which, folder, size)}
    for cell in which.cells(size):
        result = stored_before(cell, folder)
        if result is not None and (cell.setting, cell.method) in there:
            found.setdefault(cell.setting, []).append(Standing(which, cell, result))
    return {setting: sorted(each, key=lambda s: -s.score) for setting, each in found.items()}


def equal(ranked: Sequence[Standing], cost: str) -> float:
    """What all methods are given of a cost: the least that one which learns x takes for all its exchanges."""
    learns = {entry.name for entry in catalogue() if "x" in entry.constraints}
    spent = [float(s.cost(cost)[s.end]) for s in ranked if s.cell.settings.algorithm in learns]
    return min((each for each in spent if np.isfinite(each)), default=float("nan"))


def write_docs(folder: Path, docs: Path) -> list[Path]:
    """Writes the page, its CSV and, if there are results, its figure; nothing where there is no such preset."""
    if NAME not in experiments():
        return []
    page, table = docs / f"{NAME}.md", docs / f"{NAME}.csv"
    write(page, markdown(folder).encode())
    write(table, as_csv(folder).encode())
    draw(folder, docs / "images" / f"{NAME}.png")
    return [page, table]


def draw(folder: Path, path: Path) -> None:
    """The metric against each cost, a row of panels for each setting; nothing if there are no results."""
    which = experiment(NAME)
    ranked = standings(which, folder, shown_size(which, folder) or "full")
    if not ranked:
        return
    races: dict[str, dict[str, Race]] = {
        setting: {
            s.cell.method: Race({cost: s.cost(cost)[: s.end + 1] for cost in AGAINST}, 100 * s.curve[: s.end + 1])
            for s in each
        }
        for setting, each in ranked.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    plot_race(races, best(ranked), [(cost, COSTS[cost]) for cost in AGAINST], f"{which.metric} (%)", path)


def best(ranked: dict[str, list[Standing]]) -> list[str]:
    """The methods with the best mean rank over the settings, the best first."""
    ranks: dict[str, list[int]] = {}
    for each in ranked.values():
        for rank, standing in enumerate(each):
            ranks.setdefault(standing.cell.method, []).append(rank)
    return sorted(ranks, key=lambda method: float(np.mean(ranks[method])))[:BEST]


def as_csv(folder: Path) -> str:
    """A line for each method in each setting; the head alone while nothing is computed."""
    which = experiment(NAME)
    text = io.StringIO(newline="")
    numbers = ("exchanges", "megabytes", "oracle_calls", *UNITS, "seconds")
    names = [f"{which.metric}_at_equal_{cost}" for cost in COMPARED]
    head = ["setting", "rank", "method", f"{which.metric}_mean", f"{which.metric}_deviation", "seeds", "diverged"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, *numbers, *names, "tried", "current"])
    for setting, each in standings(which, folder, shown_size(which, folder) or "full").items():
        given = {cost: equal(each, cost) for cost in COMPARED}
        for rank, s in enumerate(each, 1):
            fine, searched = np.isfinite(s.values), s.result["search"]
            mean, deviation = (s.values.mean(), s.values.std(ddof=1)) if fine.all() and fine.size > 1 else (np.nan,) * 2
            costs = [s.cost(cost)[s.end] for cost in numbers]
            at = [s.at(cost, given[cost]) for cost in COMPARED]
            current = s.result["digest"] == s.cell.digest
            told = [setting, rank, s.cell.method, _plain(mean), _plain(deviation), fine.size, int((~fine).sum())]
            told += [*map(_plain, [*costs, *at]), searched["trials"] if searched else "", int(current)]
            writer.writerow(told)
    return text.getvalue()


def _plain(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""


def markdown(folder: Path) -> str:
    """``docs/leaderboard.md``, from the stored results and the traced programs alone."""
    which = experiment(NAME)
    size = shown_size(which, folder) or "full"
    ranked = standings(which, folder, size)
    parts = ["# Leaderboard", *_verdicts(which, ranked, folder, size), _rules(which, size)]
    for setting, each in ranked.items():
        parts += [f"## {setting}", _table(which, each, folder, size)]
    if ranked:
        parts += ["## Against what it costs", f"![Accuracy against costs](images/{NAME}.png)", _FIGURE]
    return "\n\n".join([*parts, "## What a round sends", _reals()]) + "\n"


def _verdicts(which: Experiment, ranked: dict[str, list[Standing]], folder: Path, size: str) -> list[str]:
    cells = which.cells(size)
    if not ranked:
        told = f"**Nothing is computed yet**: none of {len(cells)} cells has a result (`rookery reproduce {NAME}`)."
        return [f"{told} What a round sends is known without them, and stands [below](#what-a-round-sends)."]
    lines = []
    for setting, each in ranked.items():
        first = each[0]
        of = "" if len(each) == len(which.preset["methods"]) else f" of the {len(each)} computed"
        line = f"- **{setting}: {first.cell.method} is the most accurate{of}** after {which.at(size)[-1]} exchanges"
        line += f" ({_ours(first, folder, size)} %)"
        if len(each) > 1:
            sides = {"better": first.cell.method, "worse": each[1].cell.method}
            verdict = judge(which, setting, sides, first.values, each[1].values)
            both = two_sided(verdict)
            clear = "clearly" if both < CLEAR else "not clearly"
            p = "" if np.isnan(both) else f", p = {both:.2g}"
            line += f", {clear} before {each[1].cell.method} ({_ours(each[1], folder, size)} %{p})"
        for cost in COMPARED:
            given = equal(each, cost)
            if found := [s for s in each if np.isfinite(s.at(cost, given))]:
                leader = max(found, key=lambda s: s.at(cost, given))
                percent = f"{100 * leader.at(cost, given):.2f} %"
                line += f"; with {given:,.0f} {COSTS[cost]} it is {leader.cell.method} ({percent})"
        lines.append(line + ".")
    current = sum(stored(cell, folder) is not None for cell in cells)
    missing = (
        "" if current == len(cells) else f"Only {current} of {len(cells)} cells have a result of today's settings."
    )
    smaller = "" if size == "full" else f"This is a smaller version (`rookery reproduce {NAME} --quick`)."
    notes = " ".join(note for note in (missing, smaller) if note)
    return ["\n".join(lines), *([notes] if notes else [])]


def two_sided(verdict: Verdict) -> float:
    """The p of no difference, for two methods whose order was read off the same values; NaN for one seed."""
    return float(np.minimum(1.0, 2 * verdict.p))


def _rules(which: Experiment, size: str) -> str:
    cell = which.cells(size)[0]
    settings, search, limit = cell.settings, cell.search, which.at(size)[-1]
    steps = f"{settings.local_steps} local step{'s' * (settings.local_steps != 1)}"
    methods = len(which.preset["methods"])
    return f"""Made by `rookery reproduce --write-docs`; all numbers are in [{NAME}.csv]({NAME}.csv).

- **One task**: {settings.task} on {settings.dataset}, {settings.clients} clients of which {settings.participants} take
  part, batches of {settings.batch_size}, {steps}. *iid* deals images at random, *shards* gives a client two shards of the
  sorted images; the share {settings.options["validation"]:g} of a client's images validates.
- **All {methods} algorithms** of the problem with one lower level for all clients, with their default options, after at
  most {limit} exchanges. {which.legend}
{_tuning(settings, search)}
- **Clearly before** means p < {CLEAR:g} in a paired t-test over seeds, or in a sign test where a seed diverged. The test is
  two-sided, since the same seeds decide which method is first. It does not correct for the number of methods.
- **Costs** are means over seeds, up to the evaluation that the last column shows, in proportion to the exchanges made by
  then. Megabytes go both ways, of all participants together. A call is one gradient or one Hessian- or Jacobian-vector
  product on one minibatch. Seconds are the wall time of the rounds divided by the number of seeds, which run side by side.
  Compilation and evaluations are left out, but not what other jobs on the machine slowed down: they are a rough measure.
- **At equal costs**: every method is given the same amount, namely the least that a method which learns x spends until its
  last evaluation. A method that spends less than that is shown with its last accuracy.
- **†** marks results of other settings than those of today. Where a seed diverged, the table shows the median over seeds, in
  which a seed that diverged counts as the worst."""


def _tuning(settings: Settings, search: Search | None) -> str:
    if search is None:
        return "- **Rates** are given; nothing is searched for."
    share = search.settings.rounds / settings.rounds
    length = "as many rounds as a run" if share == 1 else f"{share:.0%} of the rounds of a run"
    budget, growth = search.budget, search.growth
    return f"""- **Equal tuning**: rates are found by the package's search ([how it works](tuning.md)) on held-out training
  data, with a seed of its own ({SEED}). Each method has {budget:g} runs' worth of rounds, and {growth:g} more where the best
  rate is the largest or the smallest that was tried. A run of the search makes {length}."""


def _ours(standing: Standing, folder: Path, size: str) -> str:
    there = {(row.setting, row.method): row for row in rows(standing.which, folder, size)}
    return there[standing.cell.setting, standing.cell.method].ours[-1]


def _table(which: Experiment, ranked: Sequence[Standing], folder: Path, size: str) -> str:
    there = {(row.setting, row.method): row for row in rows(which, folder, size)}
    given = {cost: equal(ranked, cost) for cost in COMPARED}
    head = [
        "",
        "method",
        *(f"after {point} exchanges" for point in which.at(size)),
        "megabytes",
        "gradients",
        "products",
    ]
    head += ["seconds", *(f"with {given[cost]:,.0f} {COSTS[cost]}" for cost in COMPARED)]
    lines = []
    for rank, s in enumerate(ranked, 1):
        row = there[s.cell.setting, s.cell.method]
        costs = [s.cost(cost)[s.end] for cost in ("megabytes", "gradients", "products", "seconds")]
        at = [100 * s.at(cost, given[cost]) for cost in COMPARED]
        lines.append(
            [str(rank), row.name, *row.ours]
            + [f"{each:,.3g}" if each < 100 else f"{each:,.0f}" if np.isfinite(each) else "–" for each in costs]
            + [f"{each:.2f}" if np.isfinite(each) else "–" for each in at]
        )
    return "\n".join([*table_head(head), *map(table_row, lines)])


_FIGURE = """Every line ends, with a dot, at the evaluation that the last column of the table shows. Named are the
methods with the best mean rank over the settings; the others are grey."""


def _reals() -> str:
    lines, read, differ = [], [], []
    for name, kind in bilevel().items():
        status, ours, box = kind.status, counted(name), box_of(name)
        if box is not None and status == "P":
            read.append(name)
        if box is not None and box != ours:
            differ.append(name)
        needs = next(entry for entry in catalogue() if entry.name == name).second_derivatives
        printed = {True: "no", False: "yes", None: "–"}[FREE.get(name)]
        line = [name, status, str(box or "–"), str(ours), "–" if box is None else "yes" if box == ours else "**no**"]
        lines.append([*line, printed, "yes" if needs else "no", COMPLEXITY.get(name, "–")])
    head = ["algorithm", "status", "box", "counted here", "alike", "second derivatives, printed", "counted"]
    head += ["communication to reach ε, printed"]
    wrong = [n for n, free in FREE.items() if free == next(e for e in catalogue() if e.name == n).second_derivatives]
    agrees = "what is counted here" if not wrong else f"not what is counted here for {', '.join(wrong)}"
    failed = [name for name in read if name in differ]
    but = f"; {', '.join(failed)} does not" if len(failed) == 1 else f"; not so {', '.join(failed)}" if failed else ""
    status = ", ".join(f"**{letter}** {meaning}" for letter, meaning in STATUSES.items())
    return f"""Of the {len(read)} algorithms whose box was read in the paper (status P),
**{len(read) - len(failed)} send what it says**{but}. Table 1 of MeFBO's paper prints for {len(FREE)} algorithms whether
they need second derivatives: that is {agrees}.

No table of the papers prints how many numbers a round sends: they print orders (ASFBO, Table 1) or nothing. So the column
*box* has what an algorithm's box sends, and *counted here* what is read from our traced programs: for a participant and a
round, with default options, *x* and *y* the sizes of the variables, then the number of exchanges. Where exchanges are
drawn, it is the mean. Only a box of status P was read in the paper. The others are written down from general knowledge or
from public code, as our programs are: that the two agree proves little. There is no box (–) for an algorithm that is
defined here (status D), for a variant of another one, or where none is known.

{chr(10).join([*table_head(head), *map(table_row, lines)])}

Why {len(differ)} differ: {_WHY}

Status: {status}."""


_WHY = """in FedBiOAcc, Local-BSGVR and AdaFBiO the server sends all vectors at the start of a round, since a client that did
not take part in the round before has none of them, and sends the averaged point again before the second exchange.
CommFedBiO keeps its vector from round to round and therefore sends it once more, and it sends an index with every entry of
a compressed vector."""
