"""Minimax problems."""

import jax.numpy as jnp
import numpy as np

import rookery as rk
from benchmarks.problems import exact
from benchmarks.problems.base import Problem, examples, standard, table
from benchmarks.problems.bilevel import cross_entropies, linear, squares


def auroc() -> Problem:
    """A linear score for the area under the ROC curve, where a tenth of the examples is positive."""

    def objective(x, y, batch):
        h = batch["input"] @ x["weight"]
        positive = (1 - prior) * ((h - x["a"]) ** 2 - 2 * (1 + y) * h)
        negative = prior * ((h - x["b"]) ** 2 + 2 * (1 + y) * h)
        own = jnp.mean(jnp.where(batch["target"] == 1, positive, negative))
        return own - prior * (1 - prior) * y**2 + 1e-3 * squares(x["weight"])

    rng = np.random.default_rng(7)
    inputs, labels = table("breast_cancer")
    benign, malignant = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    kept = np.concatenate([benign, rng.permutation(malignant)[:40]])
    inputs, labels = inputs[kept], 1 - labels[kept]
    prior = float(labels.mean())
    held = rk.partition.dirichlet(labels, 6, 7, 1.0, min_size=20)
    problem = rk.Minimax(objective)
    clients = rk.Clients(
        rk.Split(examples(inputs, labels), held), weights=np.array([len(own) for own in held]) / len(labels)
    )
    x0 = {"weight": jnp.zeros(30), "a": jnp.zeros(()), "b": jnp.zeros(())}
    y0 = jnp.zeros(())
    return Problem(
        "auroc", problem, clients, x0, y0, rounds=300, participation=None, local_steps=3, batch_size=16,
        phi=exact.concave(problem, clients, y0, 2 * prior * (1 - prior)), optimum=-0.08223,
    )  # fmt: skip


def fair() -> Problem:
    """A linear model of digits whose worst class is as good as can be; a client has two classes or three."""

    def objective(x, y, batch):
        losses = cross_entropies(linear(x, batch["input"]), batch["target"])
        return 10 * jnp.mean(y[batch["target"]] * losses) + 2e-3 * squares(x)

    inputs, labels = table("digits")
    same = np.sort(np.concatenate([np.flatnonzero(labels == c)[:160] for c in range(10)]))
    inputs, labels = inputs[same], labels[same]
    problem = rk.Minimax(objective, y_set=rk.Simplex())
    clients = rk.Clients(rk.Split(examples(inputs, labels), rk.partition.shards(labels, 20, 8)))
    x0, y0 = {"weight": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}, jnp.full(10, 0.1)
    return Problem(
        "fair", problem, clients, x0, y0, rounds=300, participation=10, local_steps=3, batch_size=32,
        phi=exact.concave(problem, clients, y0, 0.0), optimum=0.1818,
    )  # fmt: skip


def robust() -> Problem:
    """A linear regression that is as good as can be for the worst of five groups of patients; a client is of one age."""

    def objective(x, y, batch):
        squared = (linear(x, batch["input"]) - batch["target"]) ** 2
        return 5 * jnp.mean(y[batch["group"]] * squared) - 0.05 * jnp.sum((y - 0.2) ** 2) + 1e-3 * squares(x)

    rng = np.random.default_rng(9)
    inputs, targets = table("diabetes")
    order = rng.permutation(len(targets))[:440]
    inputs, targets = inputs[order], standard(targets[order])
    group = np.empty(440, np.int32)
    group[np.argsort(inputs[:, 2], kind="stable")] = np.arange(440) // 88  # by body mass index
    by_age = np.argsort(inputs[:, 0], kind="stable").reshape(5, 88)
    problem = rk.Minimax(objective, y_set=rk.Simplex())
    clients = rk.Clients(rk.Split(examples(inputs, targets, group=group), list(by_age)))
    x0, y0 = {"weight": jnp.zeros(10), "bias": jnp.zeros(())}, jnp.full(5, 0.2)
    return Problem(
        "robust", problem, clients, x0, y0, rounds=300, participation=None, local_steps=5, batch_size=None,
        phi=exact.concave(problem, clients, y0, 0.1), optimum=0.5931,
    )  # fmt: skip


def saddle() -> Problem:
    """A quadratic saddle in which x wants steps a thousand times as long as y; some clients are not convex in x."""

    def objective(x, y, batch):
        curved = jnp.einsum("kij,i,j->k", batch["A"], x, x) - jnp.einsum("kij,i,j->k", batch["C"], y, y)
        return jnp.mean(0.5 * curved + jnp.einsum("kij,i,j->k", batch["B"], x, y) + batch["a"] @ x + batch["b"] @ y)

    rng = np.random.default_rng(12)
    n, p, q = 8, 10, 8
    basis_x, basis_y = (np.linalg.qr(rng.normal(size=(d, d)))[0] for d in (p, q))
    A = basis_x * np.geomspace(2e-5, 1e-3, p) @ basis_x.T + _unlike(rng, n, p) * 5e-4
    C = basis_y * np.geomspace(0.3, 30, q) @ basis_y.T + _unlike(rng, n, q) * 0.1
    B = 0.005 * rng.normal(size=(p, q)) + 0.005 * rng.normal(size=(n, p, q))
    a = -A.mean(0) @ (30 * rng.normal(size=p)) + 0.01 * rng.normal(size=(n, p))
    data = {"A": A, "B": B, "C": C, "a": a, "b": rng.normal(size=(n, q))}
    data = {name: values.astype(np.float32) for name, values in data.items()}
    problem, clients = rk.Minimax(objective), rk.Clients(rk.Split(data, list(np.arange(n)[:, None])))
    x0, y0 = jnp.zeros(p), jnp.zeros(q)
    return Problem(
        "saddle", problem, clients, x0, y0, rounds=400, participation=None, local_steps=3, batch_size=None,
        phi=exact.saddle(problem, clients, y0), optimum=-2.6749,
    )  # fmt: skip


def _unlike(rng: np.random.Generator, clients: int, size: int) -> np.ndarray:
    """Symmetric matrices of norm about 1 that sum to 0."""
    noise = rng.normal(size=(clients, size, size))
    noise = (noise + noise.transpose(0, 2, 1)) / np.sqrt(8 * size)
    return noise - noise.mean(0)
