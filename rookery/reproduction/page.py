"""The page of the documentation that shows what was reproduced, and its figures: made from stored results alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rookery.files import write
from rookery.report.figures import Curve, plot_panels, plot_powers
from rookery.report.markdown import table_head, table_row
from rookery.report.tables import label
from rookery.reproduction import leaderboard, speed_up
from rookery.reproduction.compute import Result, by_hand, stored, stored_before
from rookery.reproduction.experiment import BUDGET, GROWTH, PRESETS, SEED, Cell, Experiment, experiment, experiments
from rookery.reproduction.verdicts import Verdict, reached, rows, shown_size, verdicts

MINUTES = PRESETS / "minutes.json"
"""How long each cell took, for those who compute it again."""

_INTRODUCTION = f"""# What was reproduced

Made by `rookery reproduce --write-docs` from the results stored in `reproduction/`; no number is typed by hand.

- **One rule for all rates.** Each cell (a method in a setting) finds its rates with the package's own search
  ([how it works](tuning.md)), on a held-out part of the training data with a seed of its own ({SEED}). Every method of a
  table has the same budget: {BUDGET:g} runs' worth of rounds, and up to {GROWTH:g} more where the best lies at an end of
  what was tried, unless the experiment says otherwise. Test data are not there. *Tried* is the number of candidates; *given*
  marks rates that a paper prints. What was searched, spent and found is stored with the cell.
- **Our numbers** are means ± standard deviations over seeds. Where a seed diverged, the median over all of them stands
  instead, and the diverged ones count as the worst.
- **A published number is reached** if our mean is at least as good, give or take one standard error. The rivals' numbers
  count too.
- **A claim** says that one method does better than another. It *holds* if a paired one-sided t-test over n seeds gives
  p < 0.05, is *reversed* if the opposite would hold, and else is *not decided*. Where a seed diverged, a sign test takes
  its place.
- **A speed-up** is a power of the number P of participants. The *rounds* of a P are those after which the root mean
  square of the measure over seeds first is at most ε, in the best of the P's horizons, each with rates of its own; between
  two evaluations its logarithm is interpolated. ε is the smallest value that all P reach within half of the longest horizon
  in 95 of 100 resamples of the seeds; a P that does not even halve the measure in that time is not asked. The slope is that
  of log(rounds - rounds without noise) over log P, by least squares: no averaging saves the rounds that are needed without
  noise, and with them in the sum a perfect 1/P would look weaker than it is. Left out are a P that never reaches ε (*>*)
  and one that needs less than twice the rounds without noise (in parentheses); where the run without noise never reaches
  ε, nothing is subtracted. The interval is the wider of two, both of 95 %: over resamples of the seeds, and by Student's t
  from the residuals about the line, which have the luck of the searches in them. A claim *holds* if the interval includes
  the claimed power or is steeper, there is *no speed-up shown* if it reaches 0 or above, and else the speed-up is *weaker
  than claimed*. With fewer than three P, or with both 0 and the claim in the interval, it is *not decided*; and nothing is
  said of a method until all of its cells are computed with today's settings.
- **†** marks results of other settings than those of today, most with rates found by hand, which legends and claims of
  today may not describe. What rests on them is marked too.
"""


def draw(which: Experiment, folder: Path, path: Path, size: str = "full") -> None:
    """The stored curves as a figure, a panel for each setting; or the powers of P, a panel for each method."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if which.form == "speed-up":
        powers = {each.method: each.power for each in speed_up.speed_ups(which, folder, size)}
        plot_powers(powers, "participants P", "rounds to ε", path)
        return
    panels: dict[str, dict[str, Curve]] = {}
    for cell in which.cells(size):
        result = stored_before(cell, folder)
        if result is not None and result["metric"] == which.metric:
            curve = result["curve"]
            mean = which.scale * np.array(curve["mean"], float)
            deviation = which.scale * np.array(curve["deviation"] or np.zeros(len(mean)), float)
            where = np.array(curve["exchanges" if which.axis == "exchanges" else "round"], float)
            if which.axis == "step":
                where *= cell.settings.local_steps
            panels.setdefault(cell.setting, {})[cell.method] = where.tolist(), mean, deviation
    up = label(which.metric) + (" (%)" if which.percent else "")
    plot_panels(panels, which.unit, up, path)


def computed(folder: Path) -> dict[str, str]:
    """The experiments that have results, each with the size that is shown."""
    sizes = {which.name: shown_size(which, folder) for which in experiments().values()}
    return {name: size for name, size in sizes.items() if size is not None}


def _results(which: Experiment, folder: Path, size: str) -> list[Result]:
    """What is shown of an experiment: results of today's settings or of others, but of today's alone for a speed-up."""
    find = stored if which.form == "speed-up" else stored_before
    return [result for cell in which.cells(size) if (result := find(cell, folder)) is not None]


def write_docs(folder: Path, page: Path) -> list[Path]:
    """Writes ``docs/reproduction.md``, the minutes of the presets, the leaderboard, all figures; returns all but these."""
    page.write_text(markdown(folder))
    write(MINUTES, minutes_json(folder).encode())
    for name, size in computed(folder).items():
        draw(experiment(name), folder, page.parent / "images" / "reproduction" / f"{name}.png", size)
    return [page, MINUTES, *leaderboard.write_docs(folder, page.parent)]


def markdown(folder: Path) -> str:
    """``docs/reproduction.md``, from the stored results alone."""
    sizes = computed(folder)
    parts = [_INTRODUCTION, _overview(sizes, folder)]
    for which in experiments().values():
        size = sizes.get(which.name)
        parts.append(_missing(which) if size is None else _section(which, folder, size))
    return "\n".join(parts)


def minutes_json(folder: Path) -> str:
    """Minutes of a core for each cell, from the stored results, as JSON."""
    told = {}
    for which in experiments().values():
        pairs = [(cell, stored_before(cell, folder)) for cell in which.cells()]
        told[which.name] = {
            f"{cell.setting}/{cell.method}": round(core_minutes(result), 1) for cell, result in pairs if result
        }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def core_minutes(result: Result) -> float:
    """What it took with its search, in minutes of a core."""
    searched = result.get("search")
    seconds = result["seconds"] + (searched["seconds"] if searched else 0.0)
    return float(seconds * result["environment"]["cores"] / 60)


def expected_minutes(due: Sequence[tuple[Experiment, Cell]], jobs: int) -> str:
    """How long cells will take, from what they took here, as a text.

    A cell that was never computed takes as long as its experiment's others.
    """
    known = json.loads(MINUTES.read_text()) if MINUTES.exists() else {}
    total, unknown = 0.0, 0
    for which, cell in due:
        told = known.get(which.name, {})
        if not told:
            unknown += 1
            continue
        total += told.get(f"{cell.setting}/{cell.method}", sum(told.values()) / len(told))
    if unknown == len(due):
        return "?"
    return f"{total / jobs:.0f}" + (f" and those of {unknown} cells never timed" if unknown else "")


def _missing(which: Experiment) -> str:
    needs = _provided(which)
    why = f", since {needs} must be put into $ROOKERY_DATA by hand; then" if needs else ":"
    told = f"{which.preset['paper']}. *Claimed:* {which.asks} Not computed here{why} `rookery reproduce {which.name}`."
    return f"## {which.name}: {which.title}\n\n{told}\n"


def _provided(which: Experiment) -> str:
    """What a user must provide before the experiment can be computed; empty if nothing."""
    return " and ".join(by_hand(which.cells()))


def _overview(sizes: Mapping[str, str], folder: Path) -> str:
    """A line for each experiment: what the paper claims, what was found, and why."""
    lines = table_head(("experiment", "what the paper claims", "found here", "published numbers reached", "why"))
    minutes, ruled, total = 0.0, 0, 0
    for which in experiments().values():
        total += len(which.cells())
        size = sizes.get(which.name)
        link = f"[{which.name}](#{_anchor(which)})"
        if size is None:
            needs = _provided(which)
            found = f"not computed: {needs} must be provided" if needs else "not computed"
            lines.append(table_row([link, which.asks, found, "", which.why]))
            continue
        cells = which.cells(size)
        results = [r for cell in cells if (r := stored_before(cell, folder))]
        minutes += sum(map(core_minutes, results))
        current = sum(stored(cell, folder) is not None for cell in cells)
        ruled += current
        found = _found(which, folder, size)
        if current < len(cells):
            found += f" ({current} of {len(cells)} cells by the one rule)"
        lines.append(table_row([link, which.asks, found, _reached(which, folder, size) or "none published", which.why]))
    lines += [
        "",
        f"{ruled} of {total} cells are computed by the one rule. What is stored took {minutes / 120:.1f} hours on 2 cores; "
        "`rookery reproduce all` computes the rest, and says beforehand how long it takes.",
    ]
    return "\n".join(lines) + "\n"


def _anchor(which: Experiment) -> str:
    text = f"{which.name}: {which.title}".lower()
    return "".join(c for c in text if c.isalnum() or c in " -_").replace(" ", "-")


def _found(which: Experiment, folder: Path, size: str) -> str:
    """How many claims hold, are not decided, or are reversed, with n and the least certain p of each; or the slopes."""
    if which.form == "speed-up":
        return speed_up.found_text(speed_up.speed_ups(which, folder, size))
    every = verdicts(which, folder, size)
    ages = {current: [each for each in every if each.current == current] for current in (True, False)}
    parts = [("" if current else "† ") + _counted(these) for current, these in ages.items() if these]
    return "; ".join(parts) or "no claims to compare"


def _counted(all_verdicts: Sequence[Verdict]) -> str:
    parts = []
    for holds, told in (("yes", "hold"), ("not decided", "not decided"), ("reversed", "reversed")):
        these = [each for each in all_verdicts if each.holds == holds]
        if not these:
            continue
        seeds = sorted({each.seeds for each in these})
        n = f"n = {seeds[0]}" if len(seeds) == 1 else f"n = {seeds[0]} to {seeds[-1]}"
        ps = [each.p for each in these if not np.isnan(each.p)]
        p = f", p ≤ {max(ps):.2g}" if holds == "yes" else f", p ≥ {min(ps):.2g}" if ps else ""
        verb = "holds" if (holds, len(these)) == ("yes", 1) else told
        parts.append(f"**{len(these)} {verb}** ({n}{p})")
    return ", ".join(parts)


def _reached(which: Experiment, folder: Path, size: str) -> str:
    """How many published numbers are reached of how many, by results of today and by others."""
    counts = {current: reached(which, folder, size, current) for current in (True, False)}
    return "; ".join(("" if current else "† ") + f"{good} of {of}" for current, (good, of) in counts.items() if of)


def _section(which: Experiment, folder: Path, size: str) -> str:
    """What is asked and found, the command, the table, its legend, the claims, the figure."""
    cells = which.cells(size)
    results = _results(which, folder, size)
    told = [
        f"{which.preset['paper']}.",
        f"*Claimed:* {which.asks}",
        f"*Found:* {_found(which, folder, size)}.",
    ]
    told += [f"Published numbers reached: {counts}."] if (counts := _reached(which, folder, size)) else []
    told += [which.why] if which.why else []
    command = f"rookery reproduce {which.name}" + ("" if size == "full" else " --quick")
    made = max(r["environment"]["date"] for r in results)[:10]
    seeds = "/".join(map(str, sorted({r["settings"]["run"]["seeds"] for r in results})))
    rounds = sorted({r["settings"]["run"]["rounds"] for r in results})
    horizons = " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))
    minutes = sum(map(core_minutes, results)) / 2
    lines = [
        f"## {which.name}: {which.title}\n\n{' '.join(told)}\n",
        f"`{command}`{'' if size == 'full' else ' (a smaller version)'}: {len(results)} of {len(cells)} cells, "
        f"{seeds} seeds, {horizons} rounds, {minutes:.0f} minutes on 2 cores with searches, {made}.\n",
    ]
    head, table = _table(which, folder, size)
    lines += [*table_head(head), *map(table_row, table)]
    if which.legend:
        lines += ["", which.legend.strip()]
    checked = [] if which.form == "speed-up" else verdicts(which, folder, size)
    if checked:
        lines += ["", *table_head(["setting", "claim", "difference", "n", "p", "holds"])]
        lines += [
            table_row(
                [
                    v.setting,
                    f"{v.better} better than {v.worse}",
                    f"{v.difference:+.3g}",
                    str(v.seeds),
                    v.p_text,
                    v.holds + " †" * (not v.current),
                ]
            )
            for v in checked
        ]
    lines += ["", f"![The curves of {which.name}](images/reproduction/{which.name}.png)"]
    return "\n".join(lines) + "\n"


def _table(which: Experiment, folder: Path, size: str) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of an experiment's main table."""
    if which.form == "speed-up":
        return speed_up.table(speed_up.speed_ups(which, folder, size))
    found, at = rows(which, folder, size), which.at(size)
    shows_published = any(any(row.published) for row in found)
    head = ["setting", "method", *(f"{label(which.metric)} after {point} {which.unit}" for point in at)]
    head += [*map(label, which.also), *([f"published, {point}" for point in at] if shows_published else []), "tried"]
    table = []
    for row in found:
        published = row.published if shows_published else []
        table.append([row.setting, row.name, *row.ours, *row.also, *published, row.tried])
    return head, table
