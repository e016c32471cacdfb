"""``rk.solve`` and ``rk.solve_many``."""

from collections.abc import Sequence
from typing import Any

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import State
from rookery.engines.base import Engine
from rookery.problem.clients import Clients
from rookery.problem.participation import Participation, Steps
from rookery.problem.problems import Problem
from rookery.problem.validation import warn
from rookery.solving.lanes import Lanes
from rookery.solving.loop import make_rounds
from rookery.solving.prepare import many, prepare, single
from rookery.solving.solution import Diverged, Solution
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
    progress: bool | None = None,
    start: Solution | State | None = None,
) -> Solution:
    """Solves a federated nested problem.

    Args:
        problem: ``rk.Bilevel``, ``rk.Minimax`` or ``rk.ClientWeighting``.
        algorithm: such as ``rk.MeFBO(...)``, or its name for the default rates.
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
        engine: ``rk.Simulator()``, or ``rk.Flower(...)`` for clients on nodes.
        progress: shows a progress bar; by default on a terminal.
        start: a solution (or its ``state``) to go on from; the run is then the same as if it had not been interrupted.

    Warns:
        UserWarning: what the solution remarks about how it went (``solution.remarks``).

    Raises:
        ValueError, TypeError: a bad argument, named, before a round is compiled.
        Diverged: a number was not finite; its ``solution`` holds what was computed before.
    """
    given = single(
        problem, algorithm, clients, x0, y0, key=key, participation=participation, local_steps=local_steps,
        batch_size=batch_size, evaluate=evaluate, metric=metric, higher_is_better=higher_is_better, engine=engine,
    )  # fmt: skip
    solution = make_rounds(prepare(given), rounds, every, progress, start)
    for remark in solution.remarks:
        warn(remark)
    if solution.diverged:
        raise Diverged(solution.why(), solution)
    return solution


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
    progress: bool | None = None,
    start: Solution | State | None = None,
) -> Solution:
    """Solves a batch of runs in one compiled program: seeds, rates, starts and splits.

    ``algorithm`` (of one class, with other rates), ``clients`` (other splits of the same data, or other data of the
    same shapes) and ``keys`` may be lists, ``x0``, ``y0`` and ``evaluate`` (Equinox modules) may be ``rk.Lanes([...])``;
    all lists have the same length, the number of lanes, and what is not a list is the same for all. Arrays that are
    equal in all lanes are stored once. The other arguments are those of :func:`solve`.

    A lane is the run that :func:`solve` would make. A lane that diverges is frozen and listed in
    ``solution.diverged``; the others go on. ``solution.why(lane)`` says what the cause was. Remarks about lanes are in
    ``solution.remarks`` and are no warnings.
    """
    given = many(
        problem, algorithm, clients, x0, y0, keys=keys, participation=participation, local_steps=local_steps,
        batch_size=batch_size, evaluate=evaluate, metric=metric, higher_is_better=higher_is_better, engine=engine,
    )  # fmt: skip
    return make_rounds(prepare(given), rounds, every, progress, start)
