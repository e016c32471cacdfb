"""Eight stations label digits, and three of them type in whatever comes to mind: whom to trust?

The server holds ten digits of each kind with labels that are right. Nested: the weights of the stations are chosen so that
the model trained with them does well on what the server holds. Nobody shows anybody any data.

    python examples/which_clients_to_trust.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import rookery as rk
from rookery.report import plot_picture

STATIONS = ("Ahorn", "Birke", "Eibe", "Fichte", "Linde", "Tanne", "Ulme", "Weide")
CARELESS = 3  # the last ones


def main(folder: Path = Path("."), rounds: int = 300, seed: int = 0) -> dict[str, float]:
    """Prints what came out, draws it, and returns the weights of the stations."""
    data = load_digits()
    rng = np.random.default_rng(seed)
    stations = np.array(STATIONS)[rng.integers(0, len(STATIONS), len(data.target))]

    task = rk.tasks.client_weighting(data.images, data.target, clients=stations, noisy=CARELESS, seed=seed)
    solution = task.solve(rounds=rounds, key=seed)
    rivals = task.rivals(rounds=rounds, key=seed)

    learned = task.look(solution).tables["clients.csv"]
    weights = dict(zip(learned["client"].tolist(), learned["weight"].tolist(), strict=True))
    reached = {"learned weights (PrimalDual)": 100 * solution.history.last["accuracy"]}
    reached |= {each.name + " (ceiling)" * each.ceiling: 100 * each.metrics["accuracy"][0] for each in rivals}

    careless = sum(weights[name] for name in STATIONS[-CARELESS:])
    print(f"{', '.join(STATIONS[-CARELESS:])} label at random. They weigh {careless:.3f} together; at first 0.375.")
    for name, accuracy in sorted(reached.items(), key=lambda each: -each[1]):
        print(f"  {accuracy:5.1f} %  {name}")
    gain = reached["learned weights (PrimalDual)"] - reached["equal weights"]
    print(f"Learned weights are worth {gain:+.1f} points: {'they pay' if gain > 0.5 else 'equal weights do as well'}.")
    shown = {name + " (random)" * (name in STATIONS[-CARELESS:]): round(each, 3) for name, each in weights.items()}
    plot_picture(
        folder / "which_clients_to_trust.png", title="Three of eight stations label at random",
        bars=reached, up="test accuracy (%)", highlight="learned weights (PrimalDual)",
        beside=shown, right="How much each station counts", axes=("weight", ""),
    )  # fmt: skip
    return weights


if __name__ == "__main__":
    main()
