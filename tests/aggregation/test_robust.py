"""Every rule against its definition in plain NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import rookery as rk
from rookery.aggregation.robust import robust_sum

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((9, 3))
EQUAL = np.full(9, 1 / 9)
UNLIKE = RNG.uniform(0.2, 1.0, 9)
UNLIKE = UNLIKE / UNLIKE.sum()
ALL = {
    "TrimmedMean": rk.TrimmedMean(0.2), "Median": rk.Median(), "GeometricMedian": rk.GeometricMedian(200),
    "Krum": rk.Krum(2), "MultiKrum": rk.MultiKrum(2, 4), "NormClip": rk.NormClip(1.0),
    "NormClip median": rk.NormClip("median"), "CenteredClip": rk.CenteredClip(0.7, 3),
    "CenteredClip median": rk.CenteredClip("median", 3),
}  # fmt: skip


def found(rule, rows, weights, mask=None, centre=None):
    mask = np.ones(len(rows), bool) if mask is None else mask
    centre = np.zeros(rows.shape[1]) if centre is None else centre
    return np.asarray(robust_sum(rule, *map(jnp.asarray, (rows, weights, mask, centre))))


# --- the definitions --------------------------------------------------------------------------------------------------


def trimmed(rows, weights, share):
    out = []
    for column in rows.T:
        pairs, kept, below = sorted(zip(column, weights, strict=True)), [], 0.0
        for value, w in pairs:
            kept.append((value, max(0.0, min(below + w, 1 - share) - max(below, share))))
            below += w
        out.append(sum(v * k for v, k in kept) / sum(k for _, k in kept))
    return np.array(out)


def median(rows, weights):
    out = []
    for column in rows.T:
        low = min(v for v in column if weights[column <= v].sum() >= 0.5 - 1e-12)
        high = max(v for v in column if weights[column >= v].sum() >= 0.5 - 1e-12)
        out.append((low + high) / 2)
    return np.array(out)


def geometric(rows, weights):
    def total(point):
        return weights @ np.linalg.norm(rows - point, axis=1)

    return minimize(total, rows.mean(0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14}).x


def scores(rows, f):
    out = []
    for i in range(len(rows)):
        others = sorted(np.sum((rows[i] - rows[j]) ** 2) for j in range(len(rows)) if j != i)
        out.append(sum(others[: len(rows) - f - 2]))
    return np.array(out)


def krum(rows, weights, f):
    return rows[np.argmin(scores(rows, f))]


def multi_krum(rows, weights, f, m):
    best = np.argsort(scores(rows, f))[:m]
    return weights[best] @ rows[best] / weights[best].sum()


def shortened(rows, bound):
    lengths = np.linalg.norm(rows, axis=1)
    bound = np.median(lengths) if bound == "median" else bound
    return rows * np.minimum(1, bound / lengths)[:, None]


def centred(rows, weights, radius, iterations):
    v = median(rows, weights)
    for _ in range(iterations):
        v = v + weights @ shortened(rows - v, radius)
    return v


DEFINED = {
    "TrimmedMean": lambda r, w: trimmed(r, w, 0.2), "Median": median, "GeometricMedian": geometric,
    "Krum": lambda r, w: krum(r, w, 2), "MultiKrum": lambda r, w: multi_krum(r, w, 2, 4),
    "NormClip": lambda r, w: w @ shortened(r, 1.0), "NormClip median": lambda r, w: w @ shortened(r, "median"),
    "CenteredClip": lambda r, w: centred(r, w, 0.7, 3), "CenteredClip median": lambda r, w: centred(r, w, "median", 3),
}  # fmt: skip


@pytest.mark.parametrize("weights", [EQUAL, UNLIKE], ids=["equal", "unlike"])
@pytest.mark.parametrize("name", ALL)
def test_a_rule_is_its_definition(name, weights):
    tolerance = 1e-6 if name == "GeometricMedian" else 1e-12
    np.testing.assert_allclose(found(ALL[name], ROWS, weights), DEFINED[name](ROWS, weights), atol=tolerance)


@pytest.mark.parametrize("name", ALL)
def test_the_mass_of_the_weights_is_kept_and_empty_slots_count_for_nothing(name):
    mask = np.array([True] * 9 + [False] * 3)
    rows = np.concatenate([ROWS, np.full((3, 3), 1e9)])
    weights = np.append(2.5 * UNLIKE, np.zeros(3))
    np.testing.assert_allclose(found(ALL[name], rows, weights, mask), 2.5 * found(ALL[name], ROWS, UNLIKE), atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_all_moved_by_as_much_move_the_result_by_as_much(name):
    move = np.array([3.0, -1.0, 0.5])
    moved = found(ALL[name], ROWS + move, UNLIKE, centre=move)  # NormClip measures from what was broadcast
    np.testing.assert_allclose(moved, found(ALL[name], ROWS, UNLIKE) + move, atol=1e-9)


def test_equal_weights_are_the_plain_definitions():
    np.testing.assert_allclose(found(rk.Median(), ROWS, EQUAL), np.median(ROWS, 0))
    np.testing.assert_allclose(found(rk.Median(), ROWS[:8], np.full(8, 1 / 8)), np.median(ROWS[:8], 0))
    ten = np.concatenate([ROWS, ROWS[:1] + 1])
    expected = np.sort(ten, 0)[2:-2].mean(0)
    np.testing.assert_allclose(found(rk.TrimmedMean(0.2), ten, np.full(10, 0.1)), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_trimmed_has_no_weight_left_by_rounding(dtype):
    """A liar that keeps 1e-8 of the weight says 1e30."""
    slots, rng = 31, np.random.default_rng(0)

    @jax.jit
    def trimmed_of(rows, weights, mask, share):
        rule = eqx.tree_at(lambda each: each.share, Traced(0.2), share)
        return robust_sum(rule, rows, weights, mask, jnp.zeros(2, dtype))

    for count in range(5, slots + 1):
        mask = np.arange(slots) < count
        for liars in {1, count // 5, (count - 1) // 3, (count - 1) // 2}:
            for lie in (1e30, -1e30):
                rows = rng.standard_normal((slots, 2)).astype(dtype)
                rows[:liars] = lie
                found = trimmed_of(rows, mask.astype(dtype) / dtype(count), mask, liars / count)
                honest = rows[liars:count]
                assert (honest.min(0) - 1e-5 <= found).all(), (count, liars)
                assert (found <= honest.max(0) + 1e-5).all(), (count, liars)


class Traced(rk.TrimmedMean):
    """Its share may be an array: one program for all."""

    share: jax.Array

    def __init__(self, share):
        self.share = jnp.asarray(share)


def test_a_geometric_median_does_not_stay_at_an_upload():
    """It begins at the median of each number, which is the second row here, and not the best place."""
    rows = np.array([[-1.0, -10.0], [0.0, 0.0], [10.0, 0.1]])

    def total(point, rows=rows):
        return np.linalg.norm(rows - point, axis=1).sum()

    assert total(found(rk.GeometricMedian(200), rows, np.full(3, 1 / 3))) < 19.625 < total(rows[1])
    for seed in range(10):
        rows = np.random.default_rng(seed).standard_normal((3, 2))
        starts = [rows.mean(0), *rows]  # an upload may be the best place
        best = min(minimize(total, each, (rows,), method="Nelder-Mead", tol=1e-12).fun for each in starts)
        value = found(rk.GeometricMedian(200), rows, np.full(3, 1 / 3))
        assert total(value, rows) < best * (1 + 1e-3)


def test_krum_where_nobody_is_near_is_told():
    """Distances overflow, and the first row is nobody's."""
    rows = np.concatenate([np.full((1, 3), np.nan), 1e200 * ROWS])
    for rule in (rk.Krum(2), rk.MultiKrum(2, 4)):
        assert np.isnan(found(rule, rows, np.full(10, 0.1))).all()


def test_numbers_may_be_numpys():
    assert rk.Krum(np.int64(2)).f == 2
    assert rk.TrimmedMean(np.float32(0.25)).share == 0.25
    assert rk.CenteredClip(np.float64(0.5), np.int32(3)).iterations == 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.integers(0, 100))
def test_three_of_ten_liars_move_the_result_at_most_into_the_range_of_the_honest(lies, seed):
    honest = np.random.default_rng(seed).standard_normal((7, 1))
    rows = np.concatenate([honest, np.array(lies)[:, None]])
    for rule in (rk.TrimmedMean(0.3), rk.Median()):
        value = found(rule, rows, np.full(10, 0.1))[0]
        assert honest.min() - 1e-9 <= value <= honest.max() + 1e-9


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rk.TrimmedMean(0.5), "0.5"), (lambda: rk.TrimmedMean(0), "got 0"), (lambda: rk.Krum(0), "got 0"),
        (lambda: rk.MultiKrum(2, 0), "got 0"), (lambda: rk.NormClip(0.0), "got 0.0"), (lambda: rk.NormClip(-1), "got -1"),
        (lambda: rk.CenteredClip(0.0), "got 0.0"), (lambda: rk.CenteredClip(1.0, 0), "got 0"),
        (lambda: rk.GeometricMedian(0), "got 0"), (lambda: rk.Krum(4).check(10), "only 10"),
        (lambda: rk.MultiKrum(2, 8).check(9), "m = 8"), (lambda: rk.TrimmedMean(0.2).check(4), "at least 5.*only 4"),
        (lambda: rk.TrimmedMean(0.4995), "0.4995"), (lambda: rk.TrimmedMean("0.2"), "share must be a number, got '0.2'"),
        (lambda: rk.TrimmedMean(np.array([0.2])), "got array"), (lambda: rk.Krum(2.0), "got 2.0"),
        (lambda: rk.Krum(True), "got True"), (lambda: rk.NormClip(np.ones(2)), "got array"),
        (lambda: rk.Krum(1).check(rk.Bernoulli(0.5).least(20)), "only 1"),
    ],
)  # fmt: skip
def test_bad_values_are_named(make, told):
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("lie", [np.nan, np.inf, -np.inf, 1e200])
def test_an_upload_that_is_not_finite_is_nobodys(name, lie):
    """The rest is as if it were not there, with the mass that there was; a huge one does no harm either."""
    rows = ROWS.copy()
    rows[3, 1] = lie
    value = found(ALL[name], rows, 2 * UNLIKE)
    assert np.isfinite(value).all()
    assert np.abs(value).max() < 2 * np.abs(ROWS).max() + 1e-9
    if not np.isfinite(lie):
        rest = np.delete(np.arange(9), 3)
        left = UNLIKE[rest] / UNLIKE[rest].sum()
        np.testing.assert_allclose(value, 2 * found(ALL[name], ROWS[rest], left), atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_if_no_upload_is_finite_the_run_is_told(name):
    assert np.isnan(found(ALL[name], np.full((9, 3), np.nan), EQUAL)).all()
    np.testing.assert_array_equal(found(ALL[name], ROWS, 0 * EQUAL), 0)
