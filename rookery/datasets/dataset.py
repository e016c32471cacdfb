"""What a data set of images is."""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Dataset:
    """Images as they are stored (uint8, one axis more for colours) with their labels, in a training and a test part.

    An image becomes floats inside the compiled program: (pixel − mean)/deviation, with one number for each colour.
    """

    name: str
    train_inputs: np.ndarray
    train_labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    mean: float | tuple[float, ...]
    deviation: float | tuple[float, ...]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.train_labels.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image."""
        return self.train_inputs.shape[1:]

    @property
    def pixels(self) -> int:
        """The number of values of an image."""
        return int(np.prod(self.shape))

    def held_out(self, fraction: float = 1 / 6, seed: int = 0) -> "Dataset":
        """The training part alone: a random fraction of it takes the place of the test part, for tuning."""
        count = len(self.train_labels)
        order = np.random.default_rng([seed, count]).permutation(count)
        test, train = np.split(order, [round(fraction * count)])
        return replace(
            self,
            train_inputs=self.train_inputs[train],
            train_labels=self.train_labels[train],
            test_inputs=self.train_inputs[test],
            test_labels=self.train_labels[test],
        )
