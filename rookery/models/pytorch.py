"""PyTorch modules as pairs (parameters, apply) of JAX, by torchax."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
from jax import Array

from rookery.models.fixed import Fixed

Parameters = dict[str, Array]

_TABLES = ("_parameters", "_buffers", "_modules")
"""Where a PyTorch module has its parts."""


class _Forward:
    """A module's forward as a function of its parameters; equal to that of a module with the same parts."""

    def __init__(self, module: Any, function: Callable[..., Any], frozen: Parameters):
        self.module, self.function, self.frozen = module, function, frozen

    def __call__(self, params: Parameters, batch: Array) -> Any:
        return self.function({**self.frozen, **params}, (batch,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Forward) and _alike(self.module, other.module)

    def __hash__(self) -> int:
        return hash(type(self.module))


def from_torch(module: Any) -> tuple[Parameters, Callable[[Parameters, Array], Any]]:
    """(parameters by name, function of them and of a batch). What needs no gradient in PyTorch does not move."""
    for name, part in module.named_modules():
        kind = type(part).__name__
        if "BatchNorm" in kind:
            raise ValueError(
                f"{name} is {kind}: a batch's statistics tie examples together; use LayerNorm or GroupNorm"
            )
        if "Dropout" in kind and part.training and getattr(part, "p", 1) > 0:
            raise ValueError(f"{name} is {kind}: leave it out, or call the model's .eval()")
    try:
        torchax: Any = import_module("torchax")
    except (ImportError, AttributeError) as error:  # the latter is that of a version that PyTorch has outgrown
        raise ValueError(f"a PyTorch model needs torchax ({error}): pip install 'rookery[torch]'") from None
    states, function = torchax.extract_jax(module)
    moving = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    frozen = {name: state for name, state in states.items() if name not in moving}
    params = {name: state for name, state in states.items() if name in moving}
    return params, _Forward(module, function, frozen)


@contextmanager
def torch_seeded(key: Array) -> Iterator[None]:
    """PyTorch's random numbers come from the key, where PyTorch is in use; afterwards they go on as if nothing had been."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(jax.random.bits(key, (), "uint32")))
        yield


def _alike(one: Any, other: Any) -> bool:
    """Whether two modules differ in nothing but the numbers of parameters that move."""
    if one is other:
        return True
    if type(one) is not type(other) or any(vars(one)[table].keys() != vars(other)[table].keys() for table in _TABLES):
        return False
    return (
        Fixed(_plain(one)) == Fixed(_plain(other))
        and all(_same_numbers(a, b) for a, b in _pairs(one, other, "_buffers"))
        and all(_same_numbers(a, b) for a, b in _pairs(one, other, "_parameters") if not _moves(a) or not _moves(b))
        and all(_alike(a, b) for a, b in _pairs(one, other, "_modules"))
    )


def _plain(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _TABLES}


def _pairs(one: Any, other: Any, table: str) -> Iterator[tuple[Any, Any]]:
    return ((each, vars(other)[table][name]) for name, each in vars(one)[table].items())


def _moves(parameter: Any) -> bool:
    return parameter is not None and bool(parameter.requires_grad)


def _same_numbers(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one.shape == other.shape and one.dtype == other.dtype and (one == other).all())
