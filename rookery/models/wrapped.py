"""Networks of other makes as Equinox modules that map a batch to a batch: Equinox for one example, pairs, Flax, Haiku."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.models.fixed import Fixed
from rookery.models.pytorch import from_torch

SIZES = (2, 3)
"""Of batches that a network is tried on. With one size alone, a network for one example might fit by chance."""


class Unfit(ValueError):
    """What is wrong with a model, in a line that needs no more words."""


class Wrapped(eqx.Module):
    """A network of another make. Its float arrays are the leaves; all else never moves."""

    params: Any
    fixed: Fixed = eqx.field(static=True)

    def __init__(self, tree: Any, apply: Callable[[Any, Array], Any]):
        """``apply(tree, batch)`` gives the outputs."""
        tree = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)
        self.params, rest = eqx.partition(tree, eqx.is_inexact_array)
        self.fixed = Fixed((rest, apply))

    @property
    def tree(self) -> Any:
        """What was wrapped, with the present numbers: the Equinox module, or the parameters of a pair."""
        return eqx.combine(self.params, self.fixed.value[0])

    @property
    def apply(self) -> Callable[[Any, Array], Any]:
        """From tree and batch to outputs."""
        found: Callable[[Any, Array], Any] = self.fixed.value[1]
        return found

    def __call__(self, batch: Array) -> Array:
        """The outputs of a batch."""
        found: Array = self.apply(self.tree, batch)
        return found


def is_network(thing: Any) -> bool:
    """Whether it is a network of a known make, and no function that makes one."""
    foreign = any(_is_a(thing, package, "Module") for package in ("flax.linen", "flax.nnx", "torch.nn"))
    return foreign or isinstance(thing, eqx.Module | tuple | list)


def wrap(thing: Any, shape: tuple[int, ...], outputs: int, key: Array) -> eqx.Module:
    """A network as an Equinox module from (examples, *shape) to (examples, outputs), which is checked."""
    if isinstance(thing, eqx.Module):
        return _of_equinox(thing, shape, outputs)
    model = _wrap_foreign(thing, jnp.zeros((SIZES[0], *shape)), key)
    if not jax.tree.leaves(model.params):
        raise Unfit("has no array of floats, there is nothing to learn")
    wrong = misfit(model, shape, outputs)
    if wrong:
        raise Unfit(wrong)
    return model


def misfit(model: eqx.Module, shape: tuple[int, ...], outputs: int) -> str:
    """What is wrong with the outputs of a network on batches; nothing if they are as they should be."""
    for size in SIZES:
        found = _outputs(model, (size, *shape), precision(model))
        wrong = _not_floats(found, (size, outputs))
        if wrong:
            return f"{wrong} for a batch {(size, *shape)}"
    return ""


def precision(model: Any) -> Any:
    """Of a network's numbers, which its inputs should have."""
    return jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))[0].dtype


def _outputs(model: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.eval_shape(lambda batch: model(batch), jax.ShapeDtypeStruct(shape, dtype))


def _not_floats(found: Any, wanted: tuple[int, ...]) -> str:
    if not hasattr(found, "shape") or not hasattr(found, "dtype"):
        return f"gives a {type(found).__name__}, wanted one array of floats {wanted}"
    if found.shape != wanted or not jnp.issubdtype(found.dtype, jnp.floating):
        return f"gives {found.dtype}{found.shape}, wanted floats {wanted}"
    return ""


def _of_equinox(module: Any, shape: tuple[int, ...], outputs: int) -> eqx.Module:
    """As it is, or wrapped where it maps one example or has leaves that must not move."""
    if not callable(module):
        raise Unfit(f"must be callable, and a {type(module).__name__} is not")
    plain = Wrapped(module, _whole)
    if not jax.tree.leaves(plain.params):
        raise Unfit("has no array of floats, there is nothing to learn")
    batchwise = _trial(lambda: misfit(plain, shape, outputs))
    if not batchwise:
        own: eqx.Module = module
        return own if all(map(eqx.is_inexact_array, jax.tree.leaves(module))) else plain
    single = _trial(lambda: _not_floats(_outputs(module, shape, precision(module)), (outputs,)))
    if single:
        tried = [batchwise, f"{single} for one example {shape}"]
        raise Unfit(next((each for each in tried if each.startswith("gives")), "; ".join(reversed(tried))))
    return Wrapped(module, _one_by_one)


def _trial(judge: Callable[[], str]) -> str:
    """A judgement; what goes wrong on the way is one too."""
    try:
        return judge()
    except Exception as error:
        return f"fails with {type(error).__name__}: {' '.join(str(error).split())}"


def _whole(module: Any, batch: Array) -> Any:
    return module(batch)


def _one_by_one(module: Any, batch: Array) -> Any:
    return jax.vmap(module)(batch)


def _wrap_foreign(thing: Any, batch: Array, key: Array) -> Wrapped:
    if _is_a(thing, "flax.linen", "Module"):
        return _linen(thing, batch, key)
    if _is_a(thing, "flax.nnx", "Module"):
        return _nnx(thing)
    if _is_a(thing, "torch.nn", "Module"):
        return Wrapped(*from_torch(thing))
    if _is_a(thing, "haiku", "TransformedWithState"):
        _refuse_state(["haiku.transform_with_state"])
    if isinstance(thing, tuple | list) and len(thing) == 2 and all(map(callable, thing)):
        return _pair(thing[0], thing[1], batch, key)
    raise Unfit(
        f"must be an Equinox, Flax or PyTorch module or a pair (init, apply) of functions, got a {type(thing).__name__}"
    )


def _is_a(thing: Any, module: str, kind: str) -> bool:
    """Whether it is of a class of a package that need not be there: then nobody can have made one."""
    found = getattr(sys.modules.get(module), kind, None)
    return found is not None and isinstance(thing, found)


def _pair(init: Callable[..., Any], apply: Callable[..., Any], batch: Array, key: Array) -> Wrapped:
    owner = getattr(apply, "__self__", None)
    if _is_a(owner, "flax.linen", "Module"):
        return _linen(owner, batch, key)
    return Wrapped(init(key, batch), partial(_without_rng, apply) if _asks_for_rng(apply) else apply)


def _asks_for_rng(apply: Callable[..., Any]) -> bool:
    """Whether it is apply(params, rng, batch), as Haiku's is."""
    ordered = [
        each
        for each in inspect.signature(apply).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    needed = sum(each.default is each.empty for each in ordered)
    return needed == 3 or (len(ordered) > 1 and ordered[1].name == "rng")


def _without_rng(apply: Callable[..., Any], params: Any, batch: Array) -> Any:
    return apply(params, None, batch)


def _linen(module: Any, batch: Array, key: Array) -> Wrapped:
    variables = module.init(key, batch)
    _refuse_state([name for name in variables if name != "params"])
    return Wrapped(variables, partial(_apply_linen, module))


def _apply_linen(module: Any, variables: Any, batch: Array) -> Any:
    return module.apply(variables, batch)


def _nnx(module: Any) -> Wrapped:
    from flax import nnx

    graph, params, rest = cast(tuple[Any, Any, Any], nnx.split(module, nnx.Param, ...))
    _refuse_state(sorted({type(each).__name__ for _, each in nnx.to_flat_state(rest)}))
    return Wrapped(params, partial(_apply_nnx, graph))


def _apply_nnx(graph: Any, params: Any, batch: Array) -> Any:
    from flax import nnx

    return nnx.merge(graph, params)(batch)


def _refuse_state(found: list[str]) -> None:
    if found:
        raise Unfit(
            f"keeps state besides its parameters ({', '.join(found)}): a batch's statistics would tie examples together; "
            "use LayerNorm or GroupNorm, and no Dropout"
        )
