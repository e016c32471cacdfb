"""The learning problems people come for: data to clients, losses, model, metrics."""

from rookery.tasks.hyper_representation import Task, hyper_representation

__all__ = ["Task", "hyper_representation"]
