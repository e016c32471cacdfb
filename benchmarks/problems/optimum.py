"""A low Φ of each problem, by L-BFGS on the exact Φ from a few starts: ``python -m benchmarks.problems.optimum [name ...]``.

It is what ``Problem.optimum`` is, rounded. Nothing says that it is the least: Φ may have many minima, and none at all where
x grows for ever. The y of a solution may lie in a better basin of a lower level that is not convex.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import rookery as rk
from benchmarks.problems import Problem, exact, problems

Slope = Callable[[Array], Array]


def descend(made: Problem, starts: int = 4, steps: int = 200) -> float:
    """The lowest Φ on the way of L-BFGS from x0 and from random points about it; x in the simplex is a softmax."""
    simplex = isinstance(made.problem.x_set, rk.Simplex)
    first, tree = ravel_pytree(jnp.zeros_like(made.x0) if simplex else made.x0)
    to_x = (lambda u: jax.nn.softmax(tree(u))) if simplex else tree
    lowest = np.inf

    def value(u: np.ndarray, slope: Slope, surrogate: Callable[[Any], Array]) -> tuple[float, np.ndarray]:
        nonlocal lowest
        x, back = jax.vjp(to_x, jnp.asarray(u, first.dtype))
        lowest = min(lowest, float(made.phi(x, made.y0)))
        found, gradient = float(surrogate(x)), np.asarray(back(slope(x))[0], np.float64)
        good = np.isfinite(found) and np.isfinite(gradient).all()
        return (found, gradient) if good else (1e30, np.zeros_like(gradient))

    rng = np.random.default_rng(0)
    for number in range(starts):
        at = np.asarray(first, np.float64)
        at = at + (number > 0) * 0.5 * max(1.0, np.abs(at).mean()) * rng.normal(size=at.shape)
        for surrogate, slope in _stages(made):
            options = {"maxiter": steps, "maxcor": 20, "ftol": 0, "gtol": 0}
            at = minimize(value, at, (slope, surrogate), "L-BFGS-B", jac=True, options=options).x
    return lowest


def _stages(made: Problem) -> list[tuple[Callable[[Any], Array], Slope]]:
    """(Function, gradient) pairs to descend one after the other. What rounding ended is begun anew."""
    problem, clients, y0 = made.problem, made.clients, made.y0

    def phi(x: Any) -> Array:
        return made.phi(x, y0)

    if made.name == "fair":
        return [_smoothed(made, curvature) for curvature in (1.0, 0.1, 0.01, 1e-3)]
    if made.name == "network":
        return [(phi, lambda x: _differences(phi, x))] * 2
    if isinstance(problem, rk.ClientWeighting):
        slope = jax.jit(lambda x: rk.measures.weighting_gradient(problem, clients, x, y0, tol=1e-4).gradient)
    elif isinstance(problem, rk.Minimax) or made.name in ("ridge", "own-heads", "raw-units", "scaled-quadratic"):
        slope = jax.jit(jax.grad(phi))  # closed forms
    else:
        slope = jax.jit(lambda x: rk.measures.hypergradient(problem, clients, x, y0, tol=1e-4).gradient)
    return [(phi, slope)] * 2


def _smoothed(made: Problem, curvature: float) -> tuple[Callable[[Any], Array], Slope]:
    """max over y in the simplex of F(x, y) − (curvature/2)‖y‖², F linear in y: without the corners of Φ."""
    f = exact.everybody(made.problem.objective, made.clients.upper, made.clients.weights)

    def value(x: Any) -> Array:
        y = made.problem.y_set.project(jax.grad(lambda v: f(x, v))(made.y0) / curvature)
        y = jax.lax.stop_gradient(y)
        return f(x, y) - curvature / 2 * jnp.vdot(y, y)

    return jax.jit(value), jax.jit(jax.grad(value))


def _differences(phi: Callable[[Any], Array], x: Any, step: float = 0.05) -> Any:
    """The gradient by central differences."""
    u, tree = ravel_pytree(x)
    moves = step * np.eye(u.size, dtype=np.float32)
    slopes = [(float(phi(tree(u + move))) - float(phi(tree(u - move)))) / (2 * step) for move in moves]
    return tree(jnp.asarray(slopes, u.dtype))


def main() -> None:
    """Prints what was found."""
    for name, make in problems().items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            print(f"{name:20}{descend(make()):.6g}", flush=True)


if __name__ == "__main__":
    main()
