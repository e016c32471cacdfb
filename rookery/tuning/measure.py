"""What is measured on a problem before a search: the curvature of its lower level, and how far x should go in one step.

All of it is a few gradients and Hessian-vector products on all data at the start. They give rates their scales, so that
the search looks where rates can be and not over all numbers.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.rate import Scales
from rookery.problem.clients import Clients
from rookery.problem.problems import Problem
from rookery.problem.solvers import steep_gradients
from rookery.tuning.judge import FULL, Effort, phi
from rookery.tuning.levels import is_minimax, levels

POWER_STEPS = 12
"""Hessian-vector products of the power iteration: L to a few per cent, which is all that a scale needs."""
PASSES = 4
"""Judgements in a row that find y* at the start: everything else is compared with what is found there."""
SERIES = 30
"""Products that find z* at the start."""
LENGTHS = tuple(10.0 ** (k / 2) for k in range(-9, 11))
"""How far x is moved along −∇Φ to see which length gains most: from 3·10⁻⁵ to 10⁵."""
SHORT = 3
"""So many of them are so short that Φ should change by its slope alone."""


@eqx.filter_jit
def _curvature_at(problem: Problem, clients: Clients, like: tuple[Any, Any], x: Array, y: Array) -> Array:
    """The largest |eigenvalue| of ∇²_yy G, by power iteration."""
    g = levels(problem, clients, *like).g

    def turn(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        v, _ = state
        image = g.hess(x, y, v)
        size = jnp.linalg.norm(image)
        return image / jnp.maximum(size, jnp.finfo(v.dtype).tiny), size

    v = jax.random.normal(jax.random.key(0), y.shape, y.dtype)
    largest: Array = jax.lax.fori_loop(0, POWER_STEPS, turn, (v / jnp.linalg.norm(v), jnp.zeros((), y.dtype)))[1]
    return largest


@eqx.filter_jit
def _slopes(
    problem: Problem, clients: Clients, like: tuple[Any, Any], x: Array, y: Array, best: Array, largest: Array
) -> tuple[Array, Array, Array, Array]:
    """∇_y G at y; ∇_y F and ∇Φ at the lower solution ``best``, with at most so many products for z*; if G seems convex."""
    both = levels(problem, clients, *like)
    f, g = both.f, both.g
    f_x, f_y = f.grad(x, best)
    if is_minimax(problem):
        return g.grad_y(x, y), f_y, f_x, jnp.ones((), bool)
    z, convex = steep_gradients(lambda v: g.hess(x, best, v), f_y, SERIES, largest)
    return g.grad_y(x, y), f_y, f_x - g.cross(x, best, z), convex


class Found(NamedTuple):
    """The raw numbers."""

    curvature: float
    slope_y: float
    slope_f: float
    slope_x: float
    reach: float
    touched: float
    """The part of x whose entries ∇Φ tells something of."""
    phi: float
    along: np.ndarray
    best: np.ndarray


def _look(problem: Problem, clients: Clients, x0: Any, y0: Any, effort: Effort) -> Found:
    like = (x0, y0)
    both = levels(problem, clients, *like)
    x, y = both.flat.x.ravel(x0), both.start(y0)
    given = problem, clients, like
    best = y
    for _ in range(PASSES):
        best = phi(*given, effort, x, best, best)[1]
    value = phi(*given, effort, x, best, best)[0]  # judged as everything that is compared with it
    there = _curvature_at(*given, x, y)
    largest = jnp.maximum(there, _curvature_at(*given, x, best))
    g_y, f_y, d, convex = _slopes(*given, x, y, best, largest)
    if not convex:  # Newton's steps on a sample end where a network bends many times as much as where it is trained
        largest = there
    d = jnp.where(jnp.isfinite(d), d, 0.0)
    tiny = float(jnp.finfo(x.dtype).tiny)
    direction = d / jnp.maximum(jnp.linalg.norm(d), tiny)
    along = [
        float(phi(*given, effort, both.flat.project_x(x - length * direction), best, best)[0]) for length in LENGTHS
    ]
    far = 1e6 * g_y / jnp.maximum(jnp.linalg.norm(g_y), tiny)
    reach = jnp.linalg.norm(both.project_y(y - far) - both.project_y(y + far))
    slope_y, slope_f, slope_x = (float(jnp.linalg.norm(each)) for each in (g_y, f_y, d))
    sizes = float(largest), slope_y, slope_f, slope_x, float(reach), float(jnp.mean(d != 0))
    return Found(*sizes, float(value), np.array(along), np.asarray(best))


def measure(
    problem: Problem,
    clients: Clients,
    x0: Any,
    y0: Any,
    rounds: int,
    tau: float,
    effort: Effort = FULL,
    share: float = 1.0,
) -> tuple[Scales, float, int, Array]:
    """The scales of rates on this problem, Φ at the start, how many oracle calls that took, and the vector y*(x0).

    ``clients`` are a sample that has this ``share`` of all examples. Where ∇Φ tells of no more than that part of x, x has an
    entry for each example: on all data each entry's slope is so much smaller, and its step so much longer.
    """
    found = _look(problem, clients, x0, y0, effort)
    step, entries = _best_length(found), max(1, sum(np.size(leaf) for leaf in jax.tree.leaves(x0)))
    if 0 < found.touched <= 1.05 * share < 1.05:
        step /= share
    curvature, flat = _curvature(found)
    scales = Scales(
        x=step,
        y=1 / curvature,
        steps=float(rounds * tau),
        tau=float(tau),
        size_x=_positive(found.slope_x),
        size_y=_positive(found.slope_y),
        size_z=_positive(found.slope_f),
        rms_x=_positive(found.slope_x) / entries**0.5,
        flat_y=flat,
    )
    spent = 2 * POWER_STEPS + SERIES + (len(LENGTHS) + PASSES + 1) * effort.products + 4
    return scales, found.phi, spent * clients.n, jnp.asarray(found.best)


def _best_length(found: Found) -> float:
    """The step that moves x as far as gains nine tenths of the most, along the steepest stretch on the way there.

    Where Φ is flat at the start and steep further on, a step that suits the start would be far too long there. Where
    nothing gains, it is the step that moves x by 1; gains are nothing if they do not stand out from how much Φ is off by
    because its lower level is solved in part: by what it changes over the shortest lengths beyond its slope there.
    """
    if not found.slope_x > 0:
        return 1.0
    values = np.where(np.isfinite(found.along), found.along, np.inf)
    gains = found.phi - values
    off = np.abs(gains[:SHORT]) - 2 * found.slope_x * np.array(LENGTHS[:SHORT])
    if gains.max() <= 4 * max(0.0, off.max()):
        return float(1 / found.slope_x)
    last = int(np.argmax(gains >= 0.9 * gains.max()))
    lengths, heights = np.array([0.0, *LENGTHS[: last + 1]]), np.array([found.phi, *values[: last + 1]])
    slopes = np.where(lengths[1:] >= 0.01 * lengths[-1], np.abs(np.diff(heights)) / np.diff(lengths), 0.0)
    return float(LENGTHS[last] / max(found.slope_x, slopes[np.isfinite(slopes)].max(initial=0.0)))


def _curvature(found: Found) -> tuple[float, bool]:
    """L, and whether it is so small that steps of y have no natural length but the size of Y."""
    largest, slope, reach = float(found.curvature), float(found.slope_y), float(found.reach)
    bounded = np.isfinite(reach) and 0 < reach < 1e5
    if bounded and largest * reach < slope:
        return slope / reach, True
    if not np.isfinite(largest) or largest <= 1e-12:
        return max(slope, 1e-6), True
    return largest, False


def _positive(size: Any) -> float:
    return float(size) if np.isfinite(size) and size > 0 else 1.0
