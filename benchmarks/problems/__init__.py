"""Small federated problems on scikit-learn's own data, which no preset knows, with the exact Φ of each.

``python -m benchmarks.problems`` prints what they are.
"""

from collections.abc import Callable

from benchmarks.problems import bilevel, minimax, scales, weighting
from benchmarks.problems.base import Problem

__all__ = ["Problem", "problems"]


def problems() -> dict[str, Callable[[], Problem]]:
    """The functions that make the problems, by name."""
    return {
        "ridge": bilevel.ridge,
        "cleaning": bilevel.cleaning,
        "representation": bilevel.representation,
        "loss-tuning": bilevel.loss_tuning,
        "network": bilevel.network,
        "own-heads": bilevel.own_heads,
        "auroc": minimax.auroc,
        "fair": minimax.fair,
        "robust": minimax.robust,
        "wrong-labels": weighting.wrong_labels,
        "scaled-quadratic": scales.scaled_quadratic,
        "saddle": minimax.saddle,
        "noisy-targets": weighting.noisy_targets,
        "raw-units": scales.raw_units,
    }
