"""A rare disease: one patient in twenty has it. A score is to rank the ill above the healthy.

What counts is the order, so the area under the ROC curve is maximised itself, as a minimax problem, and compared with what
everybody does: cross-entropy, plain or with equal weights for ill and healthy.

    python examples/rare_disease.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import rookery as rk
from rookery.report import plot_picture

NESTED = "area itself (FedSGDA-M)"
MEASURED = 5  # of the thirty columns, the first: a cheap examination


def main(folder: Path = Path("."), rounds: int = 100, seed: int = 0) -> dict[str, float]:
    """Prints what came out, draws it, and returns the areas in percent."""
    data = load_breast_cancer()
    rng = np.random.default_rng(seed)
    features, diagnoses = data.data[:, :MEASURED], data.target_names[data.target]
    ill, healthy = (rng.permutation(np.flatnonzero(diagnoses == name)) for name in ("malignant", "benign"))
    train, test = np.append(ill[:13], healthy[:247]), np.append(ill[13:], healthy[247:])

    task = rk.tasks.auroc(
        features[train], diagnoses[train], clients=4, test=(features[test], diagnoses[test]), positive="malignant",
        model="linear", seed=seed,
    )  # fmt: skip
    solution = task.solve(rounds=rounds, key=seed)
    rivals = task.rivals(rounds=rounds, key=seed)

    areas = {NESTED: 100 * solution.history.last["auroc"]}
    areas |= {rival.name: 100 * rival.metrics["auroc"][0] for rival in rivals}
    shown = [task.look(solution).exhibits[0], *(rival.exhibits[0] for rival in rivals)]
    curves = {name: (curve["x"], curve["y"]) for name, curve in zip(areas, shown, strict=True)}

    print("13 of 260 patients are ill.")
    for name, area in sorted(areas.items(), key=lambda each: -each[1]):
        print(f"  {area:5.1f} %  {name}")
    gain = areas[NESTED] - areas["class balancing"]
    told = "no clear difference" if abs(gain) < 1 else "it pays" if gain > 0 else "it does not pay"
    print(
        f"Against equal weights for ill and healthy: {gain:+.1f} points, {told} (another 13 patients change a point or so)."
    )
    plot_picture(
        folder / "rare_disease.png", title="One patient in twenty is ill",
        bars=areas, up="area under the ROC curve (%)", highlight=NESTED,
        curves=curves, right="ROC curves", axes=("healthy taken for ill", "ill found"),
    )  # fmt: skip
    return areas


if __name__ == "__main__":
    main()
