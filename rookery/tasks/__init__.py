"""The learning problems people come for: data to clients, losses, model, metrics."""

from rookery.tasks.hyper_representation import HYPER_REPRESENTATION, hyper_representation
from rookery.tasks.task import Defaults, Recipe, Task

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (HYPER_REPRESENTATION,)}
"""Every task by its name on the command line."""

__all__ = ["RECIPES", "Defaults", "Recipe", "Task", "hyper_representation"]
