"""What a data set is: inputs with labels, in a training and a test part."""

from dataclasses import dataclass, replace

import numpy as np

from rookery.datasets.encoding import Encoding


@dataclass(frozen=True)
class Dataset:
    """Inputs with labels, in a training and a test part.

    Images are as they are stored (uint8, one axis more for colours). They become floats inside the compiled program:
    (pixel − mean)/deviation, with one number for each colour. Rows of a table are float32 and scaled already.

    What is known of a user's own data alone is None for the others:

    Attributes:
        class_names: What the user calls the classes 0, 1, …
        train_clients: The number of the client that has each training example.
        client_names: What the user calls the clients 0, 1, …
        train_checked: Which training labels somebody has checked, so that they are right.
        train_rows: Where a training example stands in the user's data: its row, from 0 and without the header, or its
            path in the folder.
        test_rows: The same of the test part.
        encoding: How inputs are made of the user's columns or images.
    """

    name: str
    train_inputs: np.ndarray
    train_labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    mean: float | tuple[float, ...]
    deviation: float | tuple[float, ...]
    class_names: tuple[str, ...] | None = None
    train_clients: np.ndarray | None = None
    client_names: tuple[str, ...] | None = None
    train_checked: np.ndarray | None = None
    train_rows: np.ndarray | None = None
    test_rows: np.ndarray | None = None
    encoding: Encoding | None = None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names) if self.class_names else int(self.train_labels.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""
        return self.train_inputs.shape[1:]

    @property
    def pixels(self) -> int:
        """The number of values of an input."""
        return int(np.prod(self.shape))

    def held_out(self, fraction: float = 1 / 6, seed: int = 0) -> "Dataset":
        """The training part alone: a random fraction of it takes the place of the test part, for tuning.

        Of a user's own data it is a fraction of each class, of the checked rows alone where some are, and every client
        keeps a row.
        """
        train, test = self._split(fraction, seed)
        rows = None if self.train_rows is None else self.train_rows[test]
        inputs, labels = self.train_inputs[test], self.train_labels[test]
        return replace(self.part(train), test_inputs=inputs, test_labels=labels, test_rows=rows)

    def part(self, rows: np.ndarray) -> "Dataset":
        """With these training examples only."""
        names = ("train_inputs", "train_labels", "train_clients", "train_checked", "train_rows")
        known = {name: getattr(self, name) for name in names}
        return replace(self, **{name: array[rows] for name, array in known.items() if array is not None})

    def _split(self, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        count = len(self.train_labels)
        if self.class_names is not None:
            return draw_test(self.train_labels, fraction, seed, self.train_clients, self.train_checked)
        order = np.random.default_rng([seed, count]).permutation(count)
        test, train = np.split(order, [round(fraction * count)])
        return train, test


def draw_test(
    labels: np.ndarray,
    fraction: float,
    seed: int,
    clients: np.ndarray | None = None,
    checked: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows), both in random order: of each class this fraction, but at least one row in each part.

    Only rows that are ``checked`` come into the test part, and the fraction is that of these. One row of each client
    stays in the training part whatever happens, so that a class may have no test row if its clients have no other.
    """
    order = np.random.default_rng([seed, len(labels)]).permutation(len(labels))
    counts = np.bincount(labels)
    can = np.ones(len(labels), bool) if checked is None else checked.copy()
    if clients is not None:  # what stays is what can be spared: not checked, of a frequent class
        spared = order[np.lexsort((-counts[labels[order]], can[order]))]
        can[spared[np.unique(clients[spared], return_index=True)[1]]] = False
    candidates = order[can[order]]
    in_test = np.zeros(len(labels), bool)
    for label in np.flatnonzero(counts):
        of_class = candidates[labels[candidates] == label]
        share = int(counts[label] if checked is None else checked[labels == label].sum())
        in_test[of_class[: min(max(1, round(fraction * share)), int(counts[label]) - 1)]] = True
    return order[~in_test[order]], order[in_test[order]]
