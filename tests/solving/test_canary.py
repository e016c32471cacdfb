"""Can an attacker tell whether a client took part? Not better than ε allows; with less noise than is booked, yes.

One client's upload is there or is zero in every exchange, and as long as the clip allows, always in the same direction: the
worst that one client can do. The others do nothing, or pull the other way, so that it also shows who has the client's place
where it is not drawn. The attacker sees the final x and y and compares their way in that direction with thresholds that were
chosen beforehand. From how often it is right follows, with Clopper's and Pearson's bounds, the least ε that the run can have
had.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta

import rookery as rk
from rookery.aggregation.accounting import Ledger
from rookery.algorithm.setting import initial_state
from rookery.engines.compiled import Compiled, walked
from rookery.solving.prepare import prepare, single
from rookery.solving.spending import sampling_of
from tests.helpers.marks import slow

N, ROUNDS, CLIP, NOISE, DELTA = 4, 3, 0.5, 2.0, 1e-2
CONFIDENCE = 1e-4
"""How probable it is at most that a test fails by chance."""
AT_ONCE = 20_000
"""So many runs are lanes of one program."""


def objective(x, y, batch):
    """A canary pulls x and y as far as it may; everybody else does nothing, or pulls the other way."""
    return jnp.mean(batch["pull"]) * 1e3 * (y[0] - x[0])  # x goes down, y up this slope: both grow


class Twice(rk.registry["Local SGDA"]):
    """Two exchanges with the same participants: who is drawn is drawn for both."""

    def round(self):
        return (*super().round(), *super().round())


def arguments(canary, others, participation, noise, times=1):
    pulls = [float(canary), *[float(others)] * (N - 1)]
    task = (
        rk.Minimax(objective),
        (Twice if times == 2 else rk.registry["Local SGDA"])(eta_x=1.0, eta_y=1.0),
        rk.Clients([{"pull": np.array([pull])} for pull in pulls]),
        jnp.zeros(2),
        jnp.zeros(2),
    )
    return task, {"participation": participation, "privacy": rk.ClientPrivacy(CLIP, noise=noise, delta=DELTA)}


def scores(runs, noise, participation, others=0, times=1):
    """How far x and y have gone, without the canary and with it, in units of what it can do in one exchange."""
    sides = []
    for canary in (False, True):
        task, how = arguments(canary, others, participation, noise, times)
        run = prepare(single(*task, **how)).run

        def gone(key, run=run):
            setting = replace(run.setting, key=key)
            start = replace(initial_state(setting, run.x, run.y), round=None)
            state, _ = walked(lambda setting, state: Compiled(setting, state, None), setting, 0, ROUNDS, None, start)
            return state.server["x"][0] + state.server["y"][0]

        made = jax.jit(jax.vmap(gone))
        keys = jax.random.split(jax.random.key(canary), (math.ceil(runs / AT_ONCE), min(runs, AT_ONCE)))
        sides.append(np.concatenate([made(each) for each in keys]) * run.setting.participation.expected(N) / (2 * CLIP))
    return sides


def surely(hits, tries, share):
    """(lower, upper) bound of a probability, each wrong with probability ``share``."""
    low = beta.ppf(share, hits, tries - hits + 1) if hits else 0.0
    high = beta.ppf(1 - share, hits + 1, tries - hits) if hits < tries else 1.0
    return low, high


def least_epsilon(away, here, thresholds):
    """The ε that the mechanism has at least, whatever it claims."""
    share = CONFIDENCE / (4 * len(thresholds))
    found = 0.0
    for threshold in thresholds:
        for one, other in ((here > threshold, away > threshold), (away <= threshold, here <= threshold)):
            low, high = surely(one.sum(), one.size, share)[0], surely(other.sum(), other.size, share)[1]
            found = max(found, math.log(max(low - DELTA, 1e-12) / high))
    return found


def thresholds(others, times=1):
    """The middle, where a run without enough noise is caught, and tails, where the likelihoods differ most."""
    return np.linspace(-4, times * ROUNDS + 4, 12) + 1.5 * others * times * ROUNDS


def claimed(participation, times=1):
    sampling = sampling_of(participation or rk.Full(), N, shown=False, keeps=False)
    return Ledger(sampling, NOISE, DELTA).epsilon({times: ROUNDS})


CASES = [
    (None, 0, 1),
    (rk.Bernoulli(0.5), 0, 1),
    slow(rk.Uniform(2), 0, 1),
    (rk.Uniform(2), -1, 1),
    slow(rk.Bernoulli(0.5), 0, 2),
]


@pytest.mark.parametrize("runs", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("participation", "others", "times"), CASES)
def test_nobody_can_tell_whether_a_client_took_part(participation, others, times, runs):
    away, here = scores(runs, NOISE, participation, others, times)
    epsilon, share = claimed(participation, times), 1.0 if participation is None else 0.5
    if not isinstance(participation, rk.Bernoulli):  # drawn again until somebody takes part, a little more often
        assert here.mean() - away.mean() == pytest.approx(share * times * ROUNDS, rel=0.1), (
            "the canary pulls as hard as it may"
        )
    found = least_epsilon(away, here, thresholds(others, times))
    what = f"{participation}, others {others}, {times} exchanges a round"
    print(f"{what}: {runs} runs a side show ε >= {found:.2f}, the ledger says {epsilon:.2f}")
    assert found <= epsilon
    assert found > (0.7 if participation is None else 0.25) * epsilon, "the attack is not a weak one"


@pytest.mark.parametrize(("participation", "others", "times"), CASES)
def test_with_a_fifth_of_the_noise_that_is_booked_the_attack_succeeds(participation, others, times):
    away, here = scores(2_000, NOISE / 5, participation, others, times)
    assert least_epsilon(away, here, thresholds(others, times)) > claimed(participation, times)


@pytest.mark.parametrize(
    ("participation", "times"), [(None, 1), (rk.Bernoulli(0.5), 1), (rk.Uniform(2), 1), (rk.Bernoulli(0.5), 2)]
)
def test_the_ledger_of_a_run_is_the_one_that_is_tested(participation, times):
    task, how = arguments(True, 0, participation, NOISE, times)
    solution = rk.solve(*task, **how, rounds=ROUNDS, progress=False, evaluate=lambda x, y: {})
    assert float(solution.history.last["epsilon"]) == pytest.approx(claimed(participation, times))
