"""What noise on sums of uploads costs: ε of many rounds at a given δ, for a client.

One adjacency throughout: *a client's uploads are there, or all of them are zero*, in every exchange of the run. Who else
takes part, the weights and the number of clients are the same on both sides.

The participants of a draw take part in all k exchanges that are made with it. Adaptively composed, k Gaussians of noise
multiplier z are one Gaussian of multiplier z/√k (Dong, Roth and Su, 2022): what they give is a randomised function of what
it gives. So sampling is applied once, to z/√k. To amplify each exchange and to compose then would assume a new draw for
each of them, and claims too little.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Draws = Mapping[Any, float]
"""``draws[k]``: how many draws had k exchanges each. k may be any number above 0: an exchange may weigh more than one."""

ORDERS = np.array([1 + tenth / 10 for tenth in range(1, 100)] + [*range(11, 64), 80, 128, 320, 512, 1024])
"""Orders of Rényi's divergence that are tried."""
ROWS = 24
"""How finely the number of draws with nobody else is resolved, see :meth:`Ledger.delta_at`."""


@dataclass(frozen=True)
class Sampling:
    """How participants are drawn.

    Args:
        kind: "all" for everybody, "fixed" for a number of clients without replacement, "poisson" for every client
            independently, drawn again until somebody takes part.
        n: The number of clients.
        expected: E|C|, the expected number of participants: n, P, or q·n (before anything is drawn again).
    """

    kind: Literal["all", "fixed", "poisson"]
    n: int
    expected: float

    def __post_init__(self) -> None:
        if self.kind not in ("all", "fixed", "poisson"):
            raise ValueError(f"Sampling: kind must be 'all', 'fixed' or 'poisson', got {self.kind!r}")
        if not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"Sampling: n must be an integer of at least 1, got {self.n!r}")
        if not 0 < self.expected <= self.n * (1 + 1e-12):
            raise ValueError(f"Sampling: expected must be above 0 and at most n = {self.n}, got {self.expected!r}")
        if self.kind == "all" and self.expected != self.n:
            raise ValueError(f"Sampling: expected must be n = {self.n} if all take part, got {self.expected!r}")
        if self.kind == "fixed" and self.expected != int(self.expected):
            raise ValueError(f"Sampling: expected must be a whole number if it is fixed, got {self.expected!r}")

    @property
    def rate(self) -> float:
        """q: how probable it is that a client takes part."""
        return min(self.expected / self.n, 1.0)

    @property
    def alone(self) -> float:
        """How probable it is that a draw consists of one given client and nobody else: q(1−q)ⁿ⁻¹/(1−(1−q)ⁿ)."""
        if self.kind != "poisson" or self.rate == 1:
            return 0.0
        stays = math.log1p(-self.rate)
        return self.rate * math.exp((self.n - 1) * stays) / -math.expm1(self.n * stays)


class Ledger:
    """What draws cost: ε at ``delta``, for noise of ``noise`` times the sensitivity of one exchange.

    - *all*: everything together is one Gaussian, whose δ(ε) is known exactly (Balle and Wang, 2018).
    - *poisson*: Rényi divergences of the sampled Gaussian (Mironov, Talwar and Zhang, 2019). That Rookery draws again
      until somebody takes part is a condition on the draw. Given who else takes part, a client still takes part with
      probability q, unless there is nobody else: then it is certain. Who else takes part is the same on both sides, so
      δ(ε) is at most its mean over the number of draws with nobody else, which are paid for in full. (That more than a
      certain number of clients never take part at once, as Rookery has it, only makes q smaller for some draws.)
    - *fixed*: Rényi divergences from the hockey-stick divergence of one draw (Balle, Barthe and Gaboardi, 2018). It is
      proved for clients that keep nothing from round to round: what the others keep tells who took part before, and without
      replacement that tells of a client. With clients that keep something, give kind "all".

    For the last two the smaller of that and the price without amplification is taken; both hold for the same adjacency.
    Amplification assumes that nobody is told who takes part, nor how many.

    The numbers of draws must not depend on what was computed: where exchanges are conditional, give what a round has at
    worst.
    """

    def __init__(self, sampling: Sampling, noise: float, delta: float):
        if not (noise >= 0 and math.isfinite(noise)):
            raise ValueError(f"noise must be a finite number of at least 0, got {noise!r}")
        if not 0 < delta < 1:
            raise ValueError(f"delta must be above 0 and below 1, got {delta!r}")
        self.sampling, self.noise, self.delta = sampling, float(noise), float(delta)

    @property
    def bound(self) -> str:
        """Which theorem is used, in a sentence."""
        exact = "the exact privacy curve of the Gaussian mechanism"
        if self.sampling.rate == 1:
            return f"{exact}; nothing is gained by sampling, because all take part"
        if self.sampling.kind == "poisson":
            how = "RDP of the Gaussian under Poisson sampling, draws in which a client is alone paid for in full"
        else:
            how = "RDP of the Gaussian under sampling without replacement, by advanced joint convexity"
        return f"{how}, or {exact} without amplification where that is smaller"

    def epsilon(self, draws: Draws) -> float:
        """What all of it costs: 0 for nothing, infinite without noise."""
        draws = _checked(draws)
        if not draws:
            return 0.0
        if self.noise == 0:
            return math.inf
        return _smallest(lambda epsilon: self.fits(draws, epsilon))

    def fits(self, draws: Draws, epsilon: float) -> bool:
        """Whether these draws cost at most ``epsilon``."""
        draws = _checked(draws)
        if not draws or epsilon == math.inf:
            return True
        return self.noise > 0 and self.delta_at(draws, epsilon) <= self.delta

    def delta_at(self, draws: Draws, epsilon: float) -> float:
        """δ(ε) of these draws: the smallest of the bounds that hold."""
        draws = _checked(draws)
        plain = gaussian_delta(math.sqrt(sum(k * count for k, count in draws.items())) / self.noise, epsilon)
        if self.sampling.rate == 1 or not draws:
            return plain
        spent = np.zeros(len(ORDERS))
        for k, count in draws.items():
            spent = spent + count * self._divergences(k)
        if self.sampling.alone == 0:
            return min(plain, float(_delta_of(spent, epsilon)))
        extra = np.max([np.maximum(self._alone(k) - self._divergences(k), 0) for k in draws], axis=0)
        times, chances = _occasions(math.ceil(sum(draws.values())), self.sampling.alone)
        return min(plain, float(chances @ _delta_of(spent + times[:, None] * extra, epsilon)))

    def lasts(self, spent: Draws, round: Draws, epsilon: float) -> int:
        """How many more rounds fit: the largest r for which ``spent`` and r times ``round`` cost at most ``epsilon``.

        ``round`` is what a round has at worst. None fits where ``spent`` has cost more already.
        """
        if not epsilon >= 0:
            raise ValueError(f"epsilon must be at least 0, got {epsilon!r}")
        spent, round = _checked(spent), _checked(round)
        if not round or epsilon == math.inf:
            return sys.maxsize
        if not self.fits(spent, epsilon):
            return 0
        some = 1
        while self.fits(_added(spent, round, some), epsilon):
            some *= 2
        return _bisected(lambda r: not self.fits(_added(spent, round, r), epsilon), some // 2, some) - 1

    def _divergences(self, k: float) -> Any:
        """Of one draw with k exchanges, for all orders."""
        return _divergences(self.sampling, self.noise / math.sqrt(k))

    def _alone(self, k: float) -> Any:
        """Of one draw that is known to have the client."""
        return ORDERS * (k / (2 * self.noise**2))


def noise_for(sampling: Sampling, draws: Draws, delta: float, epsilon: float) -> float:
    """The smallest noise multiplier of three digits with which these draws cost at most ``epsilon``."""
    if not epsilon > 0:
        raise ValueError(f"epsilon must be above 0, got {epsilon!r}")
    draws = _checked(draws)
    if Ledger(sampling, 0.0, delta).fits(draws, epsilon):
        return 0.0
    # The noise without amplification is enough, and its order of magnitude brackets the search.
    top = _bisected(lambda i: Ledger(Sampling("all", 1, 1), _three_digits(i), delta).fits(draws, epsilon), -7200, 10800)
    return _three_digits(
        _bisected(lambda i: Ledger(sampling, _three_digits(i), delta).fits(draws, epsilon), top - 4000, top)
    )


def concentrated(executions: Sequence[int]) -> dict[int, int]:
    """``{k: how many draws had exactly k exchanges}`` at worst, from how often each exchange of a draw was executed.

    Some are conditional, and nobody has noted which of them fell into the same round. They cost most if they did as often as
    possible, because what is amplified together grows faster than the number of exchanges.
    """
    counts = sorted((int(each) for each in executions), reverse=True)
    if counts and counts[-1] < 0:
        raise ValueError(f"executions must be at least 0, got {list(executions)}")
    following = [*counts, 0][1:]
    return {k: e - f for k, (e, f) in enumerate(zip(counts, following, strict=True), start=1) if e > f}


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of the Gaussian mechanism with sensitivity ``mu`` times its standard deviation: Φ(μ/2−ε/μ) − e^ε Φ(−μ/2−ε/μ)."""
    return float(_gaussian_deltas(mu, epsilon)) if mu > 0 else 0.0


def _gaussian_deltas(mu: float, epsilon: Any) -> Any:
    """The same for an array of ε."""
    from scipy.special import log_ndtr

    above, below = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return np.exp(above) * -np.expm1(np.minimum(below - above, 0))


def _delta_of(divergences: Any, epsilon: float) -> Any:
    """δ(ε) from Rényi divergences along the last axis (Canonne, Kamath and Steinke, 2020, Proposition 12)."""
    logs = (ORDERS - 1) * (divergences - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return np.exp(np.minimum(logs.min(-1), 0))


def _occasions(draws: int, alone: float) -> tuple[Any, Any]:
    """(how often a client was alone in so many draws, how probable that is), in at most ``ROWS`` rows.

    What lies between two rows is counted with the larger one, so that nothing is lost.
    """
    from scipy.stats import binom

    usual = np.minimum(binom.isf(np.geomspace(0.5, 1e-15, ROWS), draws, alone), draws)
    times = np.unique(np.concatenate([[0], usual, [draws]]))
    beyond = np.concatenate([[1], binom.sf(times[:-1], draws, alone), [0]])
    return times, beyond[:-1] - beyond[1:]


@lru_cache(maxsize=512)
def _divergences(sampling: Sampling, noise: float) -> Any:
    """Rényi divergences of the Gaussian after sampling, for all orders; never more than without sampling."""
    found = _poisson(sampling.rate, noise) if sampling.kind == "poisson" else _fixed(sampling.rate, noise)
    return np.clip(found, 0, ORDERS / (2 * noise**2))


def _poisson(q: float, noise: float) -> Any:
    """Every client independently; the larger of both directions, as the library has it."""
    accounting = _library()
    accountant = accounting.rdp.RdpAccountant(ORDERS)
    with _quiet():
        return accountant.compose(accounting.PoissonSampledDpEvent(q, accounting.GaussianDpEvent(noise))).rdp


def _fixed(q: float, noise: float) -> Any:
    """Without replacement, from bounds of the hockey-stick divergence H of one draw at γ = 1 + q(e^ℓ − 1), β = γ/e^ℓ.

    Let B be the output if the client is drawn, B' the same with its uploads zero, and A that without it. B and B' differ by
    one client's uploads, B' and A as well (somebody else has its place), B and A by those of two. Advanced joint convexity
    gives, with δ₁ and δ₂ for one and two, H(with ‖ without) <= q((1−β)δ₂(ℓ) + βδ₁(ℓ)) and H(without ‖ with) <= qδ₁(ℓ).
    The same draw on both sides gives qδ₁(log γ).
    """
    mu = 1 / noise
    used = int(np.sum(ORDERS * mu**2 <= 60))  # beyond, nobody would notice
    if used == 0:  # so little noise that sampling gains nothing
        return np.full(len(ORDERS), np.inf)
    steps = 20 * math.ceil(4 * mu * ORDERS[used - 1] + 28)
    loss = np.linspace(0, steps * mu / 20, steps + 1)
    gamma = np.logaddexp(math.log1p(-q), math.log(q) + loss)
    beta = np.exp(gamma - loss)
    with np.errstate(divide="ignore"):
        one, two = np.log(_gaussian_deltas(mu, loss)), np.log(_gaussian_deltas(2 * mu, loss))
        both = np.logaddexp(np.log1p(-np.minimum(beta, 1)) + two, np.log(beta) + one)
        both = np.minimum(both, np.log(_gaussian_deltas(mu, gamma)))
    length = 2 * math.log(q) + loss - gamma
    found = [
        max(_renyi(a, gamma, both, one, length, mu / 20), _renyi(a, gamma, one, both, length, mu / 20))
        for a in ORDERS[:used]
    ]
    return np.concatenate([found, np.full(len(ORDERS) - used, np.inf)])


def _renyi(order: float, gamma: Any, there: Any, back: Any, length: Any, step: float) -> float:
    """Rényi's divergence from logarithms of hockey-stick divergences in both directions (Sason and Verdú, 2016).

    exp((α−1)D) = 1 + α(α−1) ∫ (γ^(α−2) H(P‖Q) + γ^(−α−1) H(Q‖P)) dγ over γ > 1; by the
    trapezoidal rule, and 1/1000 for its error.
    """
    logs = np.logaddexp((order - 1) * gamma + there, -order * gamma + back) + length
    top = logs.max()
    area = top + math.log(
        1.001 * step * float(np.exp(logs - top).sum() - (np.exp(logs[0] - top) + np.exp(logs[-1] - top)) / 2)
    )
    return float(np.logaddexp(0, math.log(order * (order - 1)) + area)) / (order - 1)


def _library() -> Any:
    """dp-accounting, which takes a second to import."""
    try:
        import_module("dp_accounting.rdp")
        return import_module("dp_accounting")
    except ImportError as error:
        raise ImportError("amplification by sampling needs dp-accounting: pip install dp-accounting") from error


@contextmanager
def _quiet() -> "Iterator[None]":
    """The library warns of each order that it leaves out; enough others are left."""
    logger = import_module("logging").getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _checked(draws: Draws) -> Draws:
    """Without what was never drawn."""
    for k, count in draws.items():
        if not (k > 0 and math.isfinite(k) and count >= 0 and math.isfinite(count)):
            raise ValueError(
                f"draws must map a number of exchanges above 0 to a number of draws, got {{{k!r}: {count!r}}}"
            )
    return {float(k): count for k, count in draws.items() if count > 0}


def _added(spent: Draws, round: Draws, times: int) -> Draws:
    """``spent`` and so many rounds."""
    return {k: spent.get(k, 0) + times * round.get(k, 0) for k in {*spent, *round}}


def _smallest(fits: "Callable[[float], bool]") -> float:
    """The smallest float for which a condition holds that holds for all larger ones."""
    if fits(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low < 1e-13 * high:
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _bisected(holds: "Callable[[int], bool]", low: int, high: int) -> int:
    """The smallest integer above ``low`` for which a condition holds; it is known to hold for ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _three_digits(index: int) -> float:
    """The numbers of three digits in order: 1.00 has index 0, 9.99 has 899, 10.0 has 900."""
    decade, digits = divmod(index, 900)
    return float(f"{100 + digits}e{decade - 2}")
