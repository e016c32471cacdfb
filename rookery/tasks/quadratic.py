"""Quadratic problems with known solutions, whose clients differ as much as is asked for."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel, Minimax
from rookery.tasks.inputs import Example
from rookery.tasks.task import Defaults, Recipe, Task

Matrices = dict[str, np.ndarray]


def _form(left: Array, matrices: Array, right: Array) -> Array:
    """The mean over the batch of leftᵀ M right."""
    return left @ (jnp.mean(matrices, 0) @ right)


def upper(x: Array, y: Array, batch: Example) -> Array:
    """f_i = ½xᵀPx + aᵀx + ½yᵀRy + bᵀy + xᵀSy."""
    own = 0.5 * _form(x, batch["P"], x) + jnp.mean(batch["a"], 0) @ x + _form(x, batch["S"], y)
    return own + 0.5 * _form(y, batch["R"], y) + jnp.mean(batch["b"], 0) @ y


def lower(x: Array, y: Array, batch: Example) -> Array:
    """g_i = ½yᵀHy − yᵀ(Ex + e)."""
    return 0.5 * _form(y, batch["H"], y) - _form(y, batch["E"], x) - jnp.mean(batch["e"], 0) @ y


def objective(x: Array, y: Array, batch: Example) -> Array:
    """f_i = ½xᵀPx + aᵀx + xᵀSy − ½yᵀMy + bᵀy."""
    own = 0.5 * _form(x, batch["P"], x) + jnp.mean(batch["a"], 0) @ x + _form(x, batch["S"], y)
    return own - 0.5 * _form(y, batch["M"], y) + jnp.mean(batch["b"], 0) @ y


class _Score(eqx.Module):
    """‖x − x*‖, ‖y − y*‖ and ‖∇Φ(x)‖, where ∇Φ(x) = curvature (x − x*)."""

    x: Array
    y: Array
    curvature: Array

    def __call__(self, x: Array, y: Array) -> dict[str, Array]:
        away = x - self.x.astype(x.dtype)
        slope = self.curvature.astype(x.dtype) @ away
        return {
            "distance": jnp.linalg.norm(away),
            "distance_y": jnp.linalg.norm(y - self.y.astype(y.dtype)),
            "hypergradient": jnp.linalg.norm(slope),
        }


def quadratic_bilevel(
    data: None = None,
    *,
    clients: int = 10,
    seed: int = 0,
    dimension: int = 10,
    spread: float = 1.0,
    examples: int = 1,
    noise: float = 0.0,
    instance: int | None = None,
) -> Task:
    """min over x of mean_i f_i(x, y*(x)), y*(x) = argmin mean_i g_i(x, ·), both quadratic, x and y of one dimension.

    f_i = ½xᵀP_i x + a_iᵀx + ½yᵀR_i y + b_iᵀy + xᵀS_i y,   g_i = ½yᵀH_i y − yᵀ(E_i x + e_i)

    Each matrix or vector is a common one plus ``spread`` times one of the client's own of the same law. P is moved by a
    multiple of the identity so that the smallest eigenvalue of ∇²Φ is 1/2. x and y start at 0.

    A client has so many ``examples``. Their vectors a, b and e differ by ``noise`` times normal ones whose mean over the
    client's examples is 0: f_i, g_i and the solution are as they were, and gradients on minibatches are noisy.

    Each seed has an instance of its own, or all have that of the seed ``instance``, each with noise of its own. With
    ``spread`` 0 an instance is the same for any number of clients.
    """
    draw = _Draws(seed, instance, "bilevel", clients, dimension, spread)
    own = {name: draw.definite() for name in ("P", "R", "H")} | {name: draw.matrix() for name in ("S", "E")}
    own |= {name: draw.vector() for name in ("a", "b", "e")}
    P, R, H, S, E, a, b, e = (own[name].mean(0) for name in ("P", "R", "H", "S", "E", "a", "b", "e"))
    G, g = np.linalg.solve(H, E), np.linalg.solve(H, e)  # y*(x) = Gx + g
    curvature = P + S @ G + G.T @ S.T + G.T @ R @ G
    own["P"], curvature = _raised(own["P"], curvature)
    x = -np.linalg.solve(curvature, a + S @ g + G.T @ (R @ g + b))
    return _task(Bilevel(upper, lower), draw.examples(own, examples, noise), x, G @ x + g, curvature)


def quadratic_minimax(
    data: None = None,
    *,
    clients: int = 10,
    seed: int = 0,
    dimension: int = 10,
    spread: float = 1.0,
    examples: int = 1,
    noise: float = 0.0,
    instance: int | None = None,
) -> Task:
    """min over x, max over y of mean_i f_i,  f_i = ½xᵀP_i x + a_iᵀx + xᵀS_i y − ½yᵀM_i y + b_iᵀy, M_i positive definite.

    Each matrix or vector is a common one plus ``spread`` times one of the client's own of the same law. P is symmetric
    and moved by a multiple of the identity so that the smallest eigenvalue of ∇²Φ, Φ = max over y, is 1/2: f_i itself
    need not be convex in x. x and y start at 0. ``examples``, ``noise`` (of a and b) and ``instance`` as in
    :func:`quadratic_bilevel`.
    """
    draw = _Draws(seed, instance, "minimax", clients, dimension, spread)
    own = {"P": draw.symmetric(), "M": draw.definite(), "S": draw.matrix(), "a": draw.vector(), "b": draw.vector()}
    P, M, S, a, b = (own[name].mean(0) for name in ("P", "M", "S", "a", "b"))
    G, g = np.linalg.solve(M, S.T), np.linalg.solve(M, b)  # y*(x) = Gx + g
    own["P"], curvature = _raised(own["P"], P + S @ G)
    x = -np.linalg.solve(curvature, a + S @ g)
    return _task(Minimax(objective), draw.examples(own, examples, noise), x, G @ x + g, curvature)


class _Draws:
    """Random matrices, one a client: common + spread · own, eigenvalues of order 1."""

    def __init__(self, seed: int, instance: int | None, purpose: str, clients: int, dimension: int, spread: float):
        for name, value, least in (("clients", clients, 1), ("dimension", dimension, 1), ("spread", spread, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self._rng = np.random.default_rng([*purpose.encode(), seed if instance is None else instance])
        self._noise = self._rng if instance is None else np.random.default_rng([*b"noise", seed])
        self._shape, self._spread = (clients, dimension), spread

    def _mixed(self, *shape: int) -> np.ndarray:
        n = self._shape[0]
        common = self._rng.standard_normal((1, *shape))
        if self._spread == 0:  # no draws: those that follow are the same for any n
            return np.repeat(common, n, 0)
        return common + self._spread * self._rng.standard_normal((n, *shape))

    def vector(self) -> np.ndarray:
        return self._mixed(self._shape[1])

    def matrix(self) -> np.ndarray:
        d = self._shape[1]
        found: np.ndarray = self._mixed(d, d) / (2 * d**0.5)
        return found

    def symmetric(self) -> np.ndarray:
        half = self.matrix()
        found: np.ndarray = half + half.transpose(0, 2, 1)
        return found

    def definite(self) -> np.ndarray:
        """Symmetric, eigenvalues at least 1/2."""
        half = self.matrix()
        found: np.ndarray = half @ half.transpose(0, 2, 1) + 0.5 * np.eye(self._shape[1])
        return found

    def examples(self, own: Matrices, count: int, noise: float) -> Matrices:
        """Of everybody's parts ``count`` examples each, (clients, count, ...): vectors with noise of mean 0."""
        if count < 1 or noise < 0 or (noise > 0 and count < 2):
            raise ValueError(f"examples must be at least 1, and 2 where there is noise, got {count} and noise={noise}")
        every = {name: np.repeat(part[:, None], count, 1) for name, part in own.items()}
        if noise:
            for part in every.values():
                if part.ndim == 3:
                    drawn = self._noise.standard_normal(part.shape)
                    part += noise * (count / (count - 1)) ** 0.5 * (drawn - drawn.mean(1, keepdims=True))
        return every


def _raised(P: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Everybody's P and the curvature, moved so that the smallest eigenvalue of the latter is 1/2."""
    move = (0.5 - np.linalg.eigvalsh(curvature)[0]) * np.eye(len(curvature))
    return P + move, curvature + move


def _task(problem: Any, own: Matrices, x: np.ndarray, y: np.ndarray, curvature: np.ndarray) -> Task:
    """``own`` has everybody's examples."""
    clients, count = own["P"].shape[:2]
    every = {name: jnp.asarray(part.reshape(-1, *part.shape[2:]), float) for name, part in own.items()}
    split = Split(every, list(np.arange(clients * count).reshape(clients, count)), "clients")
    score = _Score(*(jnp.asarray(value, float) for value in (x, y, curvature)))
    start = jnp.zeros(len(x))
    return Task(problem, Clients(split), start, start, score, metric="distance", higher_is_better=False)


QUADRATIC_BILEVEL = Recipe(
    "quadratic-bilevel",
    "a quadratic bilevel problem of unlike clients, with its solution: distances and hypergradient are exact",
    quadratic_bilevel,
    {
        "synthetic": Defaults(
            clients=10, rounds=100, local_steps=5, algorithm="FedBiOAcc",
            rates={
                "FedBiOAcc": {"eta_x": 0.1, "eta_y": 0.3, "eta_z": 0.3, "delta": 10.0, "offset": 1000.0,
                              "c_x": 0.0, "c_y": 0.0, "c_z": 0.0},
                "FedBiO": {"eta_x": 0.01, "eta_y": 0.03, "eta_z": 0.03},
                "SimFBO": {"eta_x": 0.01, "eta_y": 0.01, "eta_z": 0.01,
                           "gamma_x": 0.03, "gamma_y": 0.1, "gamma_z": 0.1},
                "MeFBO": {"eta_x": 0.01, "eta_y": 0.01, "eta_theta": 0.01,
                          "gamma_x": 3.0, "gamma_y": 0.3, "gamma_theta": 0.3, "c": 20.0, "nu": 2.0},
                "LA-ASFBO": {"gamma_x": 0.03, "gamma_y": 0.1, "gamma_z": 0.05, "clip_x": (0.01, 0.3)},
                "FedNest": {"eta_x": 0.3, "eta_y": 1.0, "neumann_step": 0.6, "products": 10},
            },
        ),
    },
)  # fmt: skip
"""Rates: a small grid on other instances (seeds 100 and 101). FedBiOAcc's c = 0 is for whole sets only."""

QUADRATIC_MINIMAX = Recipe(
    "quadratic-minimax",
    "a quadratic minimax problem of unlike clients, with its solution: distances and the gradient of Φ are exact",
    quadratic_minimax,
    {
        "synthetic": Defaults(
            clients=10, rounds=100, local_steps=5, algorithm="SAGDA",
            rates={
                "SAGDA": {"eta_x": 0.3, "eta_y": 0.3},
                "CODASCA": {"eta": 0.3},
                "FedSGDA-M": {"eta_x": 0.1, "eta_y": 0.1, "alpha": 0.0, "beta": 0.0},
                "Local SGDA": {"eta_x": 0.03, "eta_y": 0.1},
                "FedSGDA+": {"eta_x": 0.03, "eta_y": 0.1},
                "Momentum Local SGDA": {"eta_x": 0.03, "eta_y": 0.1},
            },
        ),
    },
)  # fmt: skip
"""Rates: a small grid on other instances (seeds 100 and 101). FedSGDA-M's α = β = 0 is for whole sets only."""
