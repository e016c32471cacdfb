"""Client weighting: whom to trust, by a few examples that the server holds."""

import jax.numpy as jnp
import numpy as np

import rookery as rk
from benchmarks.problems import exact
from benchmarks.problems.base import Problem, diabetes, examples, standard, table
from benchmarks.problems.bilevel import cross_entropies, linear, squares


def wrong_labels() -> Problem:
    """Digits; half of the clients have labels that are wrong, in a way of each client's own."""

    def loss(w, batch):
        return jnp.mean(cross_entropies(linear(w, batch["input"]), batch["target"])) + 2e-3 * squares(w)

    rng = np.random.default_rng(10)
    inputs, labels = table("digits")
    order = rng.permutation(len(labels))
    held = order[:1200].reshape(8, 150)
    given = labels.copy()
    for client in range(4, 8):
        given[held[client]] = (labels[held[client]] + rng.integers(1, 10)) % 10
    problem = rk.ClientWeighting(loss)
    rest = order[1200:1500]
    clients = rk.Clients(rk.Split(examples(inputs, given), list(held)), server=examples(inputs[rest], labels[rest]))
    x0, y0 = jnp.full(8, 1 / 8), {"weight": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    return Problem(
        "wrong-labels", problem, clients, x0, y0, rounds=300, participation=None, local_steps=1, batch_size=32,
        phi=exact.weighting(problem, clients, y0), optimum=0.2282,
    )  # fmt: skip


def noisy_targets() -> Problem:
    """Diabetes; the targets of each client are more noisy than those of the one before, and of the last without sense."""

    def loss(w, batch):
        return jnp.mean((linear(w, batch["input"]) - batch["target"]) ** 2) + 1e-2 * squares(w)

    rng = np.random.default_rng(13)
    inputs, targets = diabetes(10, rng)
    targets = standard(targets)
    order = rng.permutation(len(targets))
    held = order[:300].reshape(6, 50)
    given = targets.copy()
    for own, noise in zip(held[:5], (0.0, 0.3, 1.0, 2.0, 4.0), strict=True):
        given[own] += noise * rng.normal(size=50).astype(np.float32)
    given[held[5]] *= -1
    problem = rk.ClientWeighting(loss)
    rest = order[300:]
    clients = rk.Clients(rk.Split(examples(inputs, given), list(held)), server=examples(inputs[rest], targets[rest]))
    x0, y0 = jnp.full(6, 1 / 6), {"weight": jnp.zeros(20), "bias": jnp.zeros(())}
    return Problem(
        "noisy-targets", problem, clients, x0, y0, rounds=300, participation=None, local_steps=1, batch_size=None,
        phi=exact.weighting(problem, clients, y0, exact.quadratic), optimum=0.5806,
    )  # fmt: skip
