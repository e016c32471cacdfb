"""``rk.solve``, ``rk.solve_many`` and ``rk.tune``."""

import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rookery import processes
from rookery.aggregation.attacks import Attack
from rookery.aggregation.privacy import ClientPrivacy
from rookery.aggregation.robust import Rule
from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import State
from rookery.algorithms.rates import make_algorithm, tell_algorithm
from rookery.algorithms.registry import by_name
from rookery.engines.base import Engine
from rookery.engines.simulator import Simulator
from rookery.problem.clients import Clients
from rookery.problem.participation import Participation, Steps
from rookery.problem.problems import Problem
from rookery.problem.validation import warn
from rookery.solving.lanes import Lanes
from rookery.solving.loop import make_rounds, or_diverged
from rookery.solving.prepare import Arguments, checked, many, prepare, single
from rookery.solving.solution import Solution
from rookery.tuning.result import Tuning
from rookery.tuning.tune import BUDGET, Aim, Given, Unit, Wanted, search_rates, simulator
from rookery.typing import BatchSize, Metrics


def solve(
    problem: Problem,
    algorithm: Algorithm | str,
    clients: Clients,
    x0: Any,
    y0: Any,
    *,
    rounds: int,
    key: Any = 0,
    participation: Participation | int | None = None,
    local_steps: int | Steps = 1,
    batch_size: BatchSize = None,
    evaluate: Metrics | None = None,
    metric: str | None = None,
    higher_is_better: bool = True,
    every: int | None = None,
    engine: Engine | None = None,
    aggregate: Rule | None = None,
    privacy: ClientPrivacy | None = None,
    attack: Attack | None = None,
    progress: bool | None = None,
    start: Solution | State | None = None,
) -> Solution:
    """Solves a federated nested problem.

    Args:
        problem: ``rk.Bilevel``, ``rk.Minimax`` or ``rk.ClientWeighting``.
        algorithm: such as ``rk.MeFBO(eta_x=0.1)``, which is taken as it is; or its name: then its rates are searched for
            first, as :func:`tune` does, without the attack; ``solution.algorithm`` has them.
        clients: who holds which data.
        x0, y0: where to start: pytrees of float arrays. For client weighting x0 may be None (equal weights).
        rounds: communication rounds to make (more of them, if ``start`` is given).
        key: a seed or a ``jax.random.key``. The same key makes the same draws, whatever else changes.
        participation: ``rk.Uniform(10)`` (or just 10), ``rk.Bernoulli(0.5)``, ``rk.Full()``; everybody if None.
        local_steps: τ, the same for all, or ``rk.Steps(5, 15)``.
        batch_size: of minibatches, drawn with replacement; one number or (lower, upper); None takes whole sets.
        evaluate: a function (x, y) -> dict of scalars. By default the two objectives on all data.
        metric: the name of one of these numbers (by default ``upper_loss`` and ``lower_loss``, or ``objective``). The
            evaluated iterate that it likes best is ``solution.best``.
        higher_is_better: whether more of the metric is better.
        every: rounds between evaluations; by default a twentieth of all.
        engine: ``rk.Simulator()``, ``rk.Simulator(devices="all")`` for several devices or processes, or ``rk.Flower(...)``
            for clients on nodes.
        aggregate: a robust rule in the place of the weighted mean, such as ``rk.TrimmedMean(0.2)`` or ``rk.Median()``.
        privacy: ``rk.ClientPrivacy(clip=..., noise=...)`` clips uploads and adds noise to the sum; ``history["epsilon"]`` is
            what was spent. Rates must be given: a search on the clients' data would spend what nobody counts.
        attack: one of ``rk.attacks``, to see in a simulation what clients that lie can do.
        progress: shows a progress bar; by default on a terminal and in a notebook.
        start: a solution (or its ``state``) to go on from; the run is then the same as if it had not been interrupted. A
            private run goes on from a private solution alone, which says what was spent.

    Warns:
        UserWarning: what the solution remarks about how it went (``solution.remarks``).

    Raises:
        ValueError, TypeError: a bad argument, named, before a round is compiled.
        Diverged: a number was not finite; its ``solution`` holds what was computed before.
    """
    found = None
    with _together(engine):
        given = single(
            problem, algorithm, clients, x0, y0, key=key, participation=participation, local_steps=local_steps,
            batch_size=batch_size, evaluate=evaluate, metric=metric, higher_is_better=higher_is_better, engine=engine,
            aggregate=aggregate, privacy=privacy, attack=attack, rounds=all_rounds(rounds, start),
        )  # fmt: skip
        if isinstance(algorithm, str):
            if start is None:
                check_before_search(algorithm, given)
            algorithm, found = _with_rates(
                algorithm, start, problem=problem, clients=clients, x0=x0, y0=y0, rounds=rounds, key=key,
                participation=participation, local_steps=local_steps, batch_size=batch_size, evaluate=evaluate,
                metric=metric, higher_is_better=higher_is_better, engine=engine, aggregate=aggregate, progress=progress,
            )  # fmt: skip
            given = replace(given, algorithms=[algorithm])
        with warnings.catch_warnings():
            if found is not None and attack is None:
                warnings.simplefilter("ignore")  # the search has said it, which knows of no attack
            prepared = prepare(given)
        solution = make_rounds(prepared, rounds, every, progress, start)
    for remark in solution.remarks:
        warn(remark)
    told = () if found is None else found.remarks
    return replace(or_diverged(solution), algorithm=algorithm, remarks=(*told, *solution.remarks))


def all_rounds(rounds: Any, start: Solution | State | None) -> int | None:
    """The rounds of a run with those before its start; None if they are no number, which is refused later."""
    before = start.state if isinstance(start, Solution) else start
    if not isinstance(rounds, int) or not isinstance(before, State | None):
        return None
    return rounds + (0 if before is None else int(before.round))


def check_before_search(name: str, given: Arguments) -> None:
    """What would be refused after a search is refused before it; a private run needs its rates given."""
    if given.privacy is not None:
        raise ValueError(
            f"algorithm: with privacy give {name} with its rates, as in rk.registry[{name!r}](...): a search on "
            "the clients' data would spend privacy that nobody counts"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the search, or the run, will say it
        checked(given)


def _is_shared(engine: Engine | None) -> bool:
    """Whether several processes make the run: with an engine of one device each has runs of its own."""
    return processes.current() is not None and isinstance(engine, Simulator) and engine.devices is not None


def _together(engine: Engine | None) -> AbstractContextManager[None]:
    return processes.together() if _is_shared(engine) else nullcontext()


def _with_rates(name: str, start: Any, **how: Any) -> tuple[Algorithm, Tuning | None]:
    """An algorithm that was given by name, with rates: those of the run that is continued, or those that a search finds."""
    if start is None:
        if _is_shared(how["engine"]):
            told = processes.on_first(lambda: tell_algorithm(tune(algorithms=name, **how).best))
            return make_algorithm(by_name(name), told["rates"]), None
        found = tune(algorithms=name, **how)
        return found.best, found
    before = start.algorithm if isinstance(start, Solution) else None
    if type(before) is not by_name(name):
        raise ValueError(
            f"algorithm: give the algorithm that start was made with, with its rates, not its name {name!r}"
        )
    return before, None


def solve_many(
    problem: Problem,
    algorithm: Algorithm | str | Sequence[Algorithm],
    clients: Clients | Sequence[Clients],
    x0: Any,
    y0: Any,
    *,
    rounds: int,
    keys: Sequence[Any] | Any = 0,
    participation: Participation | int | None = None,
    local_steps: int | Steps = 1,
    batch_size: BatchSize = None,
    evaluate: Metrics | Lanes | None = None,
    metric: str | None = None,
    higher_is_better: bool = True,
    every: int | None = None,
    engine: Engine | None = None,
    aggregate: Rule | None = None,
    privacy: ClientPrivacy | None = None,
    attack: Attack | None = None,
    progress: bool | None = None,
    start: Solution | State | None = None,
) -> Solution:
    """Solves a batch of runs in one compiled program: seeds, rates, starts and splits.

    ``algorithm`` (of one class, with other rates), ``clients`` (other splits of the same data, or other data of the
    same shapes) and ``keys`` may be lists, ``x0``, ``y0`` and ``evaluate`` (Equinox modules) may be ``rk.Lanes([...])``;
    all lists have the same length, the number of lanes, and what is not a list is the same for all. Arrays that are
    equal in all lanes are stored once. The other arguments are those of :func:`solve`.
    An algorithm that is given by its name has its default rates here; :func:`tune` finds better ones.

    With ``privacy`` keys must differ: lanes with one key have the same noise. ``history["epsilon"]`` is that of one lane.

    A lane is the run that :func:`solve` would make. A lane that diverges is frozen and listed in
    ``solution.diverged``; the others go on. ``solution.why(lane)`` says what the cause was. Remarks about lanes are in
    ``solution.remarks`` and are no warnings.
    """
    with _together(engine):
        given = many(
            problem, algorithm, clients, x0, y0, keys=keys, participation=participation, local_steps=local_steps,
            batch_size=batch_size, evaluate=evaluate, metric=metric, higher_is_better=higher_is_better, engine=engine,
            aggregate=aggregate, privacy=privacy, attack=attack, rounds=all_rounds(rounds, start),
        )  # fmt: skip
        return make_rounds(prepare(given), rounds, every, progress, start)


def tune(
    problem: Problem,
    algorithms: str | Algorithm | type[Algorithm] | Sequence[str | Algorithm | type[Algorithm]],
    clients: Clients,
    x0: Any,
    y0: Any,
    *,
    rounds: int,
    budget: float = BUDGET,
    unit: Unit = "rounds",
    metric: str | None = None,
    higher_is_better: bool = True,
    key: Any = 0,
    participation: Participation | int | None = None,
    local_steps: int | Steps = 1,
    batch_size: BatchSize = None,
    evaluate: Metrics | None = None,
    engine: Engine | None = None,
    aggregate: Rule | None = None,
    progress: bool | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Tuning:
    """Finds the rates of one or more algorithms on a problem.

    The problem is measured first: the curvature of its lower level, and how far x should go in one step. That gives each
    rate a scale. Then many candidates make a few rounds, the best of them more, and a few all of them (successive halving),
    as lanes of one compiled program; what diverges costs nothing.

    Args:
        problem, clients, x0, y0, participation, local_steps, batch_size, engine, aggregate: as for :func:`solve`. A search
            always runs in the simulator, on one device; in one of several processes, among the clients whose data are there.
        algorithms: names or classes, whose rates are searched for, and algorithms, which are taken as they are; one or
            several.
        rounds: the rounds of a run that the rates are for.
        budget: what the search may cost for each algorithm, in runs.
        unit: what the budget is counted in: "rounds", oracle "calls" or "bytes". All algorithms have the same amount: with
            "calls" and "bytes" that of ``budget`` runs of the median algorithm.
        metric: one of the numbers that ``evaluate`` returns, by which candidates are judged; it should come from held-out
            data, never from test data. None: by Φ(x), the upper objective after some steps of the lower level alone.
        higher_is_better: whether more of the metric is better.
        key: a seed or key. The same key finds the same rates.
        evaluate: a function (x, y) -> dict of scalars, for ``metric``.
        progress: shows what is going on; by default on a terminal and in a notebook.
        folder: where the search keeps its journal; one that was interrupted goes on from there and ends the same.

    Raises:
        ValueError, TypeError: a bad argument, named, before anything is compiled; or every candidate diverged.
    """
    chosen = [algorithms] if isinstance(algorithms, str | Algorithm | type) else list(algorithms)
    wanted = [_wanted(each) for each in chosen]
    how = {
        "participation": participation, "local_steps": local_steps, "batch_size": batch_size, "evaluate": evaluate,
        "engine": simulator(engine), "aggregate": aggregate,
    }  # fmt: skip
    higher = higher_is_better if metric is not None else False
    aim = Aim(problem, clients, x0, y0, rounds, key, metric, higher, how)
    found = search_rates(aim, wanted, budget, unit, None if folder is None else Path(folder), progress)
    for remark in found.remarks:
        warn(remark)
    return found


def _wanted(given: Any) -> Given:
    if isinstance(given, str):
        return Wanted(by_name(given))
    return Wanted(given) if isinstance(given, type) else given
