"""What privacy costs: ε against accuracy, on scikit-learn's digits.

    python -m benchmarks.privacy [--quick] [--seeds 3] [--clients 500] [--rounds 60] [--only MeFBO]

The digits are dealt at random to hundreds of clients by the package's own splitters, two or three examples each; a client is
what is protected. All take part in every round and compute on all of their data. Rates are found by ``rk.tune`` without
privacy, on held-out training data by the task's own metric for the search, and are the same for every ε; nobody has looked
for better ones under noise. The clip is ``rk.AdaptiveClip()`` as it is, and in a second table the one of five that does best
at this ε on the same held-out data (one seed). That search, like the one for rates, takes these data for public: it is not
counted. The noise is what the package finds for all rounds. Seeds are lanes: the seed decides the split, the network's start
and the noise. The last column has a clip of 1e-6, with which next to nothing of the clients' is learned: PrimalDual's server
holds 30 examples of its own, which are public.
"""

import argparse
import dataclasses
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import rookery as rk
from rookery.datasets import Dataset, load
from rookery.problem import partition
from rookery.solving.prepare import prepare, single
from rookery.solving.spending import draws_of
from rookery.tasks import RECIPES, Task

EPSILONS = (None, 50.0, 10.0, 3.0, 1.0)
DELTA = 1e-4
NOTHING = 1e-6
CLIPS = (rk.AdaptiveClip(), 0.01, 0.1, 1.0, 10.0)


@dataclasses.dataclass(frozen=True)
class Case:
    """An algorithm with a task of its class; ``options`` are those of the task."""

    algorithm: str
    task: str
    options: Mapping[str, Any]


def cases(clients: int) -> tuple[Case, ...]:
    """The first two train 16 features and a head for them (1210 numbers), the others one linear classifier (650)."""
    features = {"hidden": 16, "rc": 0.01}
    return (
        Case("MeFBO", "hyper-representation", features),
        Case("FedBiO", "hyper-representation", features),
        Case("FedSGDA-M", "fair-classification", {"model": "linear"}),
        Case("PrimalDual", "client-weighting", {"model": "linear", "noisy": clients // 5, "validation": 3}),
    )


def made(case: Case, data: Dataset, clients: int, seed: int) -> Task:
    """The task, among clients that hold equal shares."""
    if case.task == "fair-classification":  # which would else give each client a part of each class
        held = partition.iid(len(data.train_labels), clients, seed, per_client=len(data.train_labels) // clients)
        owners = np.empty(len(data.train_labels), int)
        for client, rows in enumerate(held):
            owners[rows] = client
        kept = np.sort(np.concatenate(held))
        data = dataclasses.replace(data, train_clients=owners).part(kept)
    return RECIPES[case.task].make(data, clients=clients, seed=seed, **case.options)


def rates(case: Case, apart: Task, given: Mapping[str, Any]) -> Any:
    """Found on training data, without privacy."""
    metric, higher = apart.searched
    return rk.tune(
        apart.problem, case.algorithm, apart.clients, apart.x0, apart.y0, evaluate=apart.evaluate, metric=metric,
        higher_is_better=higher, progress=False, **given,
    ).best  # fmt: skip


def private(clip: Any, epsilon: float) -> rk.ClientPrivacy:
    """With the noise that lasts."""
    return rk.ClientPrivacy(clip, delta=DELTA, epsilon=epsilon)


def best_clip(apart: Task, algorithm: Any, given: Mapping[str, Any], epsilon: float) -> Any:
    """The clip with the best accuracy on held-out training data."""
    reached = [solved([apart], algorithm, given, private(clip, epsilon)).history.last["accuracy"] for clip in CLIPS]
    return CLIPS[int(np.argmax([np.nan_to_num(float(np.mean(each))) for each in reached]))]


def solved(tasks: Sequence[Task], algorithm: Any, given: Mapping[str, Any], privacy: Any) -> rk.Solution:
    """All seeds at once."""
    return rk.solve_many(
        tasks[0].problem, [algorithm] * len(tasks), [each.clients for each in tasks],
        rk.Lanes([each.x0 for each in tasks]), rk.Lanes([each.y0 for each in tasks]), keys=list(range(len(tasks))),
        evaluate=rk.Lanes([each.evaluate for each in tasks]), progress=False, every=given["rounds"], privacy=privacy,
        **given,
    )  # fmt: skip


def noise_of(task: Task, algorithm: Any, rounds: int, privacy: rk.ClientPrivacy) -> float:
    """The noise multiplier that the package finds."""
    given = single(task.problem, algorithm, task.clients, task.x0, task.y0, privacy=privacy, rounds=rounds)
    found = prepare(given).run.setting.privacy
    assert found is not None
    assert found.noise is not None
    return float(found.noise)


def rows(case: Case, seeds: int, clients: int, rounds: int) -> tuple[list[str], list[str], list[str]]:
    """The cells of a case for each ε: accuracy, accuracy with the best clip, noise multiplier and what was spent."""
    given = {"rounds": rounds}
    apart = made(case, RECIPES[case.task].without_test(load("digits")), clients, 100)
    algorithm = rates(case, apart, given)
    tasks = [made(case, load("digits"), clients, seed) for seed in range(seeds)]
    plain = percent(solved(tasks, algorithm, given, None))
    adaptive, chosen, noises = [plain], [plain], ["none"]
    for epsilon in filter(None, EPSILONS):
        solution = solved(tasks, algorithm, given, private(CLIPS[0], epsilon))
        adaptive.append(percent(solution))
        assert int(solution.history.last["round"]) == rounds
        noise = noise_of(tasks[0], algorithm, rounds, private(CLIPS[0], epsilon))
        noises.append(f"{noise:.2f} ({float(np.max(solution.history.last['epsilon'])):.3g})")
        clip = best_clip(apart, algorithm, given, epsilon)
        if clip is CLIPS[0]:
            chosen.append(f"{adaptive[-1]} (adaptive)")
        else:
            chosen.append(f"{percent(solved(tasks, algorithm, given, private(clip, epsilon)))} ({clip:g})")
    nothing = percent(solved(tasks, algorithm, given, private(NOTHING, 1.0)))
    exchanges = sum(often * times for draw, times in draws_of(algorithm.round()).items() for _, often in draw)
    jax.clear_caches()
    who = [case.algorithm, case.task, str(rounds), str(exchanges)]
    return [*who, *adaptive, nothing], [*who, *chosen, nothing], [*who, *noises, ""]


def percent(solution: rk.Solution) -> str:
    """The test accuracy over seeds."""
    found = 100 * np.asarray(solution.history.last["accuracy"])
    diverged = f", {len(solution.diverged)} diverged" if solution.diverged else ""
    return f"{found.mean():.1f} ± {found.std(ddof=1) if found.size > 1 else 0:.1f}{diverged}"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    columns = [
        "algorithm", "task", "rounds", "exchanges a round",
        *("no privacy" if epsilon is None else f"ε = {epsilon:g}" for epsilon in EPSILONS), "no clients",
    ]  # fmt: skip
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *lines)])


def main() -> None:
    """All cases, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds: whether it runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rounds", type=int, nargs="+", default=[60])
    parser.add_argument("--only", help="an algorithm")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # that a search finds x of little use, and that weights are known
    began = time.perf_counter()
    found = []
    for case in cases(chosen.clients):
        for rounds in [5] if chosen.quick else chosen.rounds:
            if chosen.only in (None, case.algorithm):
                found.append(rows(case, chosen.seeds, chosen.clients, rounds))
                print(*found[-1], f"{time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    adaptive, best, noises = zip(*found, strict=True)
    print(
        f"\nTest accuracy in percent, mean ± standard deviation of {chosen.seeds} seeds; {chosen.clients} clients, who all"
    )
    print(f"take part in every round; δ = {DELTA:g}; rk.AdaptiveClip()\n\n{table(adaptive)}")
    print(f"\nThe same with the clip of five that does best on held-out training data\n\n{table(best)}")
    print(f"\nNoise multiplier of the first table (and the ε that was spent)\n\n{table(noises)}")
    print(f"\n{time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
