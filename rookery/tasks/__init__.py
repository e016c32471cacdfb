"""The learning problems people come for: data to clients, losses, model, metrics. One module a task."""

from rookery.tasks.auroc import AUROC
from rookery.tasks.client_weighting import CLIENT_WEIGHTING
from rookery.tasks.data_cleaning import DATA_CLEANING, DATA_CLEANING_ONE_CLASS
from rookery.tasks.fair_classification import FAIR_CLASSIFICATION
from rookery.tasks.few_shot import FEW_SHOT
from rookery.tasks.hyper_representation import HYPER_REPRESENTATION
from rookery.tasks.loss_tuning import LOSS_TUNING
from rookery.tasks.quadratic import QUADRATIC_BILEVEL, QUADRATIC_MINIMAX
from rookery.tasks.task import Defaults, Recipe, Task
from rookery.tasks.toy_weighting import TOY_WEIGHTING

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

__all__ = ["RECIPES", "Defaults", "Recipe", "Task"]
