"""A low Φ of each problem, by L-BFGS on the exact Φ: ``python -m benchmarks.problems.optimum [name ...]``."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import rookery as rk
from benchmarks.problems import Problem, problems


def descend(made: Problem, steps: int = 300) -> float:
    """The lowest Φ on the way of L-BFGS from x0, x in the simplex being a softmax.

    Gradients: of Φ itself where it has a closed form, else implicit ones. A maximum over the simplex has corners, which
    L-BFGS may not come over: what it finds is a bound, not a proof.
    """
    simplex = isinstance(made.problem.x_set, rk.Simplex)
    start, tree = ravel_pytree(jnp.zeros_like(made.x0) if simplex else made.x0)
    gradient = jax.jit(_gradient(made))
    lowest = np.inf

    def value(u: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal lowest
        u = jnp.asarray(u, start.dtype)
        x, back = jax.vjp(lambda v: jax.nn.softmax(tree(v)) if simplex else tree(v), u)
        found = float(made.phi(x, made.y0))
        lowest = min(lowest, found)
        slope = np.asarray(back(gradient(x))[0], np.float64)
        if not np.isfinite(found) or not np.isfinite(slope).all():
            return 1e30, np.zeros_like(slope)
        return found, slope

    for _ in range(3):  # a search that rounding ended is begun anew
        found = minimize(value, np.asarray(start, np.float64), jac=True, method="L-BFGS-B",
                         options={"maxiter": steps, "maxcor": 20, "ftol": 0, "gtol": 0})  # fmt: skip
        start = jnp.asarray(found.x, start.dtype)
    return lowest


def _gradient(made: Problem) -> Callable[[Any], Any]:
    problem, clients = made.problem, made.clients
    if isinstance(problem, rk.ClientWeighting):
        return lambda x: rk.measures.weighting_gradient(problem, clients, x, made.y0, tol=1e-4).gradient
    if isinstance(problem, rk.Minimax):
        return jax.grad(lambda x: made.phi(x, made.y0))
    if made.name in ("ridge", "own-heads", "raw-units", "scaled-quadratic"):
        return jax.grad(lambda x: made.phi(x, made.y0))
    return lambda x: rk.measures.hypergradient(problem, clients, x, made.y0, tol=1e-4).gradient


def main() -> None:
    """Prints what was found."""
    for name, make in problems().items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            print(f"{name:20}{descend(make()):.6g}", flush=True)


if __name__ == "__main__":
    main()
