"""What the ledger says, against integrals of the hockey-stick divergence that know nothing of it."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.aggregation.accounting import ORDERS, Ledger, Sampling, concentrated, gaussian_delta, noise_for
from tests.helpers.fuzzing import examples

GRID = np.linspace(-30, 30, 6001)
STEP = GRID[1] - GRID[0]


def normal(mean, noise):
    return np.exp(-(((GRID - mean) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi)) * STEP


def hockey_stick(p, q, epsilon):
    """The larger of both directions."""
    return max(
        np.maximum(p - math.exp(epsilon) * q, 0).sum(),
        np.maximum(q - math.exp(epsilon) * p, 0).sum(),
    )


def exact_epsilon(p, q, delta):
    low, high = 0.0, 100.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (low, middle) if hockey_stick(p, q, middle) <= delta else (middle, high)
    return high


def sampled(rate, noise):
    """(with, without) the client, whose upload is 1, in one exchange."""
    without = normal(0, noise)
    return (1 - rate) * without + rate * normal(1, noise), without


def square(p):
    """Two independent exchanges."""
    return p[::6, None] * p[None, ::6] * 36


# --- one draw, and everybody --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "k", "count"), [(1.0, 1, 1), (3.0, 2, 5), (0.7, 1, 2), (6.0, 3.5, 4)])
def test_everybody_is_one_gaussian(noise, k, count):
    ledger = Ledger(Sampling("all", 7, 7), noise, 1e-5)
    p, q = normal(1, noise / math.sqrt(k * count)), normal(0, noise / math.sqrt(k * count))
    assert ledger.epsilon({k: count}) == pytest.approx(exact_epsilon(p, q, 1e-5), rel=1e-4)


def test_everybody_agrees_with_the_library():
    from dp_accounting import get_epsilon_gaussian

    ledger = Ledger(Sampling("all", 7, 7), 2.0, 1e-6)
    assert ledger.epsilon({3: 5}) == pytest.approx(get_epsilon_gaussian(2.0 / math.sqrt(15), 1e-6), rel=1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("noise", [0.6, 1.0, 3.0])
def test_one_sampled_draw_costs_what_the_integral_says_and_little_more(rate, noise):
    ledger = Ledger(Sampling("poisson", 1000, 1000 * rate), noise, 1e-5)
    exact = exact_epsilon(*sampled(rate, noise), 1e-5)
    slack = 1.35 if rate >= 0.1 else 4  # a few draws of a few clients is where RDP is loose
    assert exact <= ledger.epsilon({1: 1}) <= slack * exact + 0.05


def test_two_sampled_draws_cost_at_least_the_integral():
    p, q = map(square, sampled(0.2, 1.0))
    exact = exact_epsilon(p, q, 1e-4)
    assert exact <= Ledger(Sampling("poisson", 1000, 200.0), 1.0, 1e-4).epsilon({1: 2}) <= 1.3 * exact


# --- several exchanges with one draw ------------------------------------------------------------------------------


def two_exchanges(rate, noise):
    """(with, without) for both exchanges of one draw: the client is in both or in none."""
    here, away = square(normal(1, noise)), square(normal(0, noise))
    return (1 - rate) * away + rate * here, away


def test_to_amplify_each_exchange_is_wrong():
    """The δ of both exchanges together exceeds what two amplified ones claim, by far; the ledger's claim holds."""
    rate, noise, delta = 0.1, 1.0, 1e-5
    naive = exact_epsilon(*map(square, sampled(rate, noise)), delta)
    true = hockey_stick(*two_exchanges(rate, noise), naive)
    assert true > 40 * delta, f"{true:.2e}"

    ledger = Ledger(Sampling("poisson", 2000, 200.0), noise, delta)
    assert ledger.epsilon({1: 2}) >= naive
    assert hockey_stick(*two_exchanges(rate, noise), ledger.epsilon({1: 2})) > delta, "false even with the slack of RDP"
    assert hockey_stick(*two_exchanges(rate, noise), ledger.epsilon({2: 1})) <= delta
    assert ledger.epsilon({2: 1}) > 1.5 * ledger.epsilon({1: 2})


def test_together_is_a_gaussian_with_less_noise():
    p, q = two_exchanges(0.1, 1.0)
    for epsilon in (0.1, 1.0, 3.0):
        one = hockey_stick(*sampled(0.1, 1 / math.sqrt(2)), epsilon)
        assert hockey_stick(p, q, epsilon) == pytest.approx(one, rel=1e-2)


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_together_costs_more_than_apart(kind):
    ledger = Ledger(Sampling(kind, 100, 10), 2.0, 1e-5)
    assert ledger.epsilon({2: 50}) > 1.02 * ledger.epsilon({1: 100})


# --- drawn again until somebody takes part ------------------------------------------------------------------------


def drawn_again(n, rate, noise, apart):
    """(with, without) one client among n of whom at least one is drawn; ``apart`` is what each of the others uploads."""
    p = q = 0.0
    for there in itertools.product([0, 1], repeat=n):
        chance = math.prod(rate if each else 1 - rate for each in there) / (1 - (1 - rate) ** n)
        if any(there):
            others = apart * sum(there[1:])
            p, q = p + chance * normal(there[0] + others, noise), q + chance * normal(others, noise)
    return p, q


@pytest.mark.parametrize("apart", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(("n", "rate"), [(2, 0.1), (3, 0.3), (5, 0.2)])
def test_the_condition_is_paid_for(n, rate, apart):
    for noise, delta in [(0.5, 1e-2), (1.0, 1e-3), (2.0, 1e-6)]:
        ledger = Ledger(Sampling("poisson", n, n * rate), noise, delta)
        p, q = drawn_again(n, rate, noise, apart)
        assert hockey_stick(p, q, ledger.epsilon({1: 1})) <= delta
        assert hockey_stick(square(p), square(q), ledger.epsilon({1: 2})) <= delta * 1.001


def test_without_paying_the_claim_would_be_false():
    """One of two clients, drawn again and again, is alone so often that its upload shows."""
    many = Ledger(Sampling("poisson", 10**6, 10**5), 1.0, 1e-3)  # where nobody is ever alone
    p, q = drawn_again(2, 0.1, 1.0, 0.0)
    assert hockey_stick(p, q, many.epsilon({1: 1})) > 1e-3


def test_alone_is_a_probability():
    assert Sampling("poisson", 1, 0.3).alone == pytest.approx(1)
    assert Sampling("poisson", 3, 0.9).alone == pytest.approx(0.3 * 0.7**2 / (1 - 0.7**3))
    assert Sampling("poisson", 10, 10.0).alone == 0
    assert Sampling("fixed", 10, 1).alone == 0


def test_a_client_that_is_alone_has_no_amplification():
    draws = {2: 3}
    alone, all = Sampling("poisson", 1, 0.3), Sampling("all", 1, 1)
    assert Ledger(alone, 2.0, 1e-5).epsilon(draws) == Ledger(all, 2.0, 1e-5).epsilon(draws)


# --- a fixed number without replacement ---------------------------------------------------------------------------


def without_replacement(uploads, number, noise):
    """(with, without) client 0, who uploads 1."""
    p = q = 0.0
    sets = list(itertools.combinations(range(len(uploads) + 1), number))
    for chosen in sets:
        others = sum(uploads[i - 1] for i in chosen if i > 0)
        p = p + normal(others + (0 in chosen), noise) / len(sets)
        q = q + normal(others, noise) / len(sets)
    return p, q


@pytest.mark.parametrize("uploads", [(1, 1, 1, 1), (-1, -1, -1, -1), (-1, -1, 1, 1), (0, 0, 0, 0)])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_without_replacement_the_integral_is_below(uploads, number):
    for noise, delta in [(0.5, 1e-2), (1.0, 1e-3), (2.0, 1e-2), (4.0, 1e-6)]:
        ledger = Ledger(Sampling("fixed", 5, number), noise, delta)
        p, q = without_replacement(uploads, number, noise)
        assert hockey_stick(p, q, ledger.epsilon({1: 1})) <= delta
        assert hockey_stick(square(p), square(q), ledger.epsilon({1: 2})) <= delta * 1.001


def test_without_replacement_rényi_divergences_are_below():
    """Of the worst case of the proof: everybody else uploads the opposite."""
    noise = 2.0
    ledger = Ledger(Sampling("fixed", 5, 1), noise, 1e-5)
    p, q = without_replacement((-1, -1, -1, -1), 1, noise)
    orders, bounds = ORDERS[ORDERS <= 8], ledger._divergences(1)
    for order, bound in zip(orders, bounds, strict=False):
        for one, other in [(p, q), (q, p)]:
            logs = order * np.log(one) + (1 - order) * np.log(other)
            assert math.log(np.exp(logs).sum()) / (order - 1) <= bound


def test_without_replacement_is_better_than_the_bound_for_replacing():
    """The library's, which allows any replacement (Wang, Balle and Kasiviswanathan)."""
    import dp_accounting
    from dp_accounting import rdp

    theirs = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(5.0 / 2))
    theirs.compose(dp_accounting.SelfComposedDpEvent(event, 100))
    ours = Ledger(Sampling("fixed", 100, 10), 5.0, 1e-5).epsilon({1: 100})
    poisson = Ledger(Sampling("poisson", 100, 10), 5.0, 1e-5).epsilon({1: 100})
    assert poisson <= ours <= theirs.get_epsilon(1e-5) / 2


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_sampling_never_costs_more_than_everybody(kind):
    for expected in (1, 5, 9, 10):
        for noise in (0.3, 1.0, 10.0):
            all = Ledger(Sampling("all", 10, 10), noise, 1e-5).epsilon({2: 20})
            assert Ledger(Sampling(kind, 10, expected), noise, 1e-5).epsilon({2: 20}) <= all


# --- laws ---------------------------------------------------------------------------------------------------------

samplings = st.sampled_from(
    [Sampling("all", 20, 20), Sampling("fixed", 20, 4), Sampling("poisson", 20, 4.0), Sampling("poisson", 300, 9.0)]
)
noises = st.sampled_from([0.4, 1.0, 2.5, 9.0])
draws = st.dictionaries(st.sampled_from([1, 2, 2.5, 4]), st.integers(0, 300), max_size=3)


@examples(20, 1000)
@given(samplings, noises, draws, draws)
def test_more_draws_cost_more_and_more_noise_less(sampling, noise, spent, more):
    ledger = Ledger(sampling, noise, 1e-5)
    both = {k: spent.get(k, 0) + more.get(k, 0) for k in {*spent, *more}}
    cost = ledger.epsilon(spent)
    assert cost <= ledger.epsilon(both) * (1 + 1e-9)
    assert (cost == 0) <= (cost <= 1e-5 or not any(spent.values()))
    assert Ledger(sampling, 2 * noise, 1e-5).epsilon(spent) <= cost
    assert Ledger(sampling, noise, 1e-3).epsilon(spent) <= cost


@examples(25, 500)
@given(
    samplings,
    noises,
    draws,
    st.dictionaries(st.sampled_from([1, 2]), st.integers(1, 3), min_size=1),
    st.floats(0.1, 40),
)
def test_lasts_is_the_largest_number_that_fits(sampling, noise, spent, round, epsilon):
    ledger = Ledger(sampling, noise, 1e-5)
    r = ledger.lasts(spent, round, epsilon)

    def after(rounds):
        return ledger.epsilon({k: spent.get(k, 0) + rounds * round.get(k, 0) for k in {*spent, *round}})

    assert after(r + 1) > epsilon
    assert after(r) <= epsilon * (1 + 1e-12) or (r == 0 and ledger.epsilon(spent) > epsilon)


@examples(4, 200)
@given(samplings, st.sampled_from([0.5, 3.0, 20.0]), st.sampled_from([{1: 10}, {3: 40}, {1: 100, 2.5: 7}]))
def test_noise_for_is_the_inverse_of_epsilon(sampling, epsilon, spent):
    noise = noise_for(sampling, spent, 1e-5, epsilon)
    assert float(f"{noise:.2e}") == noise, "three digits"
    assert Ledger(sampling, noise, 1e-5).epsilon(spent) <= epsilon * (1 + 1e-12)
    assert Ledger(sampling, noise * (1 - 1.001e-2 / float(f"{noise:.2e}"[:4])), 1e-5).epsilon(spent) > epsilon


@examples(100, 2000)
@given(st.lists(st.integers(0, 9), max_size=5))
def test_concentrated_keeps_every_execution(executions):
    found = concentrated(executions)
    assert sum(k * count for k, count in found.items()) == sum(executions)
    assert sum(found.values()) == max(executions, default=0), "as few draws as possible"
    assert all(count > 0 for count in found.values())


def test_concentrated():
    assert concentrated([10, 10, 3]) == {2: 7, 3: 3}
    assert concentrated([3, 10, 10]) == {2: 7, 3: 3}
    assert concentrated([]) == {}
    assert concentrated([0, 0]) == {}
    ledger = Ledger(Sampling("poisson", 100, 10.0), 2.0, 1e-5)
    assert ledger.epsilon(concentrated([10, 10])) > ledger.epsilon({1: 20}), "the worst case"


# --- ends of the scale --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling("all", 9, 9), Sampling("fixed", 9, 3), Sampling("poisson", 9, 3.0)])
def test_nothing_costs_nothing_and_no_noise_everything(sampling):
    assert Ledger(sampling, 1.0, 1e-5).epsilon({}) == 0
    assert Ledger(sampling, 0.0, 1e-5).epsilon({2: 0}) == 0
    assert Ledger(sampling, 0.0, 1e-5).epsilon({2: 1}) == math.inf
    assert Ledger(sampling, 0.0, 1e-5).lasts({}, {2: 1}, 5.0) == 0
    assert Ledger(sampling, 1.0, 1e-5).lasts({2: 9}, {2: 1}, math.inf) == sys.maxsize
    assert Ledger(sampling, 1.0, 1e-5).lasts({2: 9}, {}, 1e3) == sys.maxsize
    assert Ledger(sampling, 1.0, 1e-5).lasts({2: 900}, {2: 1}, 0.1) == 0, "spent already"
    assert noise_for(sampling, {}, 1e-5, 1.0) == 0
    assert noise_for(sampling, {1: 5}, 1e-5, math.inf) == 0
    assert gaussian_delta(0, 1.0) == 0


@pytest.mark.parametrize("kind", ["fixed", "poisson"])
@pytest.mark.parametrize("noise", [1e-13, 1e-3, 0.1])
def test_next_to_no_noise_costs_what_it_costs_without_sampling(kind, noise):
    """Where no order of Rényi's divergence is of use; and it takes no memory."""
    all = Ledger(Sampling("all", 9, 9), noise, 1e-5).epsilon({1: 3, 2: 4})
    found = Ledger(Sampling(kind, 9, 3), noise, 1e-5).epsilon({1: 3, 2: 4})
    assert math.isfinite(found)
    assert found == all if noise < 0.1 else 0.8 * all < found <= all


def test_the_bound_is_named():
    assert "exact" in Ledger(Sampling("all", 9, 9), 1.0, 1e-5).bound
    assert "exact" in Ledger(Sampling("poisson", 9, 9.0), 1.0, 1e-5).bound
    assert "Poisson" in Ledger(Sampling("poisson", 9, 3.0), 1.0, 1e-5).bound
    assert "without replacement" in Ledger(Sampling("fixed", 9, 3), 1.0, 1e-5).bound


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sampling("some", 3, 3), "kind.*'some'"),
        (lambda: Sampling("all", 0, 0), "n must be.*got 0"),
        (lambda: Sampling("poisson", 3, 0.0), "expected must be above 0.*got 0.0"),
        (lambda: Sampling("poisson", 3, 3.5), "at most n = 3, got 3.5"),
        (lambda: Sampling("all", 3, 2), "n = 3 if all take part, got 2"),
        (lambda: Sampling("fixed", 3, 1.5), "whole number.*got 1.5"),
        (lambda: Ledger(Sampling("all", 3, 3), -1.0, 1e-5), "noise.*got -1.0"),
        (lambda: Ledger(Sampling("all", 3, 3), math.nan, 1e-5), "noise.*got nan"),
        (lambda: Ledger(Sampling("all", 3, 3), 1.0, 0.0), "delta.*got 0.0"),
        (lambda: Ledger(Sampling("all", 3, 3), 1.0, 1.0), "delta.*got 1.0"),
        (lambda: Ledger(Sampling("all", 3, 3), 1.0, 1e-5).epsilon({0: 1}), "draws.*{0: 1}"),
        (lambda: Ledger(Sampling("all", 3, 3), 1.0, 1e-5).epsilon({2: -1}), "draws.*{2: -1}"),
        (lambda: Ledger(Sampling("all", 3, 3), 1.0, 1e-5).lasts({}, {1: 1}, -1.0), "epsilon.*got -1.0"),
        (lambda: noise_for(Sampling("all", 3, 3), {1: 1}, 1e-5, 0.0), "epsilon.*got 0.0"),
        (lambda: concentrated([1, -1]), r"executions.*\[1, -1\]"),
    ],
)
def test_bad_values_are_named(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
