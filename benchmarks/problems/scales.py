"""Bilevel problems of unusual scales, in which rates that are right elsewhere are wrong."""

import jax.numpy as jnp
import numpy as np

import rookery as rk
from benchmarks.problems import exact
from benchmarks.problems.base import Problem, diabetes, examples, halves
from benchmarks.problems.bilevel import linear, squares


def scaled_quadratic() -> Problem:
    """Quadratics; the lower level has curvatures from 0.03 to 30, and x wants steps of about 1000."""

    def upper(x, y, batch):
        return jnp.mean(0.5 * jnp.sum((y - batch["t"]) ** 2, 1)) + 0.5e-5 * x @ x

    def lower(x, y, batch):
        curved = 0.5 * jnp.einsum("kij,i,j->k", batch["H"], y, y)
        return jnp.mean(curved - jnp.einsum("kij,i,j->k", batch["M"], y, x) - batch["b"] @ y)

    rng = np.random.default_rng(11)
    n, p, q = 6, 8, 16
    basis = np.linalg.qr(rng.normal(size=(q, q)))[0]
    root = basis * np.sqrt(np.geomspace(0.03, 30, q)) @ basis.T
    unlike = rng.normal(size=(n, q, q)) / (3 * np.sqrt(q))
    unlike = unlike + unlike.transpose(0, 2, 1)
    H = root @ (np.eye(q) + 0.4 * (unlike - unlike.mean(0))) @ root
    way = rng.normal(size=(q, p))
    way *= np.sqrt(1e-3 / np.linalg.eigvalsh(way.T @ np.linalg.inv(root @ root) @ way)[-1])  # ∇²Φ up to 1e-3
    M = root @ way + 0.1 * np.abs(way).mean() * rng.normal(size=(n, q, p))
    b = root @ rng.normal(size=q) + 0.1 * rng.normal(size=(n, q))
    goal = np.linalg.solve(H.mean(0), M.mean(0) @ (30 * rng.normal(size=p)) + b.mean(0))
    data = {"H": H, "M": M, "b": b, "t": goal + 0.1 * rng.normal(size=(n, q))}
    split = rk.Split({name: values.astype(np.float32) for name, values in data.items()}, list(np.arange(n)[:, None]))
    problem, clients = rk.Bilevel(upper, lower), rk.Clients(split)
    x0, y0 = jnp.zeros(p), jnp.zeros(q)
    return Problem(
        "scaled-quadratic", problem, clients, x0, y0, rounds=400, participation=None, local_steps=5, batch_size=None,
        phi=exact.bilevel(problem, clients, y0, exact.quadratic), optimum=0.1336,
    )  # fmt: skip


def raw_units() -> Problem:
    """A scale for each of 30 inputs of a ridge regression of diabetes in its own unit: Φ is some thousands."""

    def upper(x, y, batch):
        return jnp.mean((linear(y, batch["input"] * x) - batch["target"]) ** 2)

    def lower(x, y, batch):
        return upper(x, y, batch) / 2 + 0.05 * squares(y["weight"])

    rng = np.random.default_rng(14)
    inputs, targets = diabetes(20, rng)
    data = examples(inputs, targets)
    train, held_out = halves(len(targets), 6, rng)
    by_target = np.concatenate(train)  # low targets with the first client, high ones with the last
    by_target = by_target[np.argsort(targets[by_target], kind="stable")]
    train = np.split(by_target, 6)
    problem, clients = rk.Bilevel(upper, lower), rk.Clients(rk.Split(data, train), rk.Split(data, held_out))
    x0, y0 = jnp.ones(30), {"weight": jnp.zeros(30), "bias": jnp.zeros(())}
    return Problem(
        "raw-units", problem, clients, x0, y0, rounds=300, participation=None, local_steps=2, batch_size=None,
        phi=exact.bilevel(problem, clients, y0, exact.quadratic), optimum=3069,
    )  # fmt: skip
