"""Client weighting in 20 dimensions: the toy problem of PrimalDual's paper."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.problem.clients import Clients, Split
from rookery.problem.measures import weighting_gradient
from rookery.problem.problems import ClientWeighting
from rookery.tasks.inputs import Example
from rookery.tasks.task import Defaults, Recipe, Task

DIMENSION, ROWS, CONVEXITY = 20, 30, 0.1


def loss(w: Array, batch: Example) -> Array:
    """½‖A w − B‖² + cos(aᵀw − b), the mean over the batch (a client has one example)."""
    residuals = batch["A"] @ w - batch["B"]
    return jnp.mean(0.5 * jnp.sum(residuals**2, -1) + jnp.cos(batch["a"] @ w - batch["b"]))


class NoisyLoss(eqx.Module):
    """:func:`loss` with white noise on the gradient and on the Hessian, none on the value.

    Adds ξᵀv + ½vᵀSv at v = w − w̄ = 0, where w̄ is w held fixed: the gradient gains ξ, the Hessian S. ξ and the upper triangle
    of the symmetric S are normal with deviation ``noise``, drawn anew for every draw and independent of each other.
    """

    noise: float

    def __call__(self, w: Array, batch: Example, key: Array) -> Array:
        """The loss, whose derivatives at w are noisy."""
        v = w - jax.lax.stop_gradient(w)
        first, second = jax.random.split(key)
        xi = jax.random.normal(first, w.shape, w.dtype)
        upper = jnp.triu(jax.random.normal(second, (w.size, w.size), w.dtype))
        product = upper @ v + jnp.triu(upper, 1).T @ v
        return loss(w, batch) + self.noise * (jnp.vdot(xi, v) + 0.5 * jnp.vdot(v, product))


class _Score(eqx.Module):
    """Without noise: how far x is from stationary, and f_0(w*(x)).

    "stationarity" is ‖x − Π(x − s∇)‖/s and "step" the same times s = 0.001, ∇ the gradient of f_0(w*(x)).
    """

    clients: Clients
    validation: Example

    def __call__(self, x: Array, w: Array) -> dict[str, Array]:
        at = weighting_gradient(ClientWeighting(loss), self.clients, x, w)
        return {"stationarity": at.stationarity, "step": at.step, "value": loss(at.w, self.validation)}


def toy_weighting(data: None = None, *, clients: int = 15, seed: int = 0, noise: float = 0.0) -> Task:
    """min over x in the simplex of f_0(w*(x)), w*(x) = argmin Σ x_i f_i(w), f_i(w) = ½‖A_i w − B_i‖² + cos(a_iᵀw − b_i).

    A_i is 30×20; all is normal with mean 0 and variance 1/√20 for A_i and a_i, 1/√30 for B_i, 1 for b_i, drawn until
    the smallest eigenvalue of A_iᵀA_i − a_i a_iᵀ is at least 0.1, so that f_i is strongly convex. f_0 is drawn likewise.
    With ``noise`` every gradient and Hessian is seen with white noise of this deviation. x starts at equal weights, w
    at a normal vector of mean square 1/20. Another seed is another instance.
    """
    if noise < 0:
        raise ValueError(f"noise must not be negative, got {noise}")
    if clients < 1:
        raise ValueError(f"clients must be at least 1, got {clients}")
    rng = np.random.default_rng([*b"toy weighting", seed])
    every = {name: jnp.asarray(part, float) for name, part in _draw(rng, clients + 1).items()}
    w = rng.standard_normal(DIMENSION) / DIMENSION**0.5
    own = {name: part[:clients] for name, part in every.items()}
    server = {name: part[clients:] for name, part in every.items()}
    parts = Clients(Split(own, [[i] for i in range(clients)], "clients"), server=server)
    return Task(
        ClientWeighting(NoisyLoss(noise) if noise else loss),
        parts,
        jnp.full(clients, 1 / clients),
        jnp.asarray(w, float),
        _Score(parts, server),
        metric="stationarity",
        higher_is_better=False,
    )


def _draw(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """So many strongly convex functions; about one of twelve draws is."""
    scale, tries = DIMENSION**-0.25, 200
    found: dict[str, list[np.ndarray]] = {"A": [], "B": [], "a": [], "b": []}
    while len(found["A"]) < count:
        A = scale * rng.standard_normal((tries, ROWS, DIMENSION))
        a = scale * rng.standard_normal((tries, DIMENSION))
        B = ROWS**-0.25 * rng.standard_normal((tries, ROWS))
        b = rng.standard_normal(tries)
        lowest = np.linalg.eigvalsh(A.transpose(0, 2, 1) @ A - a[:, :, None] * a[:, None, :])[:, 0]
        for name, part in {"A": A, "B": B, "a": a, "b": b}.items():
            found[name].extend(part[lowest >= CONVEXITY])
    return {name: np.stack(parts[:count]) for name, parts in found.items()}


TOY_WEIGHTING = Recipe(
    "toy-weighting",
    "client weighting in 20 dimensions, strongly convex, with exact measures (PrimalDual's toy problem)",
    toy_weighting,
    {
        "synthetic": Defaults(
            clients=15, rounds=500, algorithm="PrimalDual",
            rates={
                "PrimalDual": {"eta_x": 0.03, "eta_w": 0.03, "eta_lambda": 0.1, "penalty": 3.0},
                "GD-CW": {"eta_x": 0.1, "eta_w": 0.1},
                "FedNest-CW": {"eta_x": 0.01, "eta_w": 0.1, "neumann_step": 0.1},
                "SUSTAIN-CW": {"eta_x": 0.01, "eta_w": 0.1, "neumann_step": 0.1},
                "RFHO-CW": {"eta_x": 0.01, "eta_w": 0.03},
            },
        ),
    },
)  # fmt: skip
"""Rates: a small grid on other instances (seeds 100 and 101), without noise, K = 1."""
