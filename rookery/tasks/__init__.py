"""The learning problems people come for: data to clients, losses, model, metrics."""

from rookery.tasks.auroc import AUROC, auroc
from rookery.tasks.client_weighting import CLIENT_WEIGHTING, client_weighting
from rookery.tasks.data_cleaning import DATA_CLEANING, DATA_CLEANING_ONE_CLASS, data_cleaning
from rookery.tasks.fair_classification import FAIR_CLASSIFICATION, fair_classification
from rookery.tasks.few_shot import FEW_SHOT, few_shot
from rookery.tasks.hyper_representation import HYPER_REPRESENTATION, hyper_representation
from rookery.tasks.loss_tuning import LOSS_TUNING, loss_tuning
from rookery.tasks.quadratic import QUADRATIC_BILEVEL, QUADRATIC_MINIMAX, quadratic_bilevel, quadratic_minimax
from rookery.tasks.task import Defaults, Recipe, Task
from rookery.tasks.toy_weighting import TOY_WEIGHTING, toy_weighting

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

__all__ = [
    "RECIPES",
    "Defaults",
    "Recipe",
    "Task",
    "auroc",
    "client_weighting",
    "data_cleaning",
    "fair_classification",
    "few_shot",
    "hyper_representation",
    "loss_tuning",
    "quadratic_bilevel",
    "quadratic_minimax",
    "toy_weighting",
]
