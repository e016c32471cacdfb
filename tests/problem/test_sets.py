"""Projections and tangent cones (T-07)."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from rookery.problem.sets import Ball, Box, NonNegative, Product, Set, Simplex, WholeSpace, normalise

INF = np.inf
PAIR = {"a": jnp.zeros(4), "b": (jnp.zeros((2, 3)),)}  # flat: 4 entries, then 6


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@eqx.filter_jit
def project(s: Set, tree):
    return s.project(tree)


@eqx.filter_jit
def tangent(s: Set, v, d):
    return s.tangent(v, d)


def draws(like, seed: int, scale: float = 1.0, dtype=jnp.float64):
    """An endless row of random trees."""
    rng = np.random.default_rng(seed)
    while True:
        yield jax.tree.map(lambda x: jnp.asarray(scale * rng.standard_normal(x.shape), dtype), like)


def simplex(x: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """The projection by root finding, where rookery sorts."""
    shift = optimize.brentq(lambda s: np.maximum(x - s, 0).sum() - scale, x.min() - scale, x.max(), xtol=1e-15)
    return np.maximum(x - shift, 0)


def ball(x: np.ndarray, radius: float) -> np.ndarray:
    return x * min(1, radius / np.linalg.norm(x))


# set, a tree of its variable, the projection of flat vectors in NumPy
CASES = {
    "whole": (WholeSpace(), PAIR, lambda x: x),
    "ball": (Ball(1.5), PAIR, lambda x: ball(x, 1.5)),
    "ball-infinite": (Ball(INF), PAIR, lambda x: x),
    "box": (Box(-0.4, 0.7), PAIR, lambda x: np.clip(x, -0.4, 0.7)),
    "box-array": (
        Box(jnp.array([-0.5, 0.1, -INF]), jnp.array([0.5, 0.1, 0.3])),
        jnp.zeros((2, 3)),
        lambda x: np.clip(x, 2 * [-0.5, 0.1, -INF], 2 * [0.5, 0.1, 0.3]),
    ),
    "box-tree": (
        Box({"a": -0.1, "b": -jnp.arange(3.0)}, 0.5),
        PAIR,
        lambda x: np.clip(x, 4 * [-0.1] + 2 * [0, -1, -2], 0.5),
    ),
    "simplex": (Simplex(), jnp.zeros(8), simplex),
    "simplex-one": (Simplex(), jnp.zeros(1), lambda x: np.ones(1)),
    "simplex-matrix": (Simplex(3.0), {"p": jnp.zeros((2, 3))}, lambda x: simplex(x, 3.0)),
    "non-negative": (NonNegative(), PAIR, lambda x: np.maximum(x, 0)),
    "product": (
        Product({"a": Simplex(), "b": Ball(0.5)}),
        PAIR,
        lambda x: np.concatenate([simplex(x[:4]), ball(x[4:], 0.5)]),
    ),
    "nested": (
        Product({"a": WholeSpace(), "b": Product((NonNegative(),))}),
        PAIR,
        lambda x: np.concatenate([x[:4], np.maximum(x[4:], 0)]),
    ),
}
cases = pytest.mark.parametrize(("s", "like", "reference"), CASES.values(), ids=CASES)
SIMPLICES = [Simplex(), Simplex(0.2), Simplex(50.0)]
simplices = pytest.mark.parametrize("s", SIMPLICES, ids=str)


# Projection


@cases
@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_project_equals_reference(s, like, reference, scale):
    for u, _ in zip(draws(like, 1, scale), range(5), strict=False):
        p = project(s, u)
        assert jax.tree.map(jnp.shape, p) == jax.tree.map(jnp.shape, u)
        np.testing.assert_allclose(flat(p), reference(flat(u)), rtol=1e-12, atol=1e-13)


@cases
def test_project_is_idempotent(s, like, reference):
    p = project(s, next(draws(like, 2, 10.0)))
    np.testing.assert_allclose(flat(project(s, p)), flat(p), rtol=0, atol=1e-14)


@cases
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_project_is_non_expansive(s, like, reference, scale):
    trees = draws(like, 3, scale)
    for _ in range(5):
        u, w = next(trees), next(trees)
        before, after = flat(u) - flat(w), flat(project(s, u)) - flat(project(s, w))
        assert np.linalg.norm(after) <= np.linalg.norm(before) * (1 + 1e-12)


@simplices
def test_simplex_solves_the_quadratic_program(s):
    for u, _ in zip(draws(jnp.zeros(6), 4), range(3), strict=False):
        solution = optimize.minimize(
            lambda p: ((p - u) ** 2).sum(),
            np.full(6, s.scale / 6),
            jac=lambda p: 2 * (p - np.asarray(u)),
            bounds=[(0, None)] * 6,
            constraints={"type": "eq", "fun": lambda p: p.sum() - s.scale, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-16},
        )
        np.testing.assert_allclose(project(s, u), solution.x, atol=1e-6 * s.scale)


@simplices
@pytest.mark.parametrize("constant", [-3.0, 0.5, 1e6])
def test_simplex_ignores_a_constant(s, constant):
    u = next(draws(jnp.zeros(9), 5))
    np.testing.assert_allclose(project(s, u + constant), project(s, u), atol=1e-9)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_simplex_sums_to_scale_far_from_it(dtype):
    """Plain cumulative sums of numbers near 1e5 are off by 1e-2 in float32."""
    u = 1e5 + next(draws(jnp.zeros(200), 6, 1e-2, dtype))
    p = project(Simplex(), u)
    assert abs(float(p.sum()) - 1) < 100 * jnp.finfo(dtype).eps
    assert abs(float(tangent(Simplex(), p, u).sum())) < 100 * jnp.finfo(dtype).eps


def test_simplex_derivative_is_the_projection_on_the_face():
    u = jnp.array([0.9, 0.3, -2.0])
    jacobian = jax.jacobian(Simplex().project)(u)
    np.testing.assert_allclose(jacobian, [[0.5, -0.5, 0], [-0.5, 0.5, 0], [0, 0, 0]], atol=1e-15)


def test_normalise_is_not_the_projection():
    u = jnp.array([0.5, 2.0, -1.0, 1.5])
    np.testing.assert_allclose(normalise(u), [0.125, 0.5, 0, 0.375])
    np.testing.assert_allclose(Simplex().project(u), [0, 0.75, 0, 0.25])
    assert float(jnp.abs(normalise(u + 1) - normalise(u)).max()) > 0.05


def test_ball_leaves_inner_points_alone_bit_by_bit():
    u = next(draws(PAIR, 7, 0.01))
    for radius in (0.1, 0.3, np.float32(0.7), jnp.float32(1.1)):
        assert (flat(Ball(radius).project(u)) == flat(u)).all()


# Tangent cone


@cases
@pytest.mark.parametrize("at", [0.0, 0.3, 30.0])
def test_tangent_is_the_limit_of_projections(s, like, reference, at):
    """(project(v + s d) − v)/s -> tangent(v, d): exact for small s if C is a polyhedron, up to O(s) for the ball."""
    for v, d, _ in zip(draws(like, 8, at), draws(like, 9), range(5), strict=False):
        v = project(s, v)
        step = 1e-6
        moved = jax.tree.map(lambda v, d: v + step * d, v, d)
        limit = (reference(flat(moved)) - flat(v)) / step
        np.testing.assert_allclose(flat(tangent(s, v, d)), limit, atol=1e-5)


@cases
@pytest.mark.parametrize("at", [0.0, 0.3, 30.0])
def test_moreau(s, like, reference, at):
    """d = t + n with t tangent, n normal, ⟨t, n⟩ = 0: n is normal iff ⟨n, w − v⟩ <= 0 for all w ∈ C."""
    others = draws(like, 10, 5.0)
    for v, d, _ in zip(draws(like, 11, at), draws(like, 12), range(5), strict=False):
        v = project(s, v)
        t = tangent(s, v, d)
        n = flat(d) - flat(t)
        assert abs(n @ flat(t)) < 1e-12
        for _ in range(20):
            assert n @ (flat(project(s, next(others))) - flat(v)) < 1e-10
        np.testing.assert_allclose(flat(tangent(s, v, t)), flat(t), atol=1e-12)  # t is in the cone


@pytest.mark.parametrize("zeros", [0, 1, 3, 5])
def test_simplex_tangent_equals_enumeration(zeros):
    """The best of all choices of which zeros stay zero."""
    rng = np.random.default_rng(zeros)
    for _ in range(10):
        v = np.concatenate([np.zeros(zeros), rng.dirichlet(np.ones(6 - zeros))])
        d = rng.standard_normal(6)
        best = None
        for stay in itertools.product([False, True], repeat=zeros):
            free = ~np.array([*stay, *[False] * (6 - zeros)])
            t = np.where(free, d - d[free].mean(), 0)
            if (t[:zeros] >= 0).all() and (best is None or ((d - t) ** 2).sum() < ((d - best) ** 2).sum()):
                best = t
        np.testing.assert_allclose(Simplex().tangent(jnp.asarray(v), jnp.asarray(d)), best, atol=1e-12)


def test_box_tangent_by_hand():
    v, d = jnp.array([0.0, 0.0, 1.0, 1.0, 0.5, 0.5]), jnp.array([-1.0, 2.0, -3.0, 4.0, -5.0, 6.0])
    assert Box(0.0, 1.0).tangent(v, d).tolist() == [0, 2, -3, 0, -5, 6]
    assert NonNegative().tangent(v, d).tolist() == [0, 2, -3, 4, -5, 6]


def test_ball_tangent_by_hand():
    v, out, back = {"x": jnp.array([3.0, 0.0]), "y": jnp.array([4.0])}, [3.0, 1.0, 4.0], [-3.0, 1.0, -4.0]
    for d, expected in ((out, [0, 1, 0]), (back, back)):
        t = Ball(5.0).tangent(v, {"x": jnp.array(d[:2]), "y": jnp.array(d[2:])})
        np.testing.assert_allclose(flat(t), expected, atol=1e-15)
    d = {"x": jnp.array(out[:2]), "y": jnp.array(out[2:])}
    assert (flat(Ball(5.1).tangent(v, d)) == flat(d)).all()


@pytest.mark.parametrize(
    "s", [Ball(0.1), Ball(np.float64(0.1)), Box(-0.1, 0.1), Box(np.full(1000, -0.1), 0.1)], ids=str
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_rounding_does_not_leave_the_boundary(s, dtype):
    """A point that sums and means have moved inwards by rounding is on the boundary, one a little further in is not."""
    d = next(draws(jnp.zeros(1000), 13, 1e6, dtype))
    p = project(s, d)
    for inwards, share in ((0, 0), (4 * jnp.finfo(dtype).eps, 0), (1e-3, 1)):
        t = tangent(s, p * (1 - inwards), d)
        np.testing.assert_allclose(jnp.linalg.norm(t), share * jnp.linalg.norm(d), atol=1e-4 * jnp.linalg.norm(d))


# Transformations and dtypes


@cases
def test_vmap_equals_loop(s, like, reference):
    vs, ds = draws(like, 14, 2.0), draws(like, 15)
    points, ways = [project(s, next(vs)) for _ in range(3)], [next(ds) for _ in range(3)]
    v, d = (jax.tree.map(lambda *x: jnp.stack(x), *trees) for trees in (points, ways))
    both = jax.jit(jax.vmap(lambda v, d: (s.project(d), s.tangent(v, d))))(v, d)
    for k in range(3):
        expected = (project(s, ways[k]), tangent(s, points[k], ways[k]))
        np.testing.assert_allclose(flat(jax.tree.map(lambda x: x[k], both)), flat(expected), atol=1e-13)


@cases
def test_dtype_of_the_variable_wins(s, like, reference):
    s = jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), s)  # parameters that would promote float32
    u, d = next(draws(like, 16, 3.0, jnp.float32)), next(draws(like, 17, 1.0, jnp.float32))
    p = project(s, u)
    for tree in (p, tangent(s, p, d)):
        assert {x.dtype for x in jax.tree.leaves(tree)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(flat(p), reference(flat(u).astype(np.float64)), atol=1e-5)


def test_leaves_of_two_dtypes_keep_theirs():
    u = {"x": jnp.full(3, 2.0, jnp.float32), "y": jnp.full(3, 2.0, jnp.float64)}
    p = Ball(1.0).project(u)
    np.testing.assert_allclose(flat(p), np.full(6, 6**-0.5), rtol=1e-7)
    t = Ball(1.0).tangent(p, u)
    np.testing.assert_allclose(flat(t), 0, atol=1e-6)
    assert [x.dtype for x in (*p.values(), *t.values())] == [jnp.float32, jnp.float64] * 2


@pytest.mark.parametrize(
    "make",
    [lambda r: Ball(r), lambda r: Simplex(r), lambda r: Box(-r, r), lambda r: Product({"p": Ball(r)})],
    ids=["ball", "simplex", "box", "product"],
)
def test_another_parameter_does_not_recompile(make):
    traces = 0

    @eqx.filter_jit
    def compiled(s: Set, x):
        nonlocal traces
        traces += 1
        return s.project(x)

    x = {"p": jnp.full(3, 9.0)}
    for r in (1.0, 2.0):
        s = make(jnp.asarray(r))
        np.testing.assert_allclose(flat(compiled(s, x)), flat(s.project(x)), atol=1e-15)
    assert traces == 1


def test_parameters_may_be_batched_and_made_inside_jit():
    x = jnp.array([3.0, 4.0])
    radii = jnp.array([1.0, 2.0, 10.0])
    expected = [[0.6, 0.8], [1.2, 1.6], [3, 4]]
    np.testing.assert_allclose(jax.vmap(lambda s: s.project(x))(Ball(radii)), expected)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda r: Ball(r).project(x)))(radii), expected)
    np.testing.assert_allclose(jax.jit(lambda r: Box(-r, r).project(x))(3.5), [3, 3.5])
    np.testing.assert_allclose(jax.jit(lambda r: Simplex(r).project(x))(3.0), [1, 2])


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ball(0.0), "radius=0.0 must be positive"),
        (lambda: Ball(jnp.array(-2.0)), "radius=-2.0 must be positive"),
        (lambda: Ball(np.nan), "radius=nan must be positive"),
        (lambda: Simplex(-1), "scale=-1 must be positive"),
        (lambda: Simplex(INF), "scale=inf must be finite"),
        (lambda: Box(1.0, 0.5), "low=1.0 must be <= high=0.5"),
        (lambda: Box(np.nan, 0.5), "low=nan must be <= high=0.5"),
        (lambda: Box(jnp.array([0.0, 3.0]), jnp.array([1.0, 2.0])), "low=3.0 must be <= high=2.0"),
        (lambda: Box({"a": 0.0, "b": 4.0}, 1.0), "low=4.0 must be <= high=1.0"),
        (lambda: Box(0.0, {"a": 1.0, "b": -4.0}), "low=0.0 must be <= high=-4.0"),
        (lambda: Box({"a": 0.0}, {"b": 1.0}), "low and high must be numbers, arrays or pytrees of one structure"),
        (lambda: Box(np.zeros(2), np.ones(3)), r"low and high have shapes \(2,\) and \(3,\)"),
        (lambda: Product({"a": Ball(1.0), "b": 3}), r"tree\['b'\]=3 must be a Set"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("s", "tree", "message"),
    [
        (Simplex(), PAIR, r"Simplex\(\) does not fit weights: .*\[\(4,\), \(2, 3\)\]"),
        (Simplex(), jnp.zeros((0, 3)), r"does not fit weights: .*\[\(0, 3\)\]"),
        (Simplex(jnp.ones(2)), jnp.zeros(3), r"does not fit weights: scale has shape \(2,\)"),
        (Ball(jnp.ones(2)), jnp.zeros(3), r"does not fit weights: radius has shape \(2,\)"),
        (Ball(1.0), {"n": jnp.zeros(3, jnp.int32)}, r"Ball.* does not fit weights\['n'\]: its dtype is int32"),
        (Box(jnp.zeros(3), 1.0), jnp.zeros(4), r"Box.*weights: low of shape \(3,\) does not broadcast to \(4,\)"),
        (Box(-1.0, jnp.ones((2, 3))), jnp.zeros(3), r"weights: high of shape \(2, 3\) does not broadcast to \(3,\)"),
        (Box({"c": 0.0}, 1.0), PAIR, "weights: low is not a prefix of .*'a'"),
        (Box(0.0, [1.0, 1.0]), jnp.zeros(2), "weights: high is not a prefix"),
        (Product({"a": Ball(1.0)}), PAIR, r"Product.* does not fit weights: its structure is not a prefix of .*'b'"),
        (Product((Ball(1.0),)), jnp.zeros(3), "weights: its structure is not a prefix"),
        (Product({"a": NonNegative(), "b": Simplex()}), {"a": jnp.ones(1), "b": [jnp.ones(1)] * 2}, r"weights\['b'\]"),
    ],
)
def test_misfits(s, tree, message):
    with pytest.raises(ValueError, match=message):
        s.check(tree, "weights")


@cases
def test_check_accepts_what_fits(s, like, reference):
    s.check(like, "weights")
    s.check(jax.eval_shape(lambda: like), "weights")


def test_simplex_refuses_two_arrays_without_check():
    with pytest.raises(ValueError, match="one array, not 2"):
        Simplex().project(PAIR)
