"""Five hospitals, four in ten diagnoses wrong in the records: which ones, and can a model be trained in spite of them?

Every hospital has had a quarter of its records read again by a second doctor. Nested: the weights of all other records are
chosen so that a model trained with them does well on the records that were read again.

    python examples/noisy_labels_in_hospitals.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import rookery as rk
from rookery.report import plot_picture

NESTED = "cleaning (MeFBO)"


def main(folder: Path = Path("."), rounds: int = 300, seed: int = 0) -> dict[str, float]:
    """Prints what came out, draws it, and returns it: accuracies in percent, and how well wrong diagnoses were found."""
    data = load_breast_cancer()
    diagnoses, rng = data.target_names[data.target], np.random.default_rng(seed)
    train, test = np.split(rng.permutation(len(diagnoses)), [400])
    hospitals = np.array(["Aarau", "Basel", "Chur", "Davos", "Engelberg"])[rng.integers(0, 5, len(train))]
    read_again = rng.random(len(train)) < 0.25
    task = rk.tasks.data_cleaning(
        data.data[train], diagnoses[train], clients=hospitals, checked=read_again,
        test=(data.data[test], diagnoses[test]), noise=0.4, always_wrong=True, seed=seed,
    )  # fmt: skip
    solution = task.solve(rounds=rounds, key=seed)
    rivals = task.rivals(rounds=rounds, key=seed)

    reached = {NESTED: 100 * solution.history.last["accuracy"]}
    reached |= {each.name + " (ceiling)" * each.ceiling: 100 * each.metrics["accuracy"][0] for each in rivals}
    weights = task.look(solution).tables["weights.csv"]  # a row for each record, the least weight first
    wrong, suspicious = weights["planted_wrong"], weights["suspicious"]
    area = 100 * solution.history.last["suspicion_auroc"]
    (simple,) = (100 * each.metrics["suspicion_auroc"][0] for each in rivals if "suspicion_auroc" in each.metrics)
    hits = np.sum(wrong & suspicious)
    print(f"{wrong.sum()} of {len(wrong)} records are wrong; {hits} of the {suspicious.sum()} suspicious ones.")
    print(f"Wrong looks worse than right in {area:.1f} % of pairs, by a pooled model's loss in {simple:.1f} %.")
    for name, accuracy in sorted(reached.items(), key=lambda each: -each[1]):
        print(f"  {accuracy:5.1f} %  {name}")
    best = reached[NESTED] > reached["validation data alone"]
    print("Cleaning predicts best." if best else "To predict, train on the records that were read again.")
    found = 100 * np.append(0, np.cumsum(wrong)) / wrong.sum()
    plot_picture(
        folder / "noisy_labels_in_hospitals.png", title="Five hospitals, 40 % of the diagnoses wrong",
        bars=reached, up="test accuracy (%)", highlight=NESTED, right="Reading records again",
        curves={"the least weight first": (np.linspace(0, 100, len(found)), found), "at random": ([0, 100], [0, 100])},
        axes=("records read again (%)", "wrong diagnoses found (%)"),
    )  # fmt: skip
    return {**reached, "area": area, "simple area": simple}


if __name__ == "__main__":
    main()
