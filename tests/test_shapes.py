"""While tests run, an array of another shape than a function's types say is refused (see ``CHECKED`` in conftest)."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

import rookery as rk
from rookery.aggregation.mean import mean_of
from rookery.problem.oracles import Objective
from rookery.problem.participation import Participation

F = Objective(lambda x, y: x @ x + y @ y)
X, Y = jnp.ones(2), jnp.ones(3)
WEIGHTS, IDS, MASK = jnp.full(4, 0.25), jnp.array([0, 2]), jnp.array([True, True])
UP = {"x": jnp.ones((2, 5))}


def test_what_fits_is_taken():
    assert F.second(X, Y, Y)[1].shape == X.shape
    assert F.hessian(X, Y).shape == (3, 3)
    assert mean_of("average", {}, WEIGHTS, IDS, MASK, UP)["x"].shape == (5,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.grad(X[:, None], Y),
        lambda: F.hess(X, Y, X),
        lambda: F.cross(X, Y, jnp.ones((3, 3))),
        lambda: F.value(jnp.array([1, 2]), Y),
        lambda: mean_of("average", {}, WEIGHTS, IDS, MASK[:1], UP),
        lambda: mean_of("average", {}, WEIGHTS, IDS.astype(jnp.float32), MASK, UP),
        lambda: mean_of("average", {}, WEIGHTS[None], IDS, MASK, UP),
    ],
    ids=[
        "a matrix for x",
        "x for z",
        "a matrix for z",
        "integers",
        "a short mask",
        "ids that are not whole",
        "rows of weights",
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(TypeCheckError):
        call()


def test_so_is_what_a_function_returns():
    crooked = Objective(lambda x, y: x)
    with pytest.raises(TypeCheckError):
        crooked.value(X, Y)


def test_every_draw_is_checked():
    ids, mask = rk.Uniform(2).draw(jax.random.key(0), 4, 0)
    assert ids.shape == mask.shape == (2,)
    for kind in Participation.__subclasses__():
        if kind.__module__.startswith("rookery."):
            assert hasattr(kind.draw, "__wrapped__"), kind
