"""Simple rivals: what a sensible person would try before anything nested, trained in as many rounds.

A rival is federated averaging of the task's network on weighted examples. Equal weights are plain averaging, inverse
class sizes are class balancing, zeros leave examples out, and the truth is the ceiling. Its step is chosen on held-out
training data by the task's metric, as the rates of algorithms are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithms.fedavg import FedAvg
from rookery.models.layers import cross_entropies
from rookery.problem.clients import Clients, Split
from rookery.problem.participation import Participation, Steps
from rookery.problem.problems import Bilevel
from rookery.solving.lanes import Lanes
from rookery.solving.loop import make_rounds
from rookery.solving.prepare import many, prepare
from rookery.tasks.inputs import Example, Scaling, area_under_curve
from rookery.tasks.learned import Exhibit
from rookery.typing import BatchSize

STEPS = (0.03, 0.1, 0.3, 1.0)
"""The steps that are tried first; beyond an edge that is best, further ones are."""
FURTHER = 4
"""How often the range of steps may grow by a third of a decade or so."""
DRAWS = 3
"""With so many draws of minibatches a step is tried, and the worst counts: on noisy labels the last iterate of long steps is
a lottery, which one of many steps wins."""
FOLDS = 5
LANES = 8
"""Trainings come in programs of so many, or twice or three times as many, so that few programs are compiled."""
DROPPED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Shares of the training examples that the ranking rival may leave out."""


@dataclass(frozen=True)
class Rival:
    """Federated averaging on weighted examples: ``held`` says who trains on what, ``weights`` how much one counts."""

    name: str
    what: str
    held: Sequence[np.ndarray]
    weights: np.ndarray | None = None
    ceiling: bool = False
    """Whether it knows what nobody knows."""


@dataclass(frozen=True)
class Result:
    """What a rival reached: metrics by name, one value a seed, and exhibits of the first seed."""

    name: str
    what: str
    metrics: Mapping[str, Sequence[float]]
    ceiling: bool = False
    exhibits: Sequence[Exhibit] = ()

    def tables(self) -> dict[str, Any]:
        """As JSON has it."""
        metrics = {
            name: [float(value) if np.isfinite(value) else None for value in values]
            for name, values in self.metrics.items()
        }
        return {"name": self.name, "what": self.what, "ceiling": self.ceiling, "metrics": metrics,
                "exhibits": list(self.exhibits)}  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """What rivals may spend: as many rounds as the run, with the same participants, steps and batches."""

    rounds: int
    seeds: Sequence[int] = (0,)
    participation: Participation | int | None = None
    local_steps: int | Steps = 1
    batch_size: BatchSize = None


class Contest(ABC):
    """The simple rivals of a task."""

    @abstractmethod
    def hold(
        self, others: Sequence["Contest"], apart: "Contest", effort: Effort, metric: str, higher: bool
    ) -> list[Result]:
        """The results, over the contests of all seeds; ``apart`` is the first without its test data, for tuning."""


def hold(contests: Sequence[Contest], apart: Contest | None, effort: Effort, metric: str, higher: bool) -> list[Result]:
    """What the rivals of a task reach, over the contests of all seeds."""
    assert apart is not None
    return contests[0].hold(contests, apart, effort, metric, higher)


class _Weighted(eqx.Module):
    """The mean over the batch of weight · loss; the weights are x."""

    scaling: Scaling

    def losses(self, network: Any, batch: Example) -> Array:
        return losses(self.scaling.outputs(network, batch["input"]), batch["label"])

    def __call__(self, x: Array, y: Any, batch: Example) -> Array:
        return jnp.mean(x[batch["j"]] * self.losses(y, batch))


def losses(outputs: Array, labels: Array) -> Array:
    """Cross-entropy of each example; one output is the logit of class 1."""
    if outputs.shape[-1] > 1:
        return cross_entropies(outputs, labels)
    sign = 2 * labels.astype(outputs.dtype) - 1
    return jax.nn.softplus(-sign * outputs[:, 0])


class _Judge(eqx.Module):
    """The task's metrics of a network alone."""

    evaluate: Any

    def __call__(self, x: Array, y: Any) -> dict[str, Array]:
        found: dict[str, Array] = self.evaluate(y)
        return found


@dataclass(frozen=True)
class Training(Contest):
    """Rivals that train the task's network on examples of the clients, of the server or of all of them.

    ``evaluate(network)`` has the task's metrics. The first rival is plain averaging. With ``ranked`` there is one rival
    more: it leaves out those of the examples that a pooled model, trained without them, finds least plausible.
    """

    network: Any
    scaling: Scaling
    inputs: np.ndarray
    labels: np.ndarray
    rivals: Sequence[Rival]
    evaluate: Any
    ranked: np.ndarray | None = None
    """The examples whose labels may be wrong."""
    truth: np.ndarray | None = None
    """Of those, which labels are wrong, where somebody knows."""
    exhibits: Callable[[Any], Sequence[Exhibit]] | None = field(default=None, compare=False)

    def hold(
        self, others: Sequence[Contest], apart: Contest, effort: Effort, metric: str, higher: bool
    ) -> list[Result]:
        """Each group of rivals whose examples are held in the same way is one program for all seeds and steps."""
        own = [each for each in others if isinstance(each, Training)]
        assert isinstance(apart, Training)
        results: dict[int, Result] = {}
        sign = 1.0 if higher else -1.0
        plain = 0.0
        for group in _groups(self.rivals):
            steps = _best_steps(apart, group, effort, metric, sign)
            lanes = [
                _Lane(contest, contest.rivals[number].held, contest.weights(number), step, seed)
                for number, step in zip(group, steps, strict=True)
                for contest, seed in zip(own, effort.seeds, strict=True)
            ]
            trained = _train(lanes, effort)
            for place, number in enumerate(group):
                part = range(place * len(own), (place + 1) * len(own))
                results[number] = self._result(self.rivals[number], trained, part)
            plain = steps[0] if 0 in group else plain
        found = [results[number] for number in range(len(self.rivals))]
        if self.ranked is not None:
            found.append(_by_rank(own, apart, effort, metric, sign, plain))
        return found

    def weights(self, number: int) -> np.ndarray:
        """Of all examples for a rival, with mean 1 over those that somebody trains on."""
        rival = self.rivals[number]
        return _scaled(np.ones(len(self.labels)) if rival.weights is None else rival.weights, rival.held)

    def _result(self, rival: Rival, trained: "_Trained", lanes: Sequence[int]) -> Result:
        metrics = {name: [float(values[lane]) for lane in lanes] for name, values in trained.metrics.items()}
        shown = () if self.exhibits is None else self.exhibits(trained.network(lanes[0]))
        return Result(rival.name, rival.what, metrics, rival.ceiling, shown)


def _groups(rivals: Sequence[Rival]) -> list[list[int]]:
    """Rivals whose examples are held in the same way: the same program trains them."""
    groups: dict[int, list[int]] = {}
    for number, rival in enumerate(rivals):
        groups.setdefault(id(rival.held), []).append(number)
    return list(groups.values())


def _scaled(weights: np.ndarray, held: Sequence[np.ndarray]) -> np.ndarray:
    mean = weights[np.concatenate(list(held))].mean()
    return weights / mean if mean > 0 else weights


@dataclass(frozen=True)
class _Lane:
    """One training: who holds what, what it counts, the step, the seed."""

    contest: Training
    held: Sequence[np.ndarray]
    weights: np.ndarray
    step: float
    seed: int


@dataclass(frozen=True)
class _Trained:
    networks: Any
    metrics: Mapping[str, np.ndarray]

    def network(self, lane: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[lane] if eqx.is_array(leaf) else leaf, self.networks)


def _train(lanes: Sequence[_Lane], effort: Effort) -> _Trained:
    """All lanes in one program; those that diverge have no finite metric."""
    wanted = len(lanes)
    lanes = [*lanes, *[lanes[0]] * (-wanted % LANES)]
    clients: dict[int, Clients] = {}
    for lane in lanes:
        if id(lane.held) not in clients:
            contest = lane.contest
            data = {"input": jnp.asarray(contest.inputs), "label": jnp.asarray(contest.labels, jnp.int32),
                    "j": np.arange(len(contest.labels), dtype=np.int32)}  # fmt: skip
            clients[id(lane.held)] = Clients(Split(data, lane.held, "examples"))
    first = lanes[0]
    alone = len(first.held) == 1
    loss = _Weighted(first.contest.scaling)
    judges = {id(lane.contest): _Judge(lane.contest.evaluate) for lane in lanes}
    given = many(
        Bilevel(loss, loss),
        [FedAvg(eta_y=lane.step) for lane in lanes],
        [clients[id(lane.held)] for lane in lanes],
        Lanes([jnp.asarray(lane.weights, jnp.result_type(float)) for lane in lanes]),
        Lanes([lane.contest.network for lane in lanes]),
        keys=[lane.seed for lane in lanes],
        evaluate=Lanes([judges[id(lane.contest)] for lane in lanes]),
        participation=None if alone else effort.participation,
        local_steps=effort.local_steps,
        batch_size=_lower(effort.batch_size),
    )
    solution = make_rounds(prepare(given), effort.rounds, effort.rounds, progress=False)
    last = solution.history.last
    names = [name for name in solution.history.columns if name in _metric_names(first.contest)]
    metrics = {name: np.array(last[name], float)[:wanted] for name in names}
    for place in (each.lane for each in solution.diverged if each.lane is not None and each.lane < wanted):
        for values in metrics.values():
            values[place] = np.nan
    return _Trained(solution.y, metrics)


def _metric_names(contest: Training) -> list[str]:
    return list(eqx.filter_eval_shape(contest.evaluate, contest.network))


def _lower(batch_size: BatchSize) -> BatchSize:
    """The size of the batches that train."""
    return batch_size[0] if isinstance(batch_size, tuple) else batch_size


def _best_steps(contest: Training, group: Sequence[int], effort: Effort, metric: str, sign: float) -> list[float]:
    """For each rival of a group the step that the task's metric likes best on held-out data.

    Where it is at an edge of those tried, the next one is tried too.
    """
    scores: dict[int, dict[float, float]] = {number: {} for number in group}
    wanted = {number: list(STEPS) for number in group}
    for _ in range(FURTHER + 1):
        jobs = [(number, step) for number in group for step in wanted[number]]
        if not jobs:
            break
        lanes = [
            _Lane(contest, contest.rivals[number].held, contest.weights(number), step, effort.seeds[0] + draw)
            for number, step in jobs
            for draw in range(DRAWS)
        ]
        found = _train(lanes, effort).metrics[metric].reshape(-1, DRAWS)
        for (number, step), draws in zip(jobs, found, strict=True):
            scores[number][step] = float(np.min(sign * draws)) if np.isfinite(draws).all() else -np.inf
        wanted = {number: _beyond(scores[number]) for number in group}
    return [max(scores[number], key=lambda step: scores[number][step]) for number in group]


def _beyond(scores: Mapping[float, float]) -> list[float]:
    """Two steps more where the best lies at an edge."""
    best = max(scores, key=lambda step: scores[step])
    if best == max(scores):
        return [best * 3.0, best * 10.0]
    return [best / 3.0, best / 10.0] if best == min(scores) else []


def _by_rank(
    contests: Sequence[Training], apart: Training, effort: Effort, metric: str, sign: float, step: float
) -> Result:
    """Leaves out the examples that a pooled model finds least plausible; how many, held-out data say."""
    one = replace(effort, seeds=effort.seeds[:1])
    rank = suspicion(apart, one, step)
    tried = [_without_worst(apart, rank, share) for share in DROPPED]
    held = apart.rivals[0].held
    found = _train([_Lane(apart, held, weights, step, effort.seeds[0]) for weights in tried], one).metrics[metric]
    share = DROPPED[int(np.argmax(np.where(np.isfinite(found), sign * found, -np.inf)))]
    ranks = [
        suspicion(each, replace(effort, seeds=(seed,)), step) for each, seed in zip(contests, effort.seeds, strict=True)
    ]
    lanes = [
        _Lane(each, each.rivals[0].held, _without_worst(each, own, share), step, seed)
        for each, own, seed in zip(contests, ranks, effort.seeds, strict=True)
    ]
    trained = _train(lanes, effort)
    result = Result(
        "drop by a pooled model's loss",
        f"Federated averaging without the {share:.0%} of the samples that a model trained on others finds least plausible.",
        {name: [float(value) for value in values] for name, values in trained.metrics.items()},
        exhibits=() if contests[0].exhibits is None else contests[0].exhibits(trained.network(0)),
    )
    areas = [
        float(area_under_curve(jnp.asarray(rank[each.ranked]), jnp.asarray(each.truth, int)))
        for each, rank in zip(contests, ranks, strict=True)
        if each.truth is not None and each.truth.any()
    ]
    more = {SUSPICION: areas} if len(areas) == len(contests) else {}
    return replace(result, metrics={**result.metrics, **more})


SUSPICION = "suspicion_auroc"
"""The metric that says how well wrong labels were found, where somebody knows which are wrong."""


def suspicion(contest: Training, effort: Effort, step: float) -> np.ndarray:
    """For each example the loss of a model that was trained on the other folds; 0 for those that nobody trains on."""
    held = contest.rivals[0].held
    rows = np.concatenate(list(held))
    fold = np.random.default_rng([*b"folds", effort.seeds[0]]).permutation(len(rows)) % FOLDS
    lanes = []
    for number in range(FOLDS):
        weights = np.ones(len(contest.labels))
        weights[rows[fold == number]] = 0
        lanes.append(_Lane(contest, held, _scaled(weights, held), step, effort.seeds[0]))
    trained = _train(lanes, effort)
    found = np.zeros(len(contest.labels))
    for number in range(FOLDS):
        left = rows[fold == number]
        found[left] = _losses(contest.scaling, trained.network(number), contest.inputs[left], contest.labels[left])
    return found


@eqx.filter_jit
def _chunk(scaling: Scaling, network: Any, inputs: Any, labels: Any) -> Array:
    return losses(scaling.outputs(network, inputs), labels)


def _losses(scaling: Scaling, network: Any, inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    cuts = range(0, len(labels), 1000)
    parts = [_chunk(scaling, network, inputs[at : at + 1000], labels[at : at + 1000]) for at in cuts]
    found: np.ndarray = np.nan_to_num(np.concatenate(parts), nan=np.inf)
    return found


def _without_worst(contest: Training, loss: np.ndarray, share: float) -> np.ndarray:
    """Weights that leave out this share of the examples that may have a wrong label: those of the highest loss."""
    assert contest.ranked is not None
    worst = contest.ranked[np.argsort(-loss[contest.ranked])[: round(share * len(contest.ranked))]]
    weights = np.ones(len(contest.labels))
    weights[worst] = 0
    return _scaled(weights, contest.rivals[0].held)
