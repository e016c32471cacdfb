"""The learning problems people come for: data to clients, losses, model, metrics. One module a task.

``rk.tasks.data_cleaning(features, labels, clients=..., model=...)`` makes a task of arrays of one's own, and so do its
sisters.
"""

from rookery.tasks.cleaning import DATA_CLEANING, DATA_CLEANING_ONE_CLASS
from rookery.tasks.fairness import FAIR_CLASSIFICATION
from rookery.tasks.few_examples import FEW_SHOT
from rookery.tasks.imbalance import LOSS_TUNING
from rookery.tasks.learned import Learned
from rookery.tasks.quadratic import QUADRATIC_BILEVEL, QUADRATIC_MINIMAX
from rookery.tasks.ranking import AUROC
from rookery.tasks.representation import HYPER_REPRESENTATION
from rookery.tasks.task import Defaults, Recipe, Task
from rookery.tasks.toy_weighting import TOY_WEIGHTING
from rookery.tasks.trust import CLIENT_WEIGHTING

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        HYPER_REPRESENTATION,
        DATA_CLEANING,
        DATA_CLEANING_ONE_CLASS,
        LOSS_TUNING,
        FEW_SHOT,
        FAIR_CLASSIFICATION,
        AUROC,
        CLIENT_WEIGHTING,
        TOY_WEIGHTING,
        QUADRATIC_BILEVEL,
        QUADRATIC_MINIMAX,
    )
}
"""Every task by its name on the command line."""

hyper_representation = HYPER_REPRESENTATION
data_cleaning = DATA_CLEANING
loss_tuning = LOSS_TUNING
few_shot = FEW_SHOT
fair_classification = FAIR_CLASSIFICATION
auroc = AUROC
client_weighting = CLIENT_WEIGHTING

__all__ = [
    "RECIPES",
    "Defaults",
    "Learned",
    "Recipe",
    "Task",
    "auroc",
    "client_weighting",
    "data_cleaning",
    "fair_classification",
    "few_shot",
    "hyper_representation",
    "loss_tuning",
]
