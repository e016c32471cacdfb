"""``rk.solve`` and ``rk.solve_many``."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rookery.algorithm.cost import Cost, costs_of
from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import Setting, State, with_dtype
from rookery.algorithm.setting import initial_state as _first_state
from rookery.algorithms.registry import by_name, check_solves, name_of
from rookery.engines.diagnose import Found, diagnose
from rookery.engines.flower.engine import Remote
from rookery.engines.simulator import Shares, Simulator, advance, deal
from rookery.problem.clients import Clients
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout, describe, same_structure
from rookery.problem.measures import Losses
from rookery.problem.oracles import UNITS
from rookery.problem.participation import Full, Participation, Steps, check_participation
from rookery.problem.problems import ClientWeighting, Flat, Minimax, Problem
from rookery.problem.validation import check_batch, check_count, check_loss, check_mean_form, check_start, warn
from rookery.solving.history import History

Axes = tuple[int | None, ...]
"""For each leaf of a tree, whether it has an axis of lanes (0) or is the same for all (None)."""
Metrics = Callable[[Any, Any], Mapping[str, Any]]
BatchSize = int | None | tuple[int | None, int | None]
Engine = Simulator | Remote


@dataclass(frozen=True)
class Lanes:
    """One value a lane of :func:`solve_many`, where a plain list would be taken for a pytree: ``x0=rk.Lanes([a, b])``."""

    values: Sequence[Any]


@dataclass(frozen=True)
class Stopped:
    """A run (or a lane) that met a number that is not finite in ``round``, and was stopped there."""

    round: int
    lane: int | None = None

    def __str__(self) -> str:
        return f"{_of_lane(self.lane)}not finite in round {self.round}"


@dataclass(frozen=True)
class Divergence:
    """Why a run was stopped: where its first number was that is not finite, and what to do about it.

    ``exchange``, ``client``, ``step`` and ``variable`` name the first upload that held it; ``client`` is None if it was
    the server's own step, ``step`` is None if it did not arise in the local loop.
    """

    round: int
    exchange: int | None
    client: int | None
    step: int | None
    variable: str
    advice: str
    lane: int | None = None

    def __str__(self) -> str:
        where = "the server's step" if self.client is None else f"the upload of client {self.client}"
        step = "" if self.step is None else f", local step {self.step}"
        number = "" if self.exchange is None else f", exchange {self.exchange}"
        place = f"round {self.round}{number}, in {where}{step}"
        return f"{_of_lane(self.lane)}{self.variable} is not finite in {place}; {self.advice}"


def _of_lane(lane: int | None) -> str:
    return "" if lane is None else f"lane {lane}: "


class Diverged(ArithmeticError):
    """A run met a number that is not finite. ``solution`` holds what was computed up to the round before."""

    def __init__(self, divergence: Divergence, solution: "Solution"):
        super().__init__(str(divergence))
        self.divergence = divergence
        self.solution = solution


@dataclass(frozen=True)
class Solution:
    """What a run found: ``x``, ``y`` and ``history``. ``rk.solve(..., start=solution)`` goes on from here.

    Of a batch (``solve_many``) every array has a leading axis of lanes; ``lane(i)`` is one of its runs. ``diverged``
    lists the lanes that were stopped and in which round; ``why(lane)`` looks for the cause.
    """

    x: Any
    y: Any
    history: History
    state: State
    lanes: int | None = None
    diverged: tuple[Stopped, ...] = ()
    diagnose: Callable[[State, Stopped], Divergence] | None = field(default=None, repr=False, compare=False)
    """What :meth:`why` asks."""

    @property
    def rounds(self) -> int:
        """Rounds done so far."""
        return int(self.state.round)

    def lane(self, lane: int) -> "Solution":
        """One run of a batch."""
        if self.lanes is None or not 0 <= lane < self.lanes:
            raise IndexError(f"lane must be in 0..{(self.lanes or 0) - 1}, got {lane}")

        def pick(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[lane] if eqx.is_array(leaf) else leaf, tree)

        state = replace(pick(replace(self.state, round=None)), round=self.state.round)
        stopped = tuple(replace(d, lane=None) for d in self.diverged if d.lane == lane)

        def diagnose(_: State, stopped: Stopped) -> Divergence:
            return replace(self.why(lane), lane=None)

        return Solution(pick(self.x), pick(self.y), self.history.lane(lane), state, None, stopped, diagnose)

    def why(self, lane: int | None = None) -> Divergence:
        """Why a run, or this lane of a batch, diverged: its last round is repeated, one client after the other."""
        for each in self.diverged:
            if each.lane == lane and self.diagnose is not None:
                return self.diagnose(self.state, each)
        stopped = ", ".join(str(each.lane) for each in self.diverged) or "none"
        raise ValueError(f"lane must be one that diverged ({stopped}), got {lane}")


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
        every: rounds between evaluations; by default a twentieth of all.
        engine: ``rk.Simulator()``, or ``rk.Flower(...)`` for clients on nodes.
        progress: shows a progress bar; by default on a terminal.
        start: a solution (or its ``state``) to go on from; the run is then the same as if it had not been interrupted.

    Raises:
        ValueError, TypeError: a bad argument, named, before anything is compiled.
        Diverged: a number was not finite; its ``solution`` holds what was computed before.
    """
    run = prepare(
        problem, algorithm, clients, x0, y0, key=key, participation=participation, local_steps=local_steps,
        batch_size=batch_size, evaluate=evaluate, engine=engine,
    )  # fmt: skip
    solution = run.go(rounds, every, progress, start)
    if solution.diverged:
        raise Diverged(solution.why(), solution)
    return solution


def prepare(
    problem: Problem,
    algorithm: Algorithm | str,
    clients: Clients,
    x0: Any,
    y0: Any,
    *,
    key: Any = 0,
    participation: Participation | int | None = None,
    local_steps: int | Steps = 1,
    batch_size: BatchSize = None,
    evaluate: Metrics | None = None,
    engine: Engine | None = None,
) -> "Prepared":
    """All checks of :func:`solve`, and nothing more: what comes back is ready to go."""
    return Prepared.of(
        problem, [algorithm], [clients], [x0], [y0], [key], None,
        participation, local_steps, batch_size, [evaluate], engine,
    )  # fmt: skip


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
    ``solution.diverged``; the others go on. ``solution.why(lane)`` says what the cause was.
    """
    run = prepare_many(
        problem, algorithm, clients, x0, y0, keys=keys, participation=participation, local_steps=local_steps,
        batch_size=batch_size, evaluate=evaluate, engine=engine,
    )  # fmt: skip
    return run.go(rounds, every, progress, start)


def prepare_many(
    problem: Problem,
    algorithm: Algorithm | str | Sequence[Algorithm],
    clients: Clients | Sequence[Clients],
    x0: Any,
    y0: Any,
    *,
    keys: Sequence[Any] | Any = 0,
    participation: Participation | int | None = None,
    local_steps: int | Steps = 1,
    batch_size: BatchSize = None,
    evaluate: Metrics | Lanes | None = None,
    engine: Engine | None = None,
) -> "Prepared":
    """All checks of :func:`solve_many`, and nothing more."""
    given = {
        "algorithm": _listed(algorithm, list | tuple),
        "clients": _listed(clients, list | tuple),
        "x0": _listed(x0, Lanes),
        "y0": _listed(y0, Lanes),
        "keys": _listed(keys, list | tuple | range | np.ndarray),
        "evaluate": _listed(evaluate, Lanes),
    }
    lengths = {name: len(values) for name, values in given.items() if values is not None}
    if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"solve_many needs lists of one length for its lanes, got lengths {lengths}")
    lanes = next(iter(lengths.values()))
    plain = {"algorithm": algorithm, "clients": clients, "x0": x0, "y0": y0, "keys": keys, "evaluate": evaluate}
    full = {name: values if values is not None else [plain[name]] * lanes for name, values in given.items()}
    return Prepared.of(
        problem, full["algorithm"], full["clients"], full["x0"], full["y0"], full["keys"], lanes,
        participation, local_steps, batch_size, full["evaluate"], engine,
    )  # fmt: skip


def _listed(value: Any, kinds: Any) -> list[Any] | None:
    if not isinstance(value, kinds):
        return None
    return [int(v) if isinstance(v, np.integer) else v for v in (value.values if isinstance(value, Lanes) else value)]


@dataclass(frozen=True)
class Prepared:
    """A run, checked and ready to go."""

    setting: Setting
    x: Array
    y: Array
    evaluate: Any
    engine: Engine
    lanes: int | None
    clients_axes: Axes | None
    evaluate_axes: Axes | None
    costs: Sequence[Cost] | None
    """What each step of a round costs; None if only nodes can tell."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        algorithms: list[Any],
        all_clients: list[Any],
        x0s: list[Any],
        y0s: list[Any],
        keys: list[Any],
        lanes: int | None,
        participation: Any,
        local_steps: Any,
        batch_size: Any,
        evaluates: list[Metrics | None],
        engine: Engine | None,
    ) -> "Prepared":
        """Checks everything; lists have one entry a lane, ``lanes`` is None for a single run."""
        if not isinstance(problem, Problem):
            raise TypeError(f"problem must be rk.Bilevel, rk.Minimax or rk.ClientWeighting, got {problem!r}")
        for evaluate in evaluates:
            if evaluate is not None and not callable(evaluate):
                raise TypeError(f"evaluate must be a function of (x, y), got {evaluate!r}")
        if engine is not None and not isinstance(engine, Engine):
            raise TypeError(f"engine must be rk.Simulator() or rk.Flower(), got {engine!r}")
        if isinstance(engine, Remote) and lanes is not None:
            raise ValueError("engine: rk.Flower() makes one run at a time, take rk.solve and not a batch of lanes")
        for clients in all_clients:
            if not isinstance(clients, Clients):
                given = f"a {type(clients).__name__}: {describe(clients)}"
                raise TypeError(f"clients must be rk.Clients(...), got {given}")
        clients = all_clients[0]
        n = clients.n
        if isinstance(problem, ClientWeighting):
            x0s = [
                jnp.full(n, 1 / n, Layout.of(y0, "y0").dtype) if x0 is None else x0
                for x0, y0 in zip(x0s, y0s, strict=True)
            ]
            for x0 in x0s:
                if np.shape(x0) != (n,):
                    raise ValueError(f"x0 must hold one weight a client ({n}), got shape {np.shape(x0)}")
        layouts = Layout.of(x0s[0], "x0"), Layout.of(y0s[0], "y0")
        for name, layout, values in (("x0", layouts[0], x0s), ("y0", layouts[1], y0s)):
            for value in values:
                if Layout.of(value, name) != layout:
                    raise ValueError(f"{name} must have the same structure, shapes and dtypes in all lanes")
        if layouts[0].dtype != layouts[1].dtype:
            raise ValueError(f"y0 must have the dtype of x0 ({layouts[0].dtype}), got {layouts[1].dtype}")
        flat = Flat(problem, *layouts)
        problem.x_set.check(x0s[0], "x_set")
        problem.y_set.check(y0s[0], "y_set")
        x, y = check_start(flat, "x0", x0s), check_start(flat, "y0", y0s)
        chosen = [by_name(each)() if isinstance(each, str) else each for each in algorithms]
        for each in chosen:
            check_solves(each, problem)
        steps = Steps.of(local_steps)
        sizes = _batch_sizes(batch_size)
        taking = check_participation(participation, n)
        if not isinstance(taking, Full) and bool((clients.weights == 0).any()):
            raise ValueError("weights must be positive where not all clients take part, got a weight of 0")
        needs_upper = not isinstance(problem, ClientWeighting)
        upper = clients.upper if needs_upper else clients.server
        if upper is None:
            raise ValueError(
                "clients: client weighting needs data at the server, give rk.Clients(..., server=examples)"
            )
        seen = {"lower": (clients.lower, sizes[0]), "upper": (upper, sizes[1])}
        if isinstance(problem, Minimax):  # one objective, which sees the upper data
            del seen["lower"]
        uses_x = [check_loss(flat, name, split, n) for name, (split, _) in seen.items()]
        if not any(uses_x) and not isinstance(problem, ClientWeighting):
            warn("x is used in no loss: nothing can be learned about it")
        for name, (split, size) in seen.items():
            if name == "lower" or split is not clients.lower or size != sizes[0] or "lower" not in seen:
                check_batch(size, split, name if split is not clients.server else "server")  # once for the same data
            if size is None and not split.sizes_equal:
                loss = flat.lower if name == "lower" else flat.upper
                check_mean_form(loss, split, x[0], y[0], name)
        for each in chosen:
            each.check(flat, clients, steps, sizes == (None, None))
        dtype = layouts[0].dtype
        ready = [with_dtype(each, dtype) for each in chosen]
        seeds = [as_key(key) for key in keys]
        first = Setting(flat, ready[0], clients, taking, steps, sizes, seeds[0], x[0])
        costs = costs_of(first, x[0], y[0])
        if steps.high > 1 and not any(cost.local_steps for cost in costs):
            raise ValueError(f"local_steps must be 1, for {name_of(type(chosen[0]))} makes none, got {local_steps!r}")
        if lanes is None:
            return cls(first, x[0], y[0], evaluates[0], engine or Simulator(), None, None, None, costs)
        tables, axes = _stack_different(
            all_clients, "clients", "splits with equal numbers, sizes and totals of examples"
        )
        judge, judge_axes = _stack_different(evaluates, "evaluate", "modules of one structure")
        setting = Setting(
            flat, _stack(ready, "algorithm"), tables, taking, steps, sizes, jnp.stack(seeds), jnp.stack(x)
        )
        engine = engine or Simulator()
        return cls(setting, jnp.stack(x), jnp.stack(y), judge, engine, lanes, axes, judge_axes, costs)

    def lane_setting(self, lane: int) -> Setting:
        """The setting of one lane."""
        if self.lanes is None:
            return self.setting

        def pick(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[lane] if eqx.is_array(leaf) else leaf, tree)

        clients = _pick(self.setting.clients, self.clients_axes or (), lane)
        key, x0 = self.setting.key[lane], self.setting.x0[lane]
        return replace(self.setting, algorithm=pick(self.setting.algorithm), clients=clients, key=key, x0=x0)

    def go(
        self,
        rounds: int,
        every: int | None = None,
        progress: bool | None = None,
        start: Solution | State | None = None,
        watch: Callable[[State, History], None] | None = None,
        memory: Mapping[str, Any] | None = None,
        remember: Callable[[State, History, dict[str, Any]], None] | None = None,
    ) -> Solution:
        """Makes the rounds. ``watch`` is called after each evaluation; it must not hold on to the state.

        ``remember`` is called after each evaluation and between them, on nodes after each round, with what is needed beside
        state and history to go on from there: the ``memory`` of a later call.
        """
        check_count(rounds, "rounds")
        every = max(1, rounds // 20) if every is None else check_count(every, "every")
        evaluate = _Evaluation(self)
        history = History(start.history.rows if isinstance(start, Solution) else None)
        if start is None:
            state = self.initial_state()
            history.append(self._row(0, (), None, None, 0.0, evaluate(state)))
        else:
            state = self._continued(start)
            state = jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, state)
        end = int(state.round) + rounds
        before = history.rows[-1] if history.rows else None
        seconds = before["seconds"] if before is not None else 0.0
        activity: Any = 0
        if memory is not None:
            activity, seconds = np.asarray(memory["activity"], np.int64), memory["seconds"]
        pace = _Pace() if isinstance(self.engine, Simulator) else _RoundByRound()
        with self._open(state, memory) as work, _bar(self, rounds, progress) as show:

            def note(state: State) -> None:
                if remember is not None:
                    told = {"activity": np.asarray(activity).tolist(), "seconds": seconds}
                    remember(state, history, {**work.memory(), **told})

            def goes_on(state: State, stop: int) -> bool:
                return state.round < stop and not bool((state.died >= 0).all())

            while goes_on(state, end):
                stop = min(end, (state.round // every + 1) * every)
                while goes_on(state, stop):
                    made = min(stop - state.round, pace.rounds)
                    with pace:
                        state, counted = work.advance(state, made)
                        activity = activity + np.asarray(jax.block_until_ready(counted), np.int64)
                    seconds += pace.seconds
                    show(made, made / pace.seconds, None)
                    if goes_on(state, stop):  # else it is evaluated first
                        note(state)
                state = work.gather(state, final=state.round == end)
                metrics = evaluate(state)
                before = self._row(state.round, work.costs, activity, before, seconds, metrics)
                history.append(before)
                show(0, None, metrics)
                if watch is not None:
                    watch(state, history)
                activity = 0 * activity
                note(state)
        return self.finish(Solution(None, None, history, state, self.lanes))

    def _open(self, start: State, memory: Mapping[str, Any] | None) -> AbstractContextManager[Any]:
        """What makes the rounds: this process, or nodes."""
        if isinstance(self.engine, Remote):
            return self.engine.open(self, start, memory)
        shares = None
        if self.clients_axes is not None:
            shares = deal(self.setting, jax.eval_shape(self.initial_state), self.clients_axes)
        return nullcontext(_Here(self.setting, self.costs or (), self.engine.clients_at_once, shares))

    def finish(self, ended: Solution) -> Solution:
        """A solution with x, y and what diverged, from its state."""
        state = ended.state
        if self.lanes is None and int(state.died) >= 0:
            state = replace(state, round=int(state.died))  # where its iterates are
        x, y = _Evaluation(self).output(state)
        stopped = _stopped(state, self.lanes)
        return Solution(x, y, ended.history, state, self.lanes, stopped, self.diagnose if stopped else None)

    def _continued(self, start: Any) -> State:
        """The state to go on from, if it is one of such a run."""
        state = start.state if isinstance(start, Solution) else start
        if not isinstance(state, State):
            raise TypeError(f"start must be a solution or its state, got {start!r}")
        mine, theirs = (
            jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), replace(each, round=None))
            for each in (jax.eval_shape(self.initial_state), state)
        )
        if mine != theirs:
            raise ValueError(
                f"start must be of the same algorithm, problem, clients and lanes: it holds {theirs}, this run {mine}"
            )
        return state

    def initial_state(self) -> State:
        """The state before round 0."""
        if self.lanes is None:
            return _first_state(self.setting, self.x, self.y)
        states = [_first_state(self.lane_setting(i), self.x[i], self.y[i]) for i in range(self.lanes)]
        return replace(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *[replace(s, round=None) for s in states]), round=0
        )

    def _row(
        self, round: int, costs: Sequence[Cost], activity: Any, before: Any, seconds: float, metrics: dict[str, Any]
    ) -> dict[str, Any]:
        """A row of the history: counters in Python integers, since sizes times activity overflow 32 bits."""
        shape = () if self.lanes is None else (self.lanes,)
        row: dict[str, Any] = {"round": round}
        names = ("exchanges", "bytes_down", "bytes_up", *UNITS)
        for name in names:
            row[name] = np.zeros(shape, np.int64) if before is None else np.array(before[name])
        if activity is not None:
            for number, cost in enumerate(costs):
                done = activity[..., number, :, :]
                row["exchanges"] = row["exchanges"] + cost.exchange * done[..., 0, 0]
                row["bytes_down"] = row["bytes_down"] + cost.down * done[..., 0, 1]
                row["bytes_up"] = row["bytes_up"] + cost.up * done[..., 0, 1]
                for calls, when in ((cost.calls, 0), (cost.start_calls, 1)):
                    for unit, (once, each) in calls.items():
                        row[unit] = row[unit] + once * done[..., when, 1] + each * done[..., when, 2]
                for unit, (once, _) in cost.server_calls.items():
                    row[unit] = row[unit] + once * done[..., 0, 0]
        if self.lanes is None:
            row.update({name: int(row[name]) for name in names})
        return {**row, "seconds": seconds, **metrics}

    def diagnose(self, state: State, stopped: Stopped) -> Divergence:
        """Why a run, or a lane, that ended in ``state`` was stopped."""
        if isinstance(self.engine, Remote):  # a server has no data to repeat a client's work with
            advice = "try smaller rates, and look for NaN in the clients' data"
            return Divergence(stopped.round, None, None, None, "the server's state", advice, stopped.lane)
        state, x, y = replace(state, round=None), self.x, self.y
        if stopped.lane is not None:
            state, x, y = jax.tree.map(lambda leaf: leaf[stopped.lane], (state, x, y))
        found, advice = diagnose(self.lane_setting(stopped.lane or 0), state, stopped.round, x, y)
        if found is None:  # in another order of additions it is finite
            found = Found(None, None, None, "the server's state")
        return Divergence(stopped.round, *found, advice, stopped.lane)


def _stopped(state: State, lanes: int | None) -> tuple[Stopped, ...]:
    died = np.atleast_1d(np.asarray(state.died))
    return tuple(Stopped(int(died[i]), None if lanes is None else int(i)) for i in np.flatnonzero(died >= 0))


@dataclass(frozen=True)
class _Here:
    """Rounds in this process."""

    setting: Setting
    costs: Sequence[Cost]
    at_once: int | None
    shares: Shares | None

    def advance(self, state: State, rounds: int) -> tuple[State, Array]:
        return advance(self.setting, state, rounds, self.at_once, self.shares)

    def gather(self, state: State, final: bool) -> State:
        return state

    def memory(self) -> dict[str, Any]:
        return {}


class _Evaluation:
    """The metrics of a state, compiled where ``evaluate`` allows it."""

    def __init__(self, run: Prepared):
        self._lanes = run.lanes
        self._flat = run.setting.flat
        self._algorithm = run.setting.algorithm
        self._evaluate, self._axes = run.evaluate, run.evaluate_axes
        if self._evaluate is None:
            self._evaluate = Losses(self._flat.problem, run.setting.clients)
            if run.clients_axes is not None:
                self._axes = (None,) * len(jax.tree.leaves(self._flat.problem)) + run.clients_axes
        self._compiles = True

    def output(self, state: State) -> tuple[Any, Any]:
        """(x, y) as pytrees."""
        get = partial(_output, self._flat)
        return (get if self._lanes is None else eqx.filter_vmap(get))(self._algorithm, state.server, state.keep)

    def __call__(self, state: State) -> dict[str, Any]:
        """The metrics as Python numbers, or arrays over lanes."""
        run = (self._algorithm, state.server, state.keep)
        if self._compiles:
            try:
                return _numbers(_metrics(self._flat, self._evaluate, self._axes, *run), self._lanes)
            except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
                self._compiles = False  # evaluate uses NumPy or Python's if: then it is called as it is
        if self._axes is None:
            return _numbers(_by_hand(self._flat, self._evaluate, *run), None)
        rows = []
        for lane in range(self._lanes or 0):
            one = _pick(self._evaluate, self._axes, lane), *jax.tree.map(lambda leaf, lane=lane: leaf[lane], run)
            rows.append(_numbers(_by_hand(self._flat, *one), None))
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _output(flat: Flat, algorithm: Algorithm, server: Any, keep: Any) -> tuple[Any, Any]:
    x, y = algorithm.output(server, keep)
    return flat.x.unravel(x), jax.vmap(flat.y.unravel)(y) if y.ndim == 2 else flat.y.unravel(y)


def _by_hand(flat: Flat, evaluate: Metrics, algorithm: Algorithm, server: Any, keep: Any) -> dict[str, Any]:
    metrics = evaluate(*_output(flat, algorithm, server, keep))
    if not isinstance(metrics, Mapping):
        raise TypeError(f"evaluate must return a dict of scalars, got {metrics!r}")
    return dict(metrics)


@eqx.filter_jit
def _metrics(
    flat: Flat, evaluate: Metrics, axes: Axes | None, algorithm: Algorithm, server: Any, keep: Any
) -> dict[str, Any]:
    """One program for every run that uses the same ``evaluate``."""
    compute: Callable[..., dict[str, Any]] = partial(_by_hand, flat)
    if axes is not None:
        lanes = jax.tree.unflatten(jax.tree.structure(evaluate), axes)
        compute = eqx.filter_vmap(compute, in_axes=(lanes, eqx.if_array(0), eqx.if_array(0), eqx.if_array(0)))
    return compute(evaluate, algorithm, server, keep)


def _numbers(metrics: Mapping[str, Any], lanes: int | None) -> dict[str, Any]:
    shape = () if lanes is None else (lanes,)
    values = {name: np.asarray(value) for name, value in metrics.items()}
    for name, value in values.items():
        if value.shape not in ((), shape):
            raise ValueError(f"evaluate must return scalars, got shape {value.shape} for {name!r}")
        values[name] = np.broadcast_to(value, shape)  # a constant is the same in all lanes
    return {name: value.item() if lanes is None else value for name, value in values.items()}


def _batch_sizes(batch_size: Any) -> tuple[int | None, int | None]:
    pair = batch_size if isinstance(batch_size, tuple) else (batch_size, batch_size)
    if len(pair) != 2:
        raise ValueError(f"batch_size must be a number, None or (lower, upper), got {batch_size!r}")
    for size in pair:
        if size is not None:
            check_count(size, "batch_size")
    return pair


def _stack(trees: list[Any], name: str) -> Any:
    for lane, tree in enumerate(trees):
        if not same_structure(tree, trees[0]):
            raise ValueError(
                f"{name}: all lanes of one program need the same class, options and schedules; "
                f"lane 0 has {jax.tree.structure(trees[0])}, lane {lane} has {jax.tree.structure(tree)}"
            )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _stack_different(trees: list[Any], name: str, need: str) -> tuple[Any, Axes]:
    """One tree for all lanes: arrays that differ are stacked, those that don't are shared."""
    for lane, tree in enumerate(trees):
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(trees[0]), strict=False)
        same = same_structure(tree, trees[0]) and all(_alike(a, b) for a, b in pairs)
        if not same:
            raise ValueError(f"{name}: all lanes of one program need {need}; lane {lane} differs from lane 0")

    columns = list(zip(*map(jax.tree.leaves, trees), strict=True))
    axes = tuple(None if all(_same(leaf, column[0]) for leaf in column[1:]) else 0 for column in columns)
    leaves = [column[0] if axis is None else jnp.stack(column) for axis, column in zip(axes, columns, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(trees[0]), leaves), axes


def _pick(tree: Any, axes: Axes, lane: int) -> Any:
    """The tree of one lane."""
    leaves, structure = jax.tree.flatten(tree)
    picked = [leaf if axis is None else leaf[lane] for axis, leaf in zip(axes, leaves, strict=True)]
    return jax.tree.unflatten(structure, picked)


def _same(a: Any, b: Any) -> bool:
    return a is b or not eqx.is_array(a) or bool(jnp.array_equal(a, b))


def _alike(a: Any, b: Any) -> bool:
    """Whether two leaves can be lanes of one array, or are the same value."""
    if eqx.is_array(a) and eqx.is_array(b):
        return a.shape == b.shape and a.dtype == b.dtype
    return bool(a is b or a == b)


class _Pace:
    """How many rounds to compute at a time, so that a call lasts about a second: the bar moves and Ctrl-C is heard."""

    def __init__(self) -> None:
        self.rounds = 1  # it may take long

    def __enter__(self) -> None:
        self._clock = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._clock
        if self.seconds < 0.3:
            self.rounds *= 8
        elif self.seconds > 3:
            self.rounds = max(1, self.rounds // 4)


class _RoundByRound(_Pace):
    """One round at a time: each is a checkpoint."""

    def __init__(self) -> None:
        self.rounds = 1

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._clock


@contextmanager
def _bar(
    run: Prepared, rounds: int, progress: bool | None
) -> Iterator[Callable[[int, float | None, dict[str, Any] | None], None]]:
    console = Console(stderr=True)
    name = type(run.setting.algorithm).__name__
    lanes = "" if run.lanes is None else f" ×{run.lanes}"
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
        console=console,
        disable=not (console.is_terminal if progress is None else progress),
    )
    with bar:
        task = bar.add_task(name + lanes, total=rounds, speed="compiling", metrics="")

        def show(made: int, speed: float | None, metrics: dict[str, Any] | None) -> None:
            told: dict[str, Any] = {}
            if speed is not None:
                told["speed"] = f"{speed:.3g} rounds/s"
            if metrics is not None:
                shown = list(metrics.items())[:2]
                told["metrics"] = "  ".join(f"{name} {_mean(value):.4g}" for name, value in shown)
            bar.update(task, advance=made, **told)

        yield show


def _mean(values: Any) -> float:
    """Over the lanes that go on; NaN if none does."""
    finite = np.asarray(values, float)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
