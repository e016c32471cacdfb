"""The rivals of tasks on unlike classes: plain federated averaging, and with every class counting the same."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rookery.datasets import Dataset
from rookery.tasks.inputs import Scaling, Score
from rookery.tasks.network import OfNetwork, OfWhole, by_class
from rookery.tasks.rivals import Rival, Training


def balanced(labels: np.ndarray) -> np.ndarray:
    """Weights of examples that give every class the same sum."""
    found: np.ndarray = 1 / np.bincount(labels)[labels]
    return found


def averaging(data: Dataset, held: Sequence[np.ndarray], network: Any, judge: Callable[[Score, int], Any]) -> Training:
    """Plain and class-balanced averaging of the network, judged by ``judge(score on the test examples, classes)``."""
    scaling = Scaling.of(data)
    test = Score.of(OfWhole(scaling), data)
    rivals = [
        Rival("plain federated averaging", "The mean cross-entropy, all examples alike.", held),
        Rival("class balancing", "Each class has the same weight, however rare.", held, balanced(data.train_labels)),
    ]
    return Training(
        network, scaling, data.train_inputs, data.train_labels, rivals, OfNetwork(judge(test, data.classes)),
        exhibits=lambda trained: by_class(test, data, None, trained),
    )  # fmt: skip
