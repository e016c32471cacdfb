"""Finding the rates of algorithms on a problem."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.rate import Scales, declared
from rookery.algorithm.setting import Setting
from rookery.algorithms.rates import tell_algorithm
from rookery.algorithms.registry import check_solves, name_of
from rookery.engines.base import Engine
from rookery.engines.homes import on_device
from rookery.engines.simulator import Simulator
from rookery.problem.clients import Clients
from rookery.problem.keys import as_key, fold
from rookery.problem.oracles import UNITS
from rookery.problem.participation import Full, Replay, Uniform
from rookery.problem.problems import ClientWeighting, Problem
from rookery.problem.schedules import Schedule
from rookery.problem.validation import check_count
from rookery.solving.evaluate import Evaluation
from rookery.solving.history import History
from rookery.solving.loop import check_metric, counters, finished
from rookery.solving.prepare import Prepared, many, prepare
from rookery.solving.solution import Solution
from rookery.tuning.display import Display
from rookery.tuning.journal import Journal
from rookery.tuning.judge import Effort
from rookery.tuning.measure import measure
from rookery.tuning.result import Found, Tuning
from rookery.tuning.sample import sample
from rookery.tuning.search import LEAST, Search
from rookery.tuning.space import Space
from rookery.tuning.trials import WIDTH, Program, Trial

Unit = Literal["rounds", "calls", "bytes"]
PHI = "phi"
"""What the score is called where no metric is named."""
BUDGET = 9.5
"""Runs' worth of rounds that a search may take by default."""
JUDGEMENTS = 90
"""About so many candidates are judged in a search of the default budget."""
KEYS = 3
"""How many keys the last candidates may be tried with."""


@dataclass(frozen=True)
class Wanted:
    """An algorithm whose rates are searched for, with options that are given."""

    kind: type[Algorithm]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Schedule] = field(default_factory=dict)
    """Rates that change over the rounds: their scale is searched for."""

    def plain(self) -> Algorithm:
        """With its default rates."""
        return self.kind(**self.fixed)


Given = Wanted | Algorithm
"""What is to be searched, or what has its rates already."""


def _plain(given: Given) -> Algorithm:
    return given.plain() if isinstance(given, Wanted) else given


def _name(given: Given) -> str:
    return name_of(given.kind if isinstance(given, Wanted) else type(given))


@dataclass(frozen=True)
class Aim:
    """What is searched for, and with how much: the same for all algorithms."""

    problem: Problem
    clients: Clients
    x0: Any
    y0: Any
    rounds: int
    key: Any
    metric: str | None
    higher: bool
    how: Mapping[str, Any]
    """The other arguments of ``rk.solve``."""


def search_rates(
    aim: Aim,
    algorithms: Sequence[Given],
    budget: float,
    unit: Unit,
    folder: Path | None,
    progress: bool | None,
    ready: Callable[[], None] = lambda: None,
    growth: float = 0.0,
) -> Tuning:
    """The rates of each algorithm; all have the same budget. ``ready`` is called when all is checked.

    ``growth`` is how many runs more a search may take whose best lies at an edge of what it tried.
    """
    aim = alone(aim)
    _check(aim, algorithms, budget, unit)
    started = time.perf_counter()
    programs: dict[str, tuple[Given, Program, Space]] = {}
    first, effort, judges = _effort(aim, algorithms)
    scales, phi0, calls, anchor = _scales(aim, first, effort, judges)
    journal = Journal(None if folder is None else folder / "journal.json", _identity(aim, algorithms, budget, unit))
    for each in algorithms:
        space = _space(each, scales)
        programs[_name(each)] = each, _program(aim, each, space, (anchor, judges, effort, journal)), space
    costs = {name: _cost_of_round(program, unit) for name, (_, program, _) in programs.items()}
    allowance = budget * aim.rounds * float(np.median(list(costs.values())))
    measured = time.perf_counter() - started
    ready()
    found: dict[str, Found] = {}
    with Display(list(programs), aim.metric or PHI, aim.higher, progress) as display:
        for name, (given, program, space) in programs.items():
            clock = time.perf_counter()
            runs = allowance / (costs[name] * aim.rounds)
            if isinstance(given, Algorithm) or not space.knobs:
                made = _as_given(aim, name, _plain(given), program, phi0)
            else:
                made = _searched(aim, name, program, space, (runs, growth), phi0, calls, display)
            if made is not None:
                found[name] = replace(made, seconds=time.perf_counter() - clock + measured / len(programs))
    if not found:
        raise ValueError(
            f"tune: every configuration of {', '.join(programs)} diverged; look for NaN or huge numbers in the data"
        )
    told = {"unit": unit, "runs": budget, "amount": allowance}
    return Tuning(aim.metric or PHI, aim.higher, aim.rounds, told, found)


def alone(aim: Aim) -> Aim:
    """The search among the clients that are here, as if there were no others: for one of several processes."""
    if not isinstance(aim.clients, Clients):
        return aim
    clients = on_device(aim.clients)
    if len(clients.held) == clients.n:
        return replace(aim, clients=clients)
    count = len(clients.held)
    x0 = aim.x0
    if isinstance(aim.problem, ClientWeighting) and x0 is not None:
        x0 = jnp.asarray(x0)[jnp.asarray(clients.held)]
        x0 = x0 / x0.sum()
    taking = aim.how.get("participation")
    number = taking.count if isinstance(taking, Uniform) else taking
    if isinstance(taking, Replay):
        taking = None
    elif isinstance(number, int) and not isinstance(number, bool):
        taking = min(number, count)
    some = clients.some(np.arange(count), max(clients.lower.max_size, clients.upper.max_size))
    return replace(aim, clients=some, x0=x0, how={**aim.how, "participation": taking})


def _check(aim: Aim, algorithms: Sequence[Given], budget: float, unit: str) -> None:
    check_count(aim.rounds, "rounds")
    if not algorithms:
        raise ValueError("algorithms must name at least one, got none")
    if unit not in ("rounds", "calls", "bytes"):
        raise ValueError(f"unit must be 'rounds', 'calls' or 'bytes', got {unit!r}")
    number = isinstance(budget, int | float) and not isinstance(budget, bool) and math.isfinite(budget)
    if not number or budget < LEAST:
        raise ValueError(
            f"budget must be at least {LEAST:g} (runs' worth: less is too little to try anything), got {budget!r}"
        )
    if not aim.clients.here:
        raise ValueError("rates are searched where the data are, these clients have theirs elsewhere: give the rates")
    names = [_name(each) for each in algorithms]
    if len(set(names)) < len(names):
        raise ValueError(f"algorithms must be different ones, got {', '.join(names)}")
    for each in algorithms:
        check_solves(_plain(each), aim.problem)


def _effort(aim: Aim, algorithms: Sequence[Given]) -> tuple[Prepared, Effort, Clients]:
    """How much a judgement may cost, and on whose data: all of them together about a seventh of the cheapest search.

    Also one of the preparations that it took to find that out.
    """
    cheapest, examples, prepared = math.inf, math.inf, None
    for number, each in enumerate(algorithms):
        with _warning_once(number == 0):
            prepared = _prepared(aim, [each], None)
        setting = prepared.run.setting
        tau, slots = _mean_steps(setting), setting.participation.slots(setting.clients.n)
        pairs = [pair for cost in prepared.run.costs or () for pair in cost.calls.values()]
        calls = sum(once + more * tau for once, more in pairs) * slots * aim.rounds
        cheapest, examples = min(cheapest, calls), min(examples, calls * _batch(setting))
    assert prepared is not None
    share = 0.15 * BUDGET / JUDGEMENTS
    judges = sample(aim.problem, aim.clients, slots, share * examples / Effort.within(0).products)
    return prepared, Effort.within(share * cheapest / judges.n), judges


def _batch(setting: Setting) -> float:
    """Examples of an oracle call, on average over the two levels."""
    splits = setting.clients.lower, setting.clients.upper
    sizes = [
        each.total / each.clients if size is None else size
        for each, size in zip(splits, setting.batch_size, strict=True)
    ]
    return sum(sizes) / 2


@contextmanager
def _warning_once(first: bool) -> Iterator[None]:
    """What a preparation warns of is said by the first of many."""
    with warnings.catch_warnings():
        if not first:
            warnings.simplefilter("ignore")
        yield


def _mean_steps(setting: Setting) -> float:
    return (setting.steps.low + setting.steps.high) / 2


def _scales(aim: Aim, prepared: Prepared, effort: Effort, judges: Clients) -> tuple[Scales, float, int, Array]:
    """Measured once for all algorithms."""
    setting = prepared.run.setting
    x0 = setting.flat.x.unravel(prepared.run.x[0])
    share = judges.lower.total / max(1, aim.clients.lower.total)
    return measure(aim.problem, judges, x0, aim.y0, aim.rounds, _mean_steps(setting), effort, share)


def _prepared(aim: Aim, algorithms: Sequence[Given], evaluate: Any) -> Prepared:
    lanes = [_plain(each) for each in algorithms]
    how = {name: value for name, value in aim.how.items() if name != "evaluate"}
    keys = [aim.key] * len(lanes)
    return prepare(many(aim.problem, lanes, aim.clients, aim.x0, aim.y0, keys=keys, evaluate=evaluate, **how))


def _program(aim: Aim, given: Given, space: Space, judging: tuple[Any, ...]) -> Program:
    lanes: list[Algorithm]
    if isinstance(given, Algorithm):
        lanes = [given] * WIDTH
    else:
        lanes = [space.algorithm(place) for place in space.spread(WIDTH, np.random.default_rng(0))]
    with _warning_once(False):
        prepared = _prepared(aim, lanes, aim.how.get("evaluate") if aim.metric is not None else None)
    if aim.metric is not None:
        check_metric(aim.metric, Evaluation(prepared)(prepared.run.initial_state()))
    key = as_key(aim.key)
    keys = [key, *(fold(key, "tuning", number) for number in range(1, KEYS))]
    flat = prepared.run.setting.flat
    like = flat.x.unravel(prepared.run.x[0]), flat.y.unravel(prepared.run.y[0])
    return Program(prepared, keys, aim.metric, like, *judging)


def _space(given: Given, scales: Scales) -> Space:
    if isinstance(given, Wanted):
        return Space.of(given.kind, scales, given.fixed, given.shapes)
    return Space.of(type(given), scales)


def _cost_of_round(program: Program, unit: Unit) -> float:
    """What a round of one lane costs, from a round that is made and forgotten."""
    if unit == "rounds":
        return 1.0
    run = program.run
    state = run.initial_state()
    with program.prepared.engine.open(replace(run, start=state)) as session:
        _, activity = session.advance(state, 1)
        counted = counters(run.lanes, session.costs, np.asarray(activity, np.int64))
    names = ("bytes_up", "bytes_down") if unit == "bytes" else UNITS
    return max(1.0, float(sum(counted[name][0] for name in names)))


def _searched(
    aim: Aim,
    name: str,
    program: Program,
    space: Space,
    budget: tuple[float, float],
    phi0: float,
    calls: int,
    display: Display,
) -> Found | None:
    runs, growth = budget
    setting = program.run.setting
    whole = isinstance(setting.participation, Full) and setting.batch_size == (None, None) and setting.steps.fixed
    controlled = aim.metric is not None and _freezes(space)
    search = Search(
        space,
        program,
        aim.rounds,
        max(LEAST, runs - controlled),
        higher=aim.higher,
        random=not whole,
        growth=growth,
        seed=[int(word) for word in np.asarray(jax.random.key_data(as_key(aim.key)))],
        start=phi0 if aim.metric is None else None,
        show=lambda progress: display.show(name, progress),
    )
    winner = search.run()
    if winner is None:
        return None
    frozen = _frozen_score(search, winner) if controlled else None
    alike = _at_end(search, winner)
    tried = [each.place for each in search.trials]
    edges, ends = space.edges(winner.place, tried), tuple(space.ends(winner.place, tried))
    start = phi0 if aim.metric is None else None
    remarks = _remarks(aim, space, winner, search, edges, start if frozen is None else frozen)
    spent = {unit: sum(each.spent.get(unit, 0) for each in search.trials) for unit in ("rounds", "calls", "bytes")}
    spent["calls"] += calls
    solution = _solution(program, winner)
    score = float(np.mean(alike)) if alike else winner.score
    trials = tuple(_row(space, each) for each in search.trials)
    return Found(name, winner.algorithm, score, solution, start, frozen, edges, trials, spent, 0.0, remarks, ends)


def _at_end(search: Search, winner: Trial) -> list[float]:
    """The scores of the winner's rates after all rounds, one for each key that they were tried with."""
    same = [each for each in search.trials if each.place is winner.place]
    return [each.score for each in same if each.alive and each.rounds == search.rounds]


def _as_given(aim: Aim, name: str, given: Algorithm, program: Program, phi0: float) -> Found | None:
    """An algorithm that has its rates: one run."""
    trial = Trial(0, {}, given, 0, stage=3)
    program.advance([trial], aim.rounds)
    if not trial.alive:
        return None
    row = {"rates": _numbers(tell_algorithm(given)["rates"]), **_facts(trial)}
    start = phi0 if aim.metric is None else None
    return Found(name, given, trial.score, _solution(program, trial), start, None, {}, (row,), trial.spent, 0.0)


def _freezes(space: Space) -> bool:
    """Whether x can be held while y moves: its step is a rate of its own."""
    fields = declared(space.kind).items()
    return any(each.scale == "free" and field.endswith("_x") and field not in space.fixed for field, each in fields)


def _frozen_score(search: Search, winner: Trial) -> float | None:
    """The metric of the winner with x held at its start."""
    trial = replace(search.new(winner.place, 3), algorithm=search.space.frozen(winner.place), spent={})
    search.trials[-1] = trial
    search.program.advance([trial], search.rounds)
    search.trials.pop()
    return trial.score if trial.alive else None


def _remarks(
    aim: Aim, space: Space, winner: Trial, search: Search, edges: Mapping[str, str], before: float | None
) -> tuple[str, ...]:
    """What one should know about the rates found."""
    said = []
    for knob, edge in edges.items():
        said.append(f"the best {knob} is among the {edge} that were tried; a larger budget would look further")
    if space.learns_x and before is not None:
        last = _at_end(search, winner) or [winner.score]
        score, noise = float(np.mean(last)), float(np.std(last)) / len(last) ** 0.5
        gain = (score - before) * (1 if aim.higher else -1)
        if gain <= max(noise, 1e-3 * abs(before)):
            what = "Φ" if aim.metric is None else aim.metric
            held = "at the start" if aim.metric is None else "with x held at its start"
            said.append(f"learning x hardly helps: {what} is {score:.6g}, {before:.6g} {held}")
    return tuple(said)


def _solution(program: Program, trial: Trial) -> Solution:
    """The solution that a trial ended with."""
    program.restore([trial])
    run = program.run.lane(0)
    prepared = replace(program.prepared, run=run, evaluate=None, evaluate_axes=None)
    row = {"round": trial.rounds, "seconds": 0.0, program.metric or PHI: trial.score}
    state = replace(jax.tree.map(jnp.asarray, trial.state), round=trial.rounds)
    return finished(prepared, state, History([row]))


def _row(space: Space, trial: Trial) -> dict[str, Any]:
    shown = {field: each for field, each in declared(space.kind).items() if each.scale is not None}
    rates = {name: value for name, value in space.rates(trial.place).items() if name in shown}
    return {"rates": _numbers(rates), **_facts(trial)}


def _facts(trial: Trial) -> dict[str, Any]:
    score = trial.score if trial.alive else None
    cost = {"calls": trial.spent.get("calls", 0), "bytes": trial.spent.get("bytes", 0)}
    return {
        "score": score, "rounds": trial.rounds, "stage": trial.stage, "key": trial.key, **cost, "diverged": trial.diverged,
    }  # fmt: skip


def _numbers(rates: Mapping[str, Any]) -> dict[str, float]:
    """Rates as numbers; a schedule by its scale."""
    found = {}
    for name, value in rates.items():
        number = getattr(value, "scale", getattr(value, "start", value))
        number = number.get("scale", number.get("start")) if isinstance(number, Mapping) else number
        if isinstance(number, int | float) and not isinstance(number, bool):
            found[name] = float(number)
    return found


def _identity(aim: Aim, algorithms: Sequence[Given], budget: float, unit: str) -> dict[str, Any]:
    """What a search depends on, as far as it can be told: a journal of another one is refused."""
    arrays = [np.asarray(leaf, float).sum() for leaf in jax.tree.leaves((aim.x0, aim.y0))]
    sizes = [int(leaf.size) for leaf in jax.tree.leaves(aim.clients) if hasattr(leaf, "size")]
    key = [int(word) for word in np.asarray(jax.random.key_data(as_key(aim.key)))]
    how = {name: repr(value) for name, value in aim.how.items() if name not in ("evaluate", "engine")}
    return {
        "rounds": aim.rounds, "algorithms": [repr(_plain(each)) for each in algorithms],
        "budget": [float(budget), unit], "key": key, "metric": aim.metric, "start": arrays,
        "data": sizes, "how": how,
    }  # fmt: skip


def simulator(engine: Any) -> Any:
    """What a search runs on: the simulator, unless the given engine makes several runs at once; what is none is refused.

    Always one device: lanes fill it, and measuring and judging need the data in one place.
    """
    if isinstance(engine, Simulator):
        return replace(engine, devices=None)
    return Simulator() if engine is None or (isinstance(engine, Engine) and not engine.batches) else engine
