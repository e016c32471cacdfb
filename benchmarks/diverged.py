"""What lanes that diverge cost: ``python -m benchmarks.diverged``.

64 random rates of which 55 diverge, against 64 of which none does. The two sides take turns, each in a program that is
compiled already, and the median of the ratios is reported.
"""

import statistics
import time

import numpy as np

import rookery as rk
from benchmarks.speed import PROBLEM, SIZES, make, no_metrics

LANES, BAD = 64, 55
ROUNDS = 200


def rates(bad: int) -> list[rk.FedBiO]:
    """Random rates; the first ``bad`` of them diverge, some at once and some after a while."""
    rng = np.random.default_rng(0)
    small = 10 ** rng.uniform(-3, -1, (LANES, 2))
    large = 10 ** rng.uniform(2, 20, (LANES, 2))
    chosen = np.where(np.arange(LANES)[:, None] < bad, large, small)
    return [rk.FedBiO(eta_x=x, eta_y=y) for x, y in chosen.tolist()]


def measure(repeats: int = 5) -> tuple[float, float, float]:
    """(the ratio, seconds to ask one lane why for the first time, and another one)."""
    size = SIZES["digits-sized"]
    made = make(**size)

    def run(bad: int) -> tuple[float, rk.Solution]:
        start = time.perf_counter()
        solution = rk.solve_many(PROBLEM, rates(bad), *made, rounds=ROUNDS, participation=10, local_steps=3,
                                 batch_size=size["batch"], evaluate=no_metrics, progress=False)  # fmt: skip
        return time.perf_counter() - start, solution

    _, solution = run(BAD)
    assert len(solution.diverged) == BAD
    asked = []
    for each in (solution.diverged[0], solution.diverged[-1]):
        start = time.perf_counter()
        solution.why(each.lane)
        asked.append(time.perf_counter() - start)
    ratios = [run(BAD)[0] / run(0)[0] for _ in range(repeats)]
    return statistics.median(ratios), asked[0], asked[1]


if __name__ == "__main__":
    ratio, first, second = measure()
    print(f"{LANES} lanes of which {BAD} diverge, times {LANES} that do not: {ratio:.2f} (goal: at most 1.5)")
    print(f"why one lane diverged: {first:.2f} s, another: {second:.2f} s")
