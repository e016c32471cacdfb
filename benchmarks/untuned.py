"""Do rates find themselves? By name against the best of 256 random rates, on problems that no preset knows.

    python -m benchmarks.untuned [--problems ridge,cleaning] [--algorithms FedBiO,MeFBO] [--store FOLDER] [--again]

For each algorithm and problem: how much of Φ(x0) − Φ a run by name closes (Φ exact, at the exact lower solution), against
what the best of 256 random rates closes, which is chosen by the exact Φ itself after all rounds. Random rates are drawn from
the same declared scales, over ranges wider by half on each side. Beside that, what finding them costs: oracle calls and
seconds as multiples of one run with the rates found. Results are stored pair by pair, so it can be stopped.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import rookery as rk
from benchmarks.problems import problems
from rookery.algorithms.registry import problem_class
from rookery.problem.oracles import UNITS
from rookery.solving.prepare import many, prepare
from rookery.tuning.measure import measure
from rookery.tuning.space import Knob, Space
from rookery.tuning.trials import Program, Trial

DRAWS = 256
LANES = 32


def pairs(names: list[str] | None, algorithms: list[str] | None) -> list[tuple[str, str]]:
    """(problem, algorithm), for every algorithm that fits and learns x."""
    found = []
    for name, make in problems().items():
        if names and name not in names:
            continue
        given = make()
        fitting = [pair for pair in rk.registry.items() if problem_class(given.problem) in pair[1].solves]
        for place, (algorithm, kind) in enumerate(fitting):
            if learns(kind) and (not algorithms or algorithm in algorithms) and takes(given, kind):
                found.append((place, name, algorithm))
    return [(name, algorithm) for _, name, algorithm in sorted(found, key=lambda each: each[0])]  # all problems early


def learns(kind: type) -> bool:
    return any(field in kind.__dataclass_fields__ for field in ("eta_x", "gamma_x", "eta"))


def takes(given: Any, kind: type) -> bool:
    """Whether the algorithm takes the problem as it is stated (its steps, weights, sets)."""
    try:
        prepare(many(given.problem, [kind()], given.clients, given.x0, given.y0, keys=[0], **how(given)))
    except ValueError:
        return False
    return True


def how(given: Any) -> dict[str, Any]:
    return {
        "participation": given.participation,
        "local_steps": given.local_steps,
        "batch_size": given.batch_size,
    }


def mean_steps(given: Any) -> float:
    steps = given.local_steps
    return (steps.low + steps.high) / 2 if isinstance(steps, rk.Steps) else float(steps)


def exact(given: Any, x: Any, y: Any) -> float:
    value = float(given.phi(x, y))
    return value if np.isfinite(value) else float("inf")


def reference(given: Any, algorithm: str) -> dict[str, Any]:
    """The best of 256 random rates, by the exact Φ after all rounds."""
    kind = rk.registry[algorithm]
    x0 = np.full(given.clients.n, 1 / given.clients.n, np.float32) if given.x0 is None else given.x0
    scales, _, _, anchor = measure(given.problem, given.clients, x0, given.y0, given.rounds, mean_steps(given))
    space = Space.of(kind, scales)
    wide = Space(kind, scales, tuple(wider(knob) for knob in space.knobs))
    rng = np.random.default_rng(1)
    lows, highs = np.array([k.low for k in wide.knobs]), np.array([k.high for k in wide.knobs])
    draws = lows + rng.uniform(size=(DRAWS, len(lows))) * (highs - lows)
    places = [dict(zip([k.name for k in wide.knobs], map(float, row), strict=True)) for row in draws]
    lanes = [wide.algorithm(place) for place in places[:LANES]]
    prepared = prepare(many(given.problem, lanes, given.clients, given.x0, given.y0, keys=[0] * LANES, **how(given)))
    flat = prepared.run.setting.flat
    program = Program(prepared, [0], None, (flat.x.unravel(prepared.run.x[0]), given.y0), anchor)
    values, judged = [], []
    for first in range(0, DRAWS, LANES):
        trials = [Trial(i, p, wide.algorithm(p), 0) for i, p in enumerate(places[first : first + LANES])]
        program.advance(trials, given.rounds)
        for each in trials:
            if not each.alive:
                values.append(float("inf"))
                judged.append(float("inf"))
                continue
            x, y = each.algorithm.output(each.state.server, each.state.keep)
            y = jax.vmap(flat.y.unravel)(y) if y.ndim == 2 else flat.y.unravel(y)
            values.append(exact(given, flat.x.unravel(x), y))
            judged.append(each.score)
    best = int(np.argmin(values))
    start = exact(given, x0, given.y0)
    alike = [i for i in range(DRAWS) if np.isfinite(values[i]) and np.isfinite(judged[i])]
    rank = float(rank_correlation(np.array(values)[alike], np.array(judged)[alike])) if len(alike) > 3 else None
    return {
        "start": start,
        "best": values[best],
        "place": places[best],
        "random_diverged": sum(not np.isfinite(v) for v in values),
        "rank": rank,
        "sorted": sorted(values)[:20],
    }


def wider(knob: Knob) -> Knob:
    extra = (knob.high - knob.low) / 2
    top = knob.high if knob.scale == "(0, 1]" else knob.high + extra
    return Knob(knob.name, knob.scale, knob.low - extra, top, knob.grows)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(each)).astype(float) for each in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def calls(row: dict[str, Any]) -> float:
    return float(sum(row[unit] for unit in UNITS))


def tuned(given: Any, algorithm: str) -> dict[str, Any]:
    """What a run by name closes, and what it costs."""
    arguments = given.problem, algorithm, given.clients, given.x0, given.y0
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = rk.tune(*arguments, rounds=given.rounds, progress=False, **how(given)).found[algorithm]
    searched = time.perf_counter() - clock
    clock = time.perf_counter()
    try:
        solution = rk.solve(
            given.problem, found.algorithm, *arguments[2:], rounds=given.rounds, progress=False, **how(given)
        )
    except rk.Diverged:
        return {"phi": float("inf"), "diverged": True, "rates": repr(found.algorithm)}
    once = time.perf_counter() - clock
    run = calls(solution.history.last)
    return {
        "phi": exact(given, solution.x, solution.y),
        "diverged": False,
        "calls": 1 + found.spent["calls"] / run,
        "seconds": 1 + searched / once,
        "once": once,
        "searched": searched,
        "remarks": list(found.remarks),
        "rates": repr(found.algorithm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems")
    parser.add_argument("--algorithms")
    parser.add_argument("--store", type=Path, default=Path(".untuned"))
    parser.add_argument("--again", action="store_true", help="tune again; the random search stays as it is stored")
    parser.add_argument("--reference-only", action="store_true")
    options = parser.parse_args()
    options.store.mkdir(exist_ok=True)
    rows = []
    listed = [None if text is None else text.split(",") for text in (options.problems, options.algorithms)]
    for name, algorithm in pairs(*listed):
        given = problems()[name]()
        refs, mine = (options.store / f"{name}-{algorithm}-{kind}.json" for kind in ("random", "tuned"))
        if not refs.exists():
            refs.write_text(json.dumps(reference(given, algorithm)))
        if options.reference_only:
            continue
        if options.again or not mine.exists():
            mine.write_text(json.dumps(tuned(given, algorithm)))
        row = {**json.loads(refs.read_text()), **json.loads(mine.read_text()), "problem": name, "algorithm": algorithm}
        row["closed"] = (row["start"] - row["phi"]) / max(row["start"] - row["best"], 1e-12)
        rows.append(row)
        print(
            f"{name:24} {algorithm:20} closed {row['closed']:6.3f}  calls ×{row.get('calls', 0):5.1f} "
            f"time ×{row.get('seconds', 0):5.1f}  Φ {row['start']:.4g} → {row['phi']:.4g} (random {row['best']:.4g}, "
            f"{row['random_diverged']} diverged, rank {row['rank'] if row['rank'] is None else round(row['rank'], 3)})",
            flush=True,
        )
        jax.clear_caches()
    if rows:
        Console().print(summary(rows))


def summary(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="By name against the best of 256 random rates")
    for column in ("problem", "pairs", "≥ 90 %", "median closed", "calls (median, most)", "time (median, most)"):
        table.add_column(column, justify="left" if column == "problem" else "right")
    groups = {
        name: [row for row in rows if row["problem"] == name] for name in dict.fromkeys(r["problem"] for r in rows)
    }
    for name, members in [*groups.items(), ("all", rows)]:
        closed = [row["closed"] for row in members]
        spent, slow = ([row[what] for row in members if what in row] for what in ("calls", "seconds"))
        table.add_row(
            name,
            str(len(members)),
            f"{sum(c >= 0.9 for c in closed)}",
            f"{np.median(closed):.3f}",
            f"{np.median(spent):.1f}, {max(spent):.1f}" if spent else "",
            f"{np.median(slow):.1f}, {max(slow):.1f}" if slow else "",
        )
    return table


if __name__ == "__main__":
    main()
