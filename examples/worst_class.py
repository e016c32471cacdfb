"""How good is a classifier at its worst class? Four clients hold digits, and hardly any eights.

Nested: an opponent shifts weight to the classes that are classified worst, and the model has to follow. Beside it plain
averaging, and equal weights for all classes.

    python examples/worst_class.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import rookery as rk
from rookery.report import plot_picture

NESTED = "worst class (FedSGDA+)"
KEPT = 12  # eights to train on; of the other digits there are a hundred


def main(folder: Path = Path("."), rounds: int = 100, seed: int = 0) -> dict[str, float]:
    """Prints what came out, draws it, and returns the accuracies of the worst classes in percent."""
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    of_class = [order[data.target[order] == digit] for digit in range(10)]
    kept = [rows[: KEPT if digit == 8 else 100] for digit, rows in enumerate(of_class)]
    train, test = np.concatenate(kept), np.concatenate([rows[100:] for rows in of_class])

    task = rk.tasks.fair_classification(
        data.images[train], data.target[train], clients=4, test=(data.images[test], data.target[test]), model="linear",
        seed=seed,
    )  # fmt: skip
    solution = task.solve(rounds=rounds, key=seed)
    rivals = task.rivals(rounds=rounds, key=seed)

    worst = {NESTED: 100 * solution.history.last["worst_accuracy"]}
    worst |= {rival.name: 100 * rival.metrics["worst_accuracy"][0] for rival in rivals}
    overall = [solution.history.last["accuracy"], *(rival.metrics["accuracy"][0] for rival in rivals)]
    classes = task.look(solution).tables["class_weights.csv"]

    print(f"There are {KEPT} eights to learn from, and a hundred of each other digit.")
    for (name, accuracy), every in zip(worst.items(), overall, strict=True):
        print(f"  {accuracy:5.1f} % of the worst digit, {100 * every:5.1f} % of all: {name}")
    gain = worst[NESTED] - worst["class balancing"]
    told = "no clear difference" if abs(gain) < 5 else "it pays" if gain > 0 else "it does not pay"
    print(f"Against equal weights for all digits: {gain:+.1f} points, {told} (an eight in the test is 1.4 points).")
    plot_picture(
        folder / "worst_class.png", title=f"{KEPT} eights among a hundred of each other digit",
        bars=worst, up="test accuracy of the worst digit (%)", highlight=NESTED,
        beside=dict(zip(classes["class"].tolist(), (100 * classes["test_accuracy"]).tolist(), strict=True)),
        right="Each digit, by the fair classifier", axes=("test accuracy (%)", ""),
    )  # fmt: skip
    return worst


if __name__ == "__main__":
    main()
