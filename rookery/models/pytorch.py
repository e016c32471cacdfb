"""PyTorch modules as pairs (states, apply) of JAX, by torchax."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
from jax import Array

_OWN_TABLES = ("_parameters", "_buffers", "_modules")


class _Torch:
    """A PyTorch module's forward as a function of arrays; equal to that of a module with the same parts."""

    def __init__(self, module: Any, function: Callable[..., Any]):
        self.module, self.function = module, function

    def __call__(self, states: dict[str, Array], batch: Array) -> Any:
        return self.function(states, (batch,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Torch) and _alike(self.module, other.module)

    def __hash__(self) -> int:
        return hash(type(self.module))


def from_torch(module: Any) -> tuple[dict[str, Array], Callable[[dict[str, Array], Array], Any]]:
    """(parameters and buffers by name, function of them and of a batch)."""
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
    except ImportError:
        raise ValueError("a PyTorch model needs torchax: pip install 'rookery[torch]'") from None
    states, function = torchax.extract_jax(module)
    return states, _Torch(module, function)


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
    """Whether two modules differ in nothing but the numbers of their parameters."""
    torch: Any = import_module("torch")
    if one is other:
        return True
    if type(one) is not type(other) or vars(one).keys() != vars(other).keys():
        return False
    plain = [name for name in vars(one) if name not in _OWN_TABLES]
    if any(vars(one)[name] != vars(other)[name] for name in plain):
        return False
    tables = [(vars(one)[name], vars(other)[name]) for name in _OWN_TABLES]
    if any(a.keys() != b.keys() for a, b in tables):
        return False
    (_, _), (fixed, its_fixed), (parts, its_parts) = tables
    return all(torch.equal(fixed[name], its_fixed[name]) for name in fixed) and all(
        _alike(parts[name], its_parts[name]) for name in parts
    )
