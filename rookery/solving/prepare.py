"""One preparation for every run: arguments go in, a checked run comes out, and no round has been compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.aggregation.attacks import Attack
from rookery.aggregation.privacy import ClientPrivacy
from rookery.aggregation.robust import Rule
from rookery.algorithm.cost import costs_of
from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import Setting, flat_problem, start_of_x, with_dtype
from rookery.algorithms.registry import by_name, check_solves, name_of
from rookery.engines.base import Engine, Run, kept_by
from rookery.engines.simulator import Simulator
from rookery.problem.clients import Clients
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout, describe
from rookery.problem.participation import Full, Participation, Steps, check_participation
from rookery.problem.problems import ClientWeighting, Flat, Minimax, Problem
from rookery.problem.validation import check_batch, check_count, check_loss, check_mean_form, check_start, warn
from rookery.solving.lanes import Lanes, stack, stack_different
from rookery.solving.spending import names_participants, sampling_of, with_noise
from rookery.solving.trust import check_attack, check_keys, check_kinds, check_private, check_rule
from rookery.typing import Axes, BatchSize, Metrics, Tree


@dataclass(frozen=True)
class Arguments:
    """The arguments of ``rk.solve``; of what may differ between lanes, one value a lane.

    ``lanes`` is None for a single run, whose lists have one entry.
    """

    problem: Problem
    algorithms: Sequence[Algorithm | str]
    clients: Sequence[Clients]
    x0s: Sequence[Any]
    y0s: Sequence[Any]
    keys: Sequence[Any]
    evaluates: Sequence[Metrics | None]
    participation: Participation | int | None = None
    local_steps: int | Steps = 1
    batch_size: BatchSize = None
    engine: Engine | None = None
    metric: str | None = None
    higher_is_better: bool = True
    aggregate: Rule | None = None
    attack: Attack | None = None
    privacy: ClientPrivacy | None = None
    rounds: int | None = None
    """All rounds of the run, where that is known: noise may have to last for them."""
    lanes: int | None = None


@dataclass(frozen=True)
class Prepared:
    """A run, checked and ready, with the engine that makes its rounds and the function that judges it."""

    run: Run
    engine: Engine
    evaluate: Metrics | None
    evaluate_axes: Axes | None = None
    """Which leaves of ``evaluate`` have an axis of lanes."""
    metric: str | None = None
    """By which of its numbers the best iterate is kept; None keeps none."""
    higher_is_better: bool = True


def single(
    problem: Problem,
    algorithm: Algorithm | str,
    clients: Clients,
    x0: Any,
    y0: Any,
    *,
    key: Any = 0,
    evaluate: Metrics | None = None,
    **how: Any,
) -> Arguments:
    """The arguments of one run; ``how`` has those that are the same for all lanes."""
    return Arguments(problem, [algorithm], [clients], [x0], [y0], [key], [evaluate], **how)


def many(
    problem: Problem,
    algorithm: Algorithm | str | Sequence[Algorithm],
    clients: Clients | Sequence[Clients],
    x0: Any,
    y0: Any,
    *,
    keys: Sequence[Any] | Any = 0,
    evaluate: Metrics | Lanes | None = None,
    **how: Any,
) -> Arguments:
    """The arguments of a batch: what is a list, or :class:`Lanes`, has one value a lane."""
    plain = (algorithm, clients, x0, y0, keys, evaluate)
    names = ("algorithm", "clients", "x0", "y0", "keys", "evaluate")
    kinds = (list | tuple, list | tuple, Lanes, Lanes, list | tuple | range | np.ndarray, Lanes)
    given = [_listed(value, kind) for value, kind in zip(plain, kinds, strict=True)]
    lengths = {name: len(values) for name, values in zip(names, given, strict=True) if values is not None}
    if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"solve_many needs lists of one length for its lanes, got lengths {lengths}")
    lanes = next(iter(lengths.values()))
    full: list[Any] = [[one] * lanes if values is None else values for one, values in zip(plain, given, strict=True)]
    return Arguments(problem, full[0], full[1], full[2], full[3], full[4], full[5], lanes=lanes, **how)


def _listed(value: Any, kinds: Any) -> list[Any] | None:
    if not isinstance(value, kinds):
        return None
    return [int(v) if isinstance(v, np.integer) else v for v in (value.values if isinstance(value, Lanes) else value)]


def prepare(given: Arguments) -> Prepared:
    """All checks of ``rk.solve`` and ``rk.solve_many``, and nothing more: what comes back is ready to go."""
    prepared = checked(given)
    return replace(prepared, run=prepared.engine.place(prepared.run))


def checked(given: Arguments) -> Prepared:
    """What :func:`prepare` returns, but that nothing is where it will live.

    Of clients whose data are elsewhere (``Clients.elsewhere``), what needs data is checked by whoever holds them.
    """
    engine = _checked_kinds(given)
    clients = given.clients[0]
    n = clients.n
    flat, x0s = _flat(given, n)
    x, y = check_start(flat, "x0", x0s), check_start(flat, "y0", given.y0s)
    chosen = [by_name(each)() if isinstance(each, str) else each for each in given.algorithms]
    for each in chosen:
        check_solves(each, given.problem)
    steps = Steps.of(given.local_steps)
    sizes = batch_sizes(given.batch_size)
    taking = check_participation(given.participation, n)
    if not isinstance(taking, Full) and bool((clients.weights == 0).any()):
        raise ValueError("weights must be positive where not all clients take part, got a weight of 0")
    _check_losses(flat, clients, sizes, x[0], y[0])
    if given.attack is not None:
        check_attack(given.attack, given.problem, clients, taking.slots(n), given.rounds)
    for each in chosen:
        each.check(flat, clients, steps, sizes == (None, None))
    ready = [with_dtype(each, flat.x.dtype) for each in chosen]
    seeds = [as_key(key) for key in given.keys]
    trust = given.aggregate, given.attack, _as_arrays(given.privacy, x[0].dtype)
    first = Setting(flat, ready[0], clients, taking, steps, sizes, seeds[0], x[0], *trust)
    costs = tuple(costs_of(first, x[0], y[0])) if clients.here else None
    shown = engine.shows_participants or names_participants(ready[0].round(), costs or ())
    privacy = _private(given, ready[0], taking, n, shown, (x[0], y[0]))
    trust = given.aggregate, given.attack, privacy
    first = replace(first, privacy=privacy)
    if costs is not None and steps.high > 1 and not any(cost.local_steps for cost in costs):
        name = name_of(type(chosen[0]))
        raise ValueError(f"local_steps must be 1, for {name} makes none, got {given.local_steps!r}")
    _check_trust(given, ready[0], clients, taking, costs, ready[0].init(x[0], y[0]))
    if privacy is not None:
        check_keys(seeds, engine.noise_from_key)
    judged = given.metric, given.higher_is_better
    if given.lanes is None:
        prepared = Prepared(Run(first, x[0], y[0], costs), engine, given.evaluates[0], None, *judged)
    else:
        tables, axes = stack_different(
            given.clients, "clients", "splits with equal numbers, sizes and totals of examples"
        )
        judge, judge_axes = stack_different(given.evaluates, "evaluate", "modules of one structure")
        keys, starts = jnp.stack(seeds), jnp.stack(x)
        setting = Setting(flat, stack(ready, "algorithm"), tables, taking, steps, sizes, keys, starts, *trust)
        run = Run(setting, jnp.stack(x), jnp.stack(y), costs, given.lanes, axes)
        prepared = Prepared(run, engine, judge, judge_axes, *judged)
    prepared = replace(prepared, run=replace(prepared.run, shown=shown))
    engine.check(prepared.run)
    return prepared


def _private(
    given: Arguments,
    algorithm: Algorithm,
    participation: Participation,
    n: int,
    shown: bool,
    start: tuple[Array, Array],
) -> ClientPrivacy | None:
    """Privacy with its noise, as arrays: another clip or noise is not another program. ``shown`` says who takes part."""
    if given.privacy is None:
        return None
    sampling = sampling_of(participation, n, shown, kept_by(algorithm, *start))
    ready = with_noise(given.privacy, algorithm.round(), sampling, participation.expected(n), given.rounds)
    return _as_arrays(ready, start[0].dtype)


def _as_arrays(privacy: ClientPrivacy | None, dtype: Any) -> ClientPrivacy | None:
    """Privacy with numbers as arrays; with any noise, as long as none is found."""
    if privacy is None:
        return None
    known = privacy if privacy.noise is not None else replace(privacy, noise=1.0)
    arrays: ClientPrivacy = jax.tree.map(lambda number: jnp.asarray(number, dtype), known)
    return arrays


def _check_trust(
    given: Arguments, algorithm: Algorithm, clients: Clients, participation: Participation, costs: Any, server: Tree
) -> None:
    """A rule and privacy fit the run, whose server begins with the state ``server``."""
    if given.aggregate is not None:
        check_rule(given.aggregate, algorithm, clients, participation)
    if given.privacy is not None:
        check_private(given.privacy, algorithm, clients, costs, server)
        if given.evaluates[0] is None and clients.here:
            warn(
                "privacy: the losses in the history are computed on the clients' data without noise, and epsilon does not "
                "count them: give evaluate, on public data, if others are to see the history"
            )


def _checked_kinds(given: Arguments) -> Engine:
    """Whether each argument is the kind of thing that it should be. Returns the engine."""
    if not isinstance(given.problem, Problem):
        raise TypeError(f"problem must be rk.Bilevel, rk.Minimax or rk.ClientWeighting, got {given.problem!r}")
    for evaluate in given.evaluates:
        if evaluate is not None and not callable(evaluate):
            raise TypeError(f"evaluate must be a function of (x, y), got {evaluate!r}")
    if given.metric is not None and not isinstance(given.metric, str):
        raise TypeError(f"metric must be the name of a number that evaluate returns, got {given.metric!r}")
    if not isinstance(given.higher_is_better, bool):
        raise TypeError(f"higher_is_better must be True or False, got {given.higher_is_better!r}")
    if given.engine is not None and not isinstance(given.engine, Engine):
        raise TypeError(f"engine must be an rk.Engine such as rk.Simulator() or rk.Flower(), got {given.engine!r}")
    engine = given.engine or Simulator()
    if given.lanes is not None and not engine.batches:
        kind = type(engine).__name__
        raise ValueError(f"engine: {kind} makes one run at a time, take rk.solve and not a batch of lanes")
    check_kinds(given.aggregate, given.attack, given.privacy)
    for clients in given.clients:
        if not isinstance(clients, Clients):
            told = f"a {type(clients).__name__}: {describe(clients)}"
            raise TypeError(f"clients must be rk.Clients(...), got {told}")
    return engine


def _flat(given: Arguments, n: int) -> tuple[Flat, list[Any]]:
    """The problem over vectors, and where each lane starts in x."""
    problem = given.problem
    x0s = [start_of_x(problem, x0, y0, n) for x0, y0 in zip(given.x0s, given.y0s, strict=True)]
    if isinstance(problem, ClientWeighting):
        for x0 in x0s:
            if np.shape(x0) != (n,):
                raise ValueError(f"x0 must hold one weight a client ({n}), got shape {np.shape(x0)}")
    flat, _ = flat_problem(problem, x0s[0], given.y0s[0], n)
    for name, layout, values in (("x0", flat.x, x0s), ("y0", flat.y, given.y0s)):
        for value in values:
            if Layout.of(value, name) != layout:
                raise ValueError(f"{name} must have the same structure, shapes and dtypes in all lanes")
    problem.x_set.check(x0s[0], "x_set")
    problem.y_set.check(given.y0s[0], "y_set")
    return flat, x0s


def _check_losses(flat: Flat, clients: Clients, sizes: tuple[int | None, int | None], x: Array, y: Array) -> None:
    """The losses work on the data that are here."""
    weighting = isinstance(flat.problem, ClientWeighting)
    if weighting and clients.server is None:
        raise ValueError("clients: client weighting needs data at the server, give rk.Clients(..., server=examples)")
    if not clients.here:
        return
    upper = clients.server if weighting and clients.server is not None else clients.upper
    seen = {"lower": (clients.lower, sizes[0]), "upper": (upper, sizes[1])}
    if isinstance(flat.problem, Minimax):  # one objective, which sees the upper data
        del seen["lower"]
    uses_x = [check_loss(flat, name, split, clients.n) for name, (split, _) in seen.items()]
    if not any(uses_x) and not weighting:
        warn("x is used in no loss: nothing can be learned about it")
    for name, (split, size) in seen.items():
        if name == "lower" or split is not clients.lower or size != sizes[0] or "lower" not in seen:
            check_batch(size, split, name if split is not clients.server else "server")  # once for the same data
        if size is None and not split.sizes_equal:
            loss = flat.lower if name == "lower" else flat.upper
            check_mean_form(loss, split, x, y, name)


def batch_sizes(batch_size: Any) -> tuple[int | None, int | None]:
    """(lower, upper) of what ``rk.solve`` takes."""
    pair = batch_size if isinstance(batch_size, tuple) else (batch_size, batch_size)
    if len(pair) != 2:
        raise ValueError(f"batch_size must be a number, None or (lower, upper), got {batch_size!r}")
    for size in pair:
        if size is not None:
            check_count(size, "batch_size")
    return pair
