"""Small tasks for few-shot learning, drawn from classes with many examples."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rookery.datasets import Dataset
from rookery.problem import partition
from rookery.tasks.inputs import client_name, held_by


class Class(NamedTuple):
    """A class that somebody holds: its number, and its examples, which are only made when they are drawn."""

    number: int
    examples: Callable[[], np.ndarray]


class Drawn(NamedTuple):
    """Tasks: inputs (tasks, way, examples, ...) and the number of the class (tasks, way)."""

    inputs: np.ndarray
    classes: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence["Drawn"]) -> "Drawn":
        """Of all clients, one after the other."""
        return cls(np.concatenate([part.inputs for part in parts]), np.concatenate([part.classes for part in parts]))


class Cut(NamedTuple):
    """The tasks of all clients, and those with classes nobody trains on."""

    own: Drawn
    validation: Drawn
    test: Drawn


class Draw:
    """Draws tasks of ``way`` classes with so many ``examples`` each."""

    def __init__(self, rng: np.random.Generator, way: int, examples: int):
        self.rng, self.way, self.examples = rng, way, examples

    def __call__(self, tasks: int, classes: Sequence[Class]) -> Drawn:
        """From classes that somebody holds."""
        if self.way > len(classes):
            raise ValueError(f"way must be at most {len(classes)}, the classes that somebody holds, got {self.way!r}")
        inputs, numbers = [], []
        for _ in range(tasks):
            chosen = [classes[place] for place in self.rng.permutation(len(classes))[: self.way]]
            inputs.append(np.stack([self.rng.permutation(each.examples())[: self.examples] for each in chosen]))
            numbers.append([each.number for each in chosen])
        return Drawn(np.stack(inputs), np.array(numbers))


FEWEST = 6
"""Classes of one's own that few-shot learning needs: two to train on at least, two to validate and two to test."""


def own_way(data: Any) -> int:
    """How many classes a task has: five, or as many as validation and test have."""
    return min(5, _apart(data.classes))


def _apart(classes: int) -> int:
    """Classes for validation, and as many for test."""
    return max(2, classes // 5)


def own_classes(data: Dataset, draw: Draw, clients: int, tasks: int, test_tasks: int) -> Cut:
    """Tasks of the user's own classes: clients hold their own examples of the training classes, or share them out."""
    if data.classes < FEWEST:
        raise ValueError(f"few-shot needs at least {FEWEST} classes, and {data.name} has {data.classes}")
    inputs = np.concatenate([data.train_inputs, data.test_inputs])
    labels = np.concatenate([data.train_labels, data.test_labels])
    apart = _apart(data.classes)
    order = draw.rng.permutation(data.classes)
    training, validation, test = np.split(order, [data.classes - 2 * apart, data.classes - apart])
    own = [
        draw(tasks, _with_enough(data, inputs, labels, rows, training, draw, client_name(data, client)))
        for client, rows in enumerate(_rows(data, clients, training))
    ]
    everything = np.arange(len(labels))
    others = [
        draw(test_tasks, _with_enough(data, inputs, labels, everything, each, draw, data.name))
        for each in (validation, test)
    ]
    return Cut(Drawn.joined(own), *others)


def _rows(data: Dataset, clients: int, training: np.ndarray) -> list[np.ndarray]:
    """Of each client the training examples of these classes."""
    if data.train_clients is not None:
        return held_by(data, clients, 0, "iid")
    return partition.by_class(data.train_labels, [training.tolist()] * clients, 0)


def _with_enough(
    data: Dataset, inputs: np.ndarray, labels: np.ndarray, rows: np.ndarray, classes: np.ndarray, draw: Draw, whose: str
) -> list[Class]:
    """Those of the classes that have examples enough among these rows."""
    held = {int(c): rows[labels[rows] == c] for c in classes}
    enough = {c: own for c, own in held.items() if len(own) >= draw.examples}
    if len(enough) < draw.way:
        raise ValueError(
            f"{whose} has {len(enough)} classes with {draw.examples} examples each (shot + queries): few-shot needs "
            f"{draw.way}"
        )
    return [Class(c, partial(np.take, inputs, own, axis=0)) for c, own in enough.items()]
