"""Bilevel problems: one lower level for all clients, or one of each client's own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import rookery as rk
from benchmarks.problems import exact
from benchmarks.problems.base import Problem, diabetes, examples, halves, skewed, standard, table


def cross_entropies(logits: Array, labels: Array) -> Array:
    """−log softmax of each row's label."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]


def linear(y: Any, inputs: Array) -> Array:
    """A linear model {weight, bias}."""
    return inputs @ y["weight"] + y["bias"]


def squares(tree: Any) -> Array:
    """The sum of all squares."""
    return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree))


def ridge() -> Problem:
    """A penalty for each coefficient of a regression with 30 inputs that mean nothing."""

    def upper(x, y, batch):
        return jnp.mean((batch["input"] @ y - batch["target"]) ** 2)

    def lower(x, y, batch):
        return jnp.mean((batch["input"] @ y - batch["target"]) ** 2) + jnp.sum(jnp.exp(x) * y**2)

    rng = np.random.default_rng(1)
    inputs, targets = diabetes(30, rng)
    data = examples(inputs, standard(targets))
    train, held_out = halves(len(targets), 6, rng)
    train = [rows[:20] for rows in train]  # few examples for 40 inputs
    problem, clients = rk.Bilevel(upper, lower), rk.Clients(rk.Split(data, train), rk.Split(data, held_out))
    x0, y0 = jnp.full(40, -4.0), jnp.zeros(40)
    return Problem(
        "ridge", problem, clients, x0, y0, rounds=300, participation=None, local_steps=3, batch_size=None,
        phi=exact.bilevel(problem, clients, y0, exact.quadratic), optimum=0.4753,
    )  # fmt: skip


def cleaning() -> Problem:
    """A weight for each training example, of which 40 % have the wrong label."""

    def upper(x, y, batch):
        return jnp.mean(jax.nn.softplus(-batch["target"] * linear(y, batch["input"])))

    def lower(x, y, batch):
        losses = jax.nn.softplus(-batch["target"] * linear(y, batch["input"]))
        return jnp.mean(jax.nn.sigmoid(x[batch["number"]]) * losses) + 0.01 * squares(y)

    rng = np.random.default_rng(2)
    inputs, labels = table("breast_cancer")
    train, held_out = skewed(labels, 8, 1.0, seed=2)
    number = np.zeros(len(labels), np.int32)
    number[np.concatenate(train)] = np.arange(sum(map(len, train)))
    signs = np.where(labels == 1, 1.0, -1.0)
    wrong = np.where(rng.random(len(signs)) < 0.4, -signs, signs)
    problem = rk.Bilevel(upper, lower)
    clients = rk.Clients(
        rk.Split(examples(inputs, wrong, number=number), train), rk.Split(examples(inputs, signs), held_out)
    )
    x0, y0 = jnp.zeros(int(number.max()) + 1), {"weight": jnp.zeros(30), "bias": jnp.zeros(())}
    return Problem(
        "cleaning", problem, clients, x0, y0, rounds=300, participation=None, local_steps=2, batch_size=16,
        phi=exact.bilevel(problem, clients, y0), optimum=0.1283,
    )  # fmt: skip


def representation() -> Problem:
    """The first layer of a network whose best head generalises."""

    def logits(x, y, batch):
        return linear(y, jnp.tanh(linear(x, batch["input"])))

    def upper(x, y, batch):
        return jnp.mean(cross_entropies(logits(x, y, batch), batch["target"]))

    def lower(x, y, batch):
        return upper(x, y, batch) + 1e-3 * squares(y)

    rng = np.random.default_rng(3)
    inputs, labels = table("digits")
    data = examples(inputs, labels)
    train, held_out = halves(len(labels), 10, rng)
    problem, clients = rk.Bilevel(upper, lower), rk.Clients(rk.Split(data, train), rk.Split(data, held_out))
    x0 = {"weight": jnp.asarray(rng.normal(size=(64, 16)) / 8, jnp.float32), "bias": jnp.zeros(16)}
    y0 = {"weight": jnp.zeros((16, 10)), "bias": jnp.zeros(10)}
    return Problem(
        "representation", problem, clients, x0, y0, rounds=300, participation=5, local_steps=3, batch_size=32,
        phi=exact.bilevel(problem, clients, y0), optimum=0.0024,
    )  # fmt: skip


def loss_tuning() -> Problem:
    """Scales and offsets of the logits in the training loss, where the last class is 20 times as rare as the first."""

    def upper(x, y, batch):
        return jnp.mean(cross_entropies(linear(y, batch["input"]), batch["target"]))

    def lower(x, y, batch):
        logits = x["scale"] * linear(y, batch["input"]) + x["offset"]
        return jnp.mean(cross_entropies(logits, batch["target"])) + 2e-3 * squares(y)

    rng = np.random.default_rng(4)
    inputs, labels = table("digits")
    data = examples(inputs, labels)
    order = [rng.permutation(np.flatnonzero(labels == c)) for c in range(10)]
    held_out = np.concatenate([rows[:60] for rows in order])  # balanced
    rare = np.concatenate([rows[60 : 60 + round(100 * 20 ** (-c / 9))] for c, rows in enumerate(order)])
    train = [rare[rows] for rows in rk.partition.dirichlet(labels[rare], 5, 4, 1.0, min_size=20)]
    validation = np.split(rng.permutation(held_out), 5)
    problem, clients = rk.Bilevel(upper, lower), rk.Clients(rk.Split(data, train), rk.Split(data, validation))
    x0 = {"scale": jnp.ones(10), "offset": jnp.zeros(10)}
    y0 = {"weight": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    return Problem(
        "loss-tuning", problem, clients, x0, y0, rounds=300, participation=None, local_steps=2, batch_size=None,
        phi=exact.bilevel(problem, clients, y0), optimum=0.2756,
    )  # fmt: skip


def network() -> Problem:
    """A penalty for the weights of each input and of the head of a small network, all of which is trained below."""

    def logits(y, inputs):
        return linear(y["head"], jnp.tanh(linear(y["hidden"], inputs)))

    def upper(x, y, batch):
        return jnp.mean(cross_entropies(logits(y, batch["input"]), batch["target"]))

    def lower(x, y, batch):
        inputs = jnp.sum(jnp.exp(x["input"])[:, None] * y["hidden"]["weight"] ** 2)
        penalty = inputs + jnp.exp(x["head"]) * jnp.sum(y["head"]["weight"] ** 2) + 1e-3 * squares(y)
        return jnp.mean(cross_entropies(logits(y, batch["input"]), batch["target"])) + penalty

    rng = np.random.default_rng(5)
    inputs, labels = table("wine")
    wrong = rng.random(len(labels)) < 0.15
    given = np.where(wrong, rng.integers(0, 3, len(labels)), labels)
    train, held_out = halves(len(labels), 4, rng)
    problem = rk.Bilevel(upper, lower)
    clients = rk.Clients(rk.Split(examples(inputs, given), train), rk.Split(examples(inputs, labels), held_out))
    x0 = {"input": jnp.full(13, -6.0), "head": jnp.asarray(-6.0)}
    y0 = {
        "hidden": {"weight": jnp.asarray(rng.normal(size=(13, 8)) / 3, jnp.float32), "bias": jnp.zeros(8)},
        "head": {"weight": jnp.asarray(rng.normal(size=(8, 3)) / 3, jnp.float32), "bias": jnp.zeros(3)},
    }
    return Problem(
        "network", problem, clients, x0, y0, rounds=400, participation=None, local_steps=5, batch_size=None,
        phi=exact.bilevel(problem, clients, y0, exact.quasi_newton, basin=True), optimum=0.0404,
    )  # fmt: skip


def own_heads() -> Problem:
    """Penalties that all clients share, for regressions of each client's own: their targets are unlike."""

    def upper(x, y, batch):
        return jnp.mean((linear(y, batch["input"]) - batch["target"]) ** 2)

    def lower(x, y, batch):
        return upper(x, y, batch) + jnp.sum(jnp.exp(x) * y["weight"] ** 2) + 1e-3 * y["bias"] ** 2

    rng = np.random.default_rng(6)
    inputs, targets = diabetes(10, rng)
    targets = standard(targets)
    train, held_out = halves(len(targets), 6, rng)
    for client in range(6):  # everybody has coefficients and an offset of its own
        own = np.concatenate([train[client], held_out[client]])
        targets[own] += inputs[own, :10] @ (0.2 * rng.normal(size=10)) + 0.5 * rng.normal()
    data = examples(inputs, targets)
    problem = rk.Bilevel(upper, lower, lower_level="local")
    clients = rk.Clients(rk.Split(data, train), rk.Split(data, held_out))
    x0, y0 = jnp.full(20, -4.0), {"weight": jnp.zeros(20), "bias": jnp.zeros(())}
    return Problem(
        "own-heads", problem, clients, x0, y0, rounds=300, participation=None, local_steps=3, batch_size=None,
        phi=exact.local(problem, clients, y0, exact.quadratic), optimum=0.5340,
    )  # fmt: skip
