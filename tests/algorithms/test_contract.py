"""The contract that every algorithm keeps, and that ``check_algorithm`` notices when one does not."""

from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.problem.schedules import at
from rookery.solving.check import _Check, check_algorithm
from tests.helpers.marks import ONE_OF_EACH_KIND, quick_ones

pytestmark = pytest.mark.first
WHOLE = {"MeFBO", "FedSGDA+"}
"""The whole contract is quick for these alone."""


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH_KIND - WHOLE))
def test_an_algorithm_of_each_kind_keeps_what_one_program_shows(name):
    """Of the contract all but lanes, clients at a time and partial participation: three times as quick as the whole."""
    algorithm = rk.registry[name]()
    _Check(algorithm, algorithm.solves[0]).alone()


@pytest.mark.parametrize("name", quick_ones(rk.registry, WHOLE))
def test_every_algorithm_keeps_the_contract(name):
    check_algorithm(rk.registry[name]())


# --- an algorithm that is not in the package --------------------------------------------------------------------------


class OwnMomentum(rk.Algorithm):
    """y and z by local steps, x by one step along a momentum that each client keeps."""

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)

    eta_x: Any = rk.Cosine(0.3, 0.1, 200.0)
    eta_y: Any = 0.3
    weight: Any = 0.5

    def init(self, x, y):
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def keep(self, x, y):
        return {"m": jnp.zeros_like(x)}

    def round(self):
        return (rk.Exchange(lambda server: server, self.client, self.server),)

    def client(self, local, down, keep):
        x = down["x"]
        d = local.f().grad_x(x, down["y"]) - local.g().cross(x, down["y"], down["z"])
        m = self.weight * d + (1 - self.weight) * keep["m"]

        def step(k, v):
            f_y, g_y = local.f(k, "z").grad_y(x, v["y"]), local.g(k, "y").grad_y(x, v["y"])
            return {"y": v["y"] - self.eta_y * g_y, "z": v["z"] - self.eta_y * (local.g(k, "z").hess(x, **v) - f_y)}

        v = local.loop(step, {"y": down["y"], "z": down["z"]})
        return rk.Reply({"x": x - at(self.eta_x, local.round) * m, **v}, keep={"m": m})

    def server(self, ctx, server, mean):
        return {**mean, "x": ctx.project_x(mean["x"]), "y": ctx.project_y(mean["y"])}


def test_an_algorithm_of_ones_own_keeps_the_contract():
    check_algorithm(OwnMomentum())


def test_an_algorithm_of_ones_own_solves_a_quadratic():
    """f = ½|x|² + aᵀx + ½|y − b|², g = ½yᵀHy − yᵀEx: ∇Φ(x) = x + ā + Mᵀ(Mx − b̄), M = H̄⁻¹Ē."""
    rng = np.random.default_rng(1)
    p = np.array([0.2, 0.5, 0.3])
    a, b, E = rng.standard_normal((3, 2)), rng.standard_normal((3, 3)), rng.standard_normal((3, 3, 2))
    root = 0.3 * rng.standard_normal((3, 3, 3))
    H = root @ root.transpose(0, 2, 1) + np.eye(3)
    data = [{"a": a[[i]], "b": b[[i]], "E": E[[i]], "H": H[[i]]} for i in range(3)]

    def upper(x, y, batch):
        return 0.5 * x @ x + (batch["a"] @ x + 0.5 * ((y - batch["b"]) ** 2).sum(1)).mean()

    def lower(x, y, batch):
        return (0.5 * jnp.einsum("i,nij,j->n", y, batch["H"], y) - jnp.einsum("i,nij,j->n", y, batch["E"], x)).mean()

    solution = rk.solve(rk.Bilevel(upper, lower), OwnMomentum(), rk.Clients(data, weights=p), np.zeros(2), np.zeros(3),
                        rounds=400, every=400)  # fmt: skip
    mean = {name: np.tensordot(p, each, 1) for name, each in (("a", a), ("b", b), ("E", E), ("H", H))}
    M = np.linalg.solve(mean["H"], mean["E"])
    best = np.linalg.solve(np.eye(2) + M.T @ M, M.T @ mean["b"] - mean["a"])
    np.testing.assert_allclose(solution.x, best, atol=1e-8)
    np.testing.assert_allclose(solution.y, M @ best, atol=1e-8)
    assert np.linalg.norm(best) > 0.1


# --- what check_algorithm must notice ---------------------------------------------------------------------------------


class Small(rk.Algorithm):
    """Descent and ascent, by the participants' mean direction."""

    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    eta: Any = 0.1

    def round(self):
        return (rk.Exchange(lambda server: server, self.client, self.server, weighting="direction"),)

    def client(self, local, down):
        d_x, d_y = local.f().grad(down["x"], down["y"])
        return {"x": d_x, "y": d_y}

    def server(self, ctx, server, mean):
        x, y = server["x"] - self.eta * mean["x"], server["y"] + self.eta * mean["y"]
        return {"x": ctx.project_x(x), "y": ctx.project_y(y)}


class Leaves(Small):
    def server(self, ctx, server, mean):
        return {**super().server(ctx, server, mean), "y": server["y"] + self.eta * mean["y"]}


class IgnoresUnusedSlots(Small):
    """Averages stacked uploads itself, and forgets ctx.mask."""

    def round(self):
        return (replace(super().round()[0], weighting="stack"),)

    def server(self, ctx, server, stacked):
        return super().server(ctx, server, {name: rows.mean(0) for name, rows in stacked.items()})


class Breaks(Small):
    def round(self):
        return (replace(super().round()[0], weighting=lambda server, ids: jnp.where(ids == 0, jnp.nan, 0.3)),)


class HostState(Small):
    """Counts its rounds in Python."""

    count = 0

    def server(self, ctx, server, mean):
        def more(_):
            HostState.count += 1
            return np.float64(HostState.count)

        drift = jax.pure_callback(more, jax.ShapeDtypeStruct((), jnp.float64), mean["x"][0])
        return super().server(ctx, server, {**mean, "x": mean["x"] + 1e-3 * drift})


class Grows(Small):
    """Uploads something else every time it is traced."""

    traced = 0

    def client(self, local, down):
        Grows.traced += 1
        return {**super().client(local, down), "more": jnp.zeros(Grows.traced)}


class NotATuple(Small):
    solves: ClassVar[Any] = ("minmax",)


class ChangesItsState(Small):
    def server(self, ctx, server, mean):
        return {**super().server(ctx, server, mean), "round": ctx.round}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Leaves(), r"Leaves on a minimax problem: y must stay in its set Box.*project_y"),
        (IgnoresUnusedSlots(), r"two clients at a time \(clients_at_once\) must change nothing"),
        (Breaks(), r"a first run must stay finite .*round 0"),
        (HostState(), r"the same key must give the same trajectory"),
        (Grows(), r"the bytes of exchange 0 must not change"),
        (ChangesItsState(), r"a first run must work, but"),
        (NotATuple(), r"solves must be a tuple of some of bilevel.*minmax"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, rk.Algorithm) else "",
)
def test_a_broken_algorithm_is_rejected(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_algorithm(broken)


def nudge(advance):
    """Every call of the engine adds a little: the result depends on how often it is called."""

    def nudged(setting, state, *more):
        state, activity = advance(setting, state, *more)
        return replace(state, server=jax.tree.map(lambda leaf: leaf * (1 - 1e-9), state.server)), activity

    return nudged


SIMULATOR, COST = import_module("rookery.engines.simulator"), import_module("rookery.algorithm.cost")
PREPARE = import_module("rookery.solving.prepare")
ENGINE_FAULTS = {
    "bytes_down must count": (COST, "tree_bytes", lambda tree: 1),
    "a changed rate must not be compiled anew": (PREPARE, "with_dtype", lambda algorithm, dtype: algorithm),
    "the evaluation period must change no iterate": (SIMULATOR, "advance", nudge(SIMULATOR.advance)),
}


@pytest.mark.parametrize("message", ENGINE_FAULTS)
def test_a_fault_of_the_engine_is_noticed(monkeypatch, message):
    monkeypatch.setattr(*ENGINE_FAULTS[message])
    with pytest.raises(AssertionError, match=message):
        check_algorithm(Small())


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"instance .*got <class"):
        check_algorithm(rk.MeFBO)
    with pytest.raises(ValueError, match=r"problem must be one of .*\(minimax\), got 'bilevel'"):
        check_algorithm(Small(), "bilevel")
