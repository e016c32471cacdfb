"""A type checker for the tests: the shapes and dtypes of arrays, and nothing else."""

import typing

import beartype
from jaxtyping import AbstractArray


def only_shapes(function):
    """Checks what is annotated with jaxtyping's types.

    All else is left to mypy, which reads it as Python does (an int is a float) and does not see the wrong arguments that
    tests of error messages give.
    """
    hints = getattr(function, "__annotations__", {})
    function.__annotations__ = {name: hint if _of_arrays(hint) else typing.Any for name, hint in hints.items()}
    return beartype.beartype(function)


def _of_arrays(hint) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(_of_arrays, typing.get_args(hint)))
