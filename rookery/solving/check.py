"""Does an algorithm keep the contract? ``check_algorithm(MyAlgorithm())`` belongs in the tests of whoever writes one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Reply, Server, Stage
from rookery.algorithm.views import Local
from rookery.engines.simulator import Simulator
from rookery.problem.clients import Clients
from rookery.problem.participation import Bernoulli, Participation, Steps, Uniform
from rookery.problem.problems import Bilevel, ClientWeighting, Flat, Minimax, Problem
from rookery.problem.sets import Box, Set
from rookery.solving.loop import make_rounds, or_diverged
from rookery.solving.prepare import many, prepare, single
from rookery.solving.solution import Diverged, Solution
from rookery.typing import Tree

ROUNDS = 4
N = 3
BOX = Box(-1.0, 1.0)


def check_algorithm(algorithm: Algorithm, problem: str | None = None) -> None:
    """Raises ``AssertionError``, naming the property, if the algorithm does not keep what every algorithm promises.

    It is run for a few rounds on tiny constrained problems of every class it ``solves`` (or of the class ``problem``
    alone), whose curvatures are about 1:

        the same key gives the same trajectory, bit by bit
        the evaluation period changes no iterate, and a continued run is the uninterrupted one, bit by bit
        all clients drawn is full participation, and computing some clients at a time changes nothing but rounding
        a lane of ``solve_many`` is the run that ``solve`` makes, up to rounding
        with some of the clients a round, and unequal numbers of local steps if it takes them, it stays finite
        x and y stay in their sets
        the bytes counted are the sizes of what a participant receives and uploads
        a changed rate is not compiled anew

    "Up to rounding" is 1e-12 in float64 and 1e-5 in float32, relative.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must be an instance of a subclass of rk.Algorithm, got {algorithm!r}")
    name, solves = type(algorithm).__name__, getattr(algorithm, "solves", ())
    if not isinstance(solves, tuple) or not solves or not set(solves) <= set(_PROBLEMS):
        raise AssertionError(f"{name}: solves must be a tuple of some of {', '.join(_PROBLEMS)}, got {solves!r}")
    if problem is not None and problem not in solves:
        raise ValueError(f"problem must be one of those that {name} solves ({', '.join(solves)}), got {problem!r}")
    for kind in solves if problem is None else (problem,):
        _Check(algorithm, kind).all()


# --- tiny problems ----------------------------------------------------------------------------------------------------


class _Calls:
    """How often a loss was called, that is traced. An identity of its own keeps programs of other checks apart."""

    def __init__(self) -> None:
        self.count = 0


class _Loss(eqx.Module):
    """A loss that counts its calls. All pull x and y out of the boxes that they start in."""

    calls: _Calls = eqx.field(static=True)


class _Upper(_Loss):
    def __call__(self, x: Tree, y: Tree, batch: Tree) -> Tree:
        self.calls.count += 1
        row = 0.5 * ((y - batch["b"]) ** 2).sum(1) + 0.5 * batch["s"] * (x @ x)
        return row.mean() - 3 * x.sum()


class _Lower(_Loss):
    def __call__(self, x: Tree, y: Tree, batch: Tree) -> Tree:
        self.calls.count += 1
        return (0.5 * batch["s"] * ((y - x - batch["a"]) ** 2).sum(1)).mean()


class _Objective(_Loss):
    def __call__(self, x: Tree, y: Tree, batch: Tree) -> Tree:
        self.calls.count += 1
        row = 0.5 * batch["s"] * (x @ x) + (batch["a"] @ x) * y.sum() - 0.5 * ((y - batch["b"]) ** 2).sum(1)
        return row.mean() - 3 * x.sum() + 3 * y.sum()


class _ClientLoss(_Loss):
    def __call__(self, w: Tree, batch: Tree) -> Tree:
        self.calls.count += 1
        return (0.5 * batch["s"] * ((w - batch["a"]) ** 2).sum(1)).mean()


def _bilevel(calls: _Calls) -> Problem:
    return Bilevel(_Upper(calls), _Lower(calls), BOX, BOX)


def _bilevel_local(calls: _Calls) -> Problem:
    return Bilevel(_Upper(calls), _Lower(calls), BOX, BOX, lower_level="local")


def _minimax(calls: _Calls) -> Problem:
    return Minimax(_Objective(calls), BOX, BOX)


def _weighting(calls: _Calls) -> Problem:
    return ClientWeighting(_ClientLoss(calls), model_set=BOX)


_PROBLEMS = {"bilevel": _bilevel, "bilevel-local": _bilevel_local, "minimax": _minimax, "weighting": _weighting}


def _clients(weights: Any) -> Clients:
    rng = np.random.default_rng(0)

    def examples(size: int) -> Tree:
        around = {"a": 1.5 + 0.5 * rng.standard_normal((size, 2)), "b": 0.5 * rng.standard_normal((size, 2))}
        return {**around, "s": rng.uniform(0.5, 1.5, size)}

    lower, upper = [examples(size) for size in (2, 3, 4)], [examples(size) for size in (4, 2, 3)]
    return Clients(lower, upper, weights=weights, server=examples(3))


# --- what is listened to ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Seen:
    """Of each exchange, by its number: the sizes that went down and up, how often a round has it, if it is sure."""

    down: dict[int, set[int]] = field(default_factory=dict)
    up: dict[int, set[int]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    sure: dict[int, bool] = field(default_factory=dict)


def _size(tree: Tree) -> int:
    arrays = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return sum(array.size * array.dtype.itemsize for array in arrays)


class _Overheard(Algorithm):
    """The same algorithm, but the sizes of what crosses are noted when it is traced."""

    inner: Algorithm
    seen: _Seen = eqx.field(static=True)

    @property
    def solves(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the algorithm."""
        return self.inner.solves

    def init(self, x: Any, y: Any) -> Tree:
        """The algorithm's."""
        return self.inner.init(x, y)

    def keep(self, x: Any, y: Any) -> Tree:
        """The algorithm's."""
        return self.inner.keep(x, y)

    def output(self, server: Tree, keep: Tree) -> tuple[Any, Any]:
        """The algorithm's."""
        return self.inner.output(server, keep)

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The algorithm's."""
        self.inner.check(flat, clients, steps, whole_sets)

    def round(self) -> tuple[Stage, ...]:
        """The algorithm's, with exchanges that are listened to."""
        return self._overhear(self.inner.round(), 1, 0)[0]

    def _overhear(self, stages: tuple[Stage, ...], times: int, number: int) -> tuple[tuple[Stage, ...], int]:
        heard: list[Stage] = []
        for stage in stages:
            if isinstance(stage, Repeat):
                inside, number = self._overhear(stage.stages, times * stage.count, number)
                heard.append(Repeat(stage.count, inside))
            elif isinstance(stage, Server):
                heard.append(stage)
            else:
                self.seen.times[number], self.seen.sure[number] = times, stage.when is None
                heard.append(self._exchange(stage, number))
                number += 1
        return tuple(heard), number

    def _exchange(self, stage: Exchange, number: int) -> Exchange:
        def client(local: Local, down: Tree, keep: Tree, carry: Tree) -> Reply:
            up, keep, carry = stage.work(local, down, keep, carry)
            self.seen.down.setdefault(number, set()).add(_size(down))
            self.seen.up.setdefault(number, set()).add(_size(up))
            return Reply(up, keep, carry)

        return replace(stage, client=client)


class _Points:
    """``evaluate`` that keeps every (x, y): NumPy inside, so it is called with the arrays themselves."""

    def __init__(self) -> None:
        self.points: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, x: Any, y: Any) -> dict[str, Any]:
        self.points.append((np.asarray(x), np.asarray(y)))
        return {}


# --- the properties ---------------------------------------------------------------------------------------------------


class _Check:
    """One algorithm on one class of problems. Three programs are compiled in all, and one of them for ``alone``."""

    def __init__(self, algorithm: Algorithm, kind: str):
        self.name = f"{type(algorithm).__name__} on a {kind} problem"
        self.algorithm = algorithm
        self.calls = _Calls()
        self.problem = _PROBLEMS[kind](self.calls)
        self.clients = _clients(None if kind == "weighting" else [0.2, 0.3, 0.5])
        self.x0 = jnp.full(N, 1 / N) if kind == "weighting" else jnp.asarray([1.0, 0.9])
        self.y0 = jnp.asarray([0.8, 0.9])
        self.tol = 1e-12 if self.x0.dtype == jnp.float64 else 1e-5
        self.steps = self._accepted(Steps(2, 2), Steps(1, 1), Steps(1, 3))

    def all(self) -> None:
        """All properties, the cheapest first."""
        alone = self.alone()
        unequal = self._accepted(Steps(1, 3), self.steps)
        with self._doing("some of the clients a round"):
            points = self._run(self.algorithm, every=1, participation=Bernoulli(0.5), steps=unequal)[1]
        self._in_sets(points)
        self._batched(*alone)

    def alone(self) -> tuple[Solution, Solution]:
        """What one program shows. Returns a run, and one with another key and other rates."""
        seen = _Seen()
        heard = _Overheard(self.algorithm, seen)
        with self._doing("a first run"):
            first, points = self._run(heard, every=1)
        self._in_sets(points)
        self._bytes(seen, first)
        return first, self._repeatable(heard, first)

    def _repeatable(self, heard: Algorithm, first: Solution) -> Solution:
        """What must hold bit by bit, with no new program. Returns a run with another key and other rates."""
        before = self.calls.count
        begun = self._run(heard, rounds=1)[0]
        warm = self.calls.count - before
        resumed = self._run(heard, rounds=ROUNDS - 1, start=begun)[0]
        if not _same(first, resumed):  # three things at once: which of them is it?
            alike = _same(first, self._run(heard, every=1)[0])
            self._require(alike, "the same key must give the same trajectory, but a second run differed")
            alike = _same(first, self._run(heard, every=ROUNDS - 1)[0])
            self._require(alike, "the evaluation period must change no iterate, but it did")
            self._require(False, "a continued run must be the uninterrupted one, but it differed")
        before = self.calls.count
        other = self._run(_scaled(heard), 2)[0]
        self._require(self.calls.count - before == warm, "a changed rate must not be compiled anew, but it was")
        return other

    def _batched(self, *alone: Solution) -> None:
        """Three things at once, to save programs: lanes, all clients drawn, and two clients computed at a time."""
        if self._lanes_are(alone, Uniform(N), Simulator(2)):
            return
        text = f"Uniform({N}) of {N} clients must be full participation, but it differed"
        self._require(self._close(self._run(self.algorithm, participation=Uniform(N))[0], alone[0]), text)
        text = "computing two clients at a time (clients_at_once) must change nothing, but it did"
        self._require(self._close(self._run(self.algorithm, at_once=2)[0], alone[0]), text)
        together = "together with clients_at_once " if self._lanes_are(alone, None, None) else ""
        self._require(False, f"a lane of solve_many {together}must be the run that solve makes, but it differed")

    def _lanes_are(
        self, alone: tuple[Solution, ...], participation: Participation | None, engine: Simulator | None
    ) -> bool:
        with self._doing("solve_many"):
            given = many(
                self.problem, [self.algorithm, _scaled(self.algorithm)], self.clients, self.x0, self.y0, keys=[1, 2],
                participation=participation, local_steps=self.steps, batch_size=2, evaluate=_nothing, engine=engine,
            )  # fmt: skip
            both = make_rounds(prepare(given), ROUNDS, ROUNDS, progress=False)
        self._require(not both.diverged, f"a lane of solve_many must stay finite where solve does, but {both.diverged}")
        return all(self._close(both.lane(lane), each) for lane, each in enumerate(alone))

    def _bytes(self, seen: _Seen, solution: Solution) -> None:
        """Bytes counted = Σ over exchanges of size · participants · executions."""
        for number in seen.times:
            sizes = seen.down[number], seen.up[number]
            fixed = len(sizes[0]) == len(sizes[1]) == 1
            self._require(fixed, f"the bytes of exchange {number} must not change from trace to trace, got {sizes}")
        done = {number: ROUNDS * times for number, times in seen.times.items() if seen.sure[number]}
        unsure = [number for number, sure in seen.sure.items() if not sure]
        counted = solution.history.last
        if len(unsure) > 1:
            return  # which of them were skipped is not known from outside
        for number in unsure:
            done[number] = counted["exchanges"] - sum(done.values())
        for what, sizes_of in (("bytes_down", seen.down), ("bytes_up", seen.up)):
            crossed = N * sum(executions * min(sizes_of[number]) for number, executions in done.items())
            wanted = f"{what} must count the sizes of what crosses, {crossed} bytes, but it counts {counted[what]}"
            self._require(counted[what] == crossed, wanted)
        wanted = f"exchanges must count them, {sum(done.values())}, but it counts {counted['exchanges']}"
        self._require(counted["exchanges"] == sum(done.values()), wanted)

    def _in_sets(self, points: _Points) -> None:
        for number, (x, y) in enumerate(points.points):
            for name, value, chosen in (("x", x, self.problem.x_set), ("y", y, self.problem.y_set)):
                for v in value.reshape(-1, value.shape[-1]):
                    gap = _distance(chosen, v)
                    inside = gap <= 10 * self.tol
                    text = f"{name} must stay in its set {chosen!r}, but at evaluation {number} it is {gap:.2g} outside"
                    self._require(inside, f"{text}: project it with ctx.project_{name} or local.project_{name}")

    def _run(
        self,
        algorithm: Algorithm,
        key: int = 1,
        *,
        rounds: int = ROUNDS,
        every: int = ROUNDS,
        participation: Participation | None = None,
        at_once: int | None = None,
        steps: Steps | None = None,
        start: Solution | None = None,
    ) -> tuple[Solution, _Points]:
        points = _Points()
        given = single(
            self.problem, algorithm, self.clients, self.x0, self.y0, key=key, participation=participation,
            local_steps=steps or self.steps, batch_size=2, evaluate=points, engine=Simulator(at_once),
        )  # fmt: skip
        return or_diverged(make_rounds(prepare(given), rounds, every, False, start)), points

    def _accepted(self, *offered: Steps) -> Steps:
        """The first of these numbers of local steps that the algorithm takes."""
        for steps in offered:
            start = self.clients, self.x0, self.y0
            try:
                with self._doing("a first run", ValueError):
                    prepare(single(self.problem, self.algorithm, *start, local_steps=steps, batch_size=2))
            except ValueError as error:
                refused = error
            else:
                return steps
        raise AssertionError(f"{self.name}: it takes neither two nor one nor unequal local steps: {refused}")

    def _close(self, one: Solution, other: Solution) -> bool:
        pairs = zip(jax.tree.leaves(_state(one)), jax.tree.leaves(_state(other)), strict=True)
        return all(np.abs(a - b).max(initial=0) <= self.tol * max(np.abs(b).max(initial=0), 0.01) for a, b in pairs)

    def _require(self, ok: bool, text: str) -> None:
        if not ok:
            raise AssertionError(f"{self.name}: {text}")

    @contextmanager
    def _doing(self, what: str, *let: type[Exception]) -> Iterator[None]:
        """Turns exceptions, but for those of the types ``let``, into ones that say what was being done."""
        try:
            yield
        except let:
            raise
        except Diverged as error:
            text = f"{what} must stay finite (curvatures are about 1; are the rates too large?), but {error}"
            raise AssertionError(f"{self.name}: {text}") from error
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{self.name}: {what} must work, but {type(error).__name__}: {error}") from error


def _nothing(x: Any, y: Any) -> dict[str, Any]:
    return {}


def _scaled(algorithm: Any) -> Any:
    """Other rates."""
    return jax.tree.map(lambda rate: 0.9 * rate, algorithm)


def _distance(chosen: Set, v: np.ndarray) -> float:
    return float(np.linalg.norm(v - np.asarray(chosen.project(jnp.asarray(v)))))


def _state(solution: Solution) -> Tree:
    return jax.tree.map(np.asarray, (solution.x, solution.y, solution.state.server, solution.state.keep))


def _equal(one: Tree, other: Tree) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def _same(one: Solution, other: Solution) -> bool:
    return _equal(_state(one), _state(other))
