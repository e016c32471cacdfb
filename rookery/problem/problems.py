"""What is solved: bilevel, minimax and client-weighting problems over pytrees."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.problem.layout import Layout
from rookery.problem.sets import Set, Simplex, WholeSpace
from rookery.typing import X, Y

Loss = Callable[..., Any]


class Problem(eqx.Module):
    """What the three problem classes share. Not used directly."""

    kind: ClassVar[str]
    x_set: Set
    y_set: Set

    def upper_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """The upper objective f_i on a batch."""
        raise NotImplementedError

    def lower_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """The lower objective g_i on a batch."""
        raise NotImplementedError


class Bilevel(Problem):
    r"""min over x of Σ p_i f_i(x, y*(x)), where y*(x) minimises Σ p_i g_i(x, ·).

    With ``lower_level="local"`` every client has a lower level of its own, y_i*(x) = argmin g_i(x, ·).

    A loss is ``loss(x, y, batch)`` and returns a scalar: a mean over the batch axis, plus terms free of the batch. It
    may name two more parameters: ``key`` (its own randomness, such as dropout) and ``client`` (the client's number).
    The upper loss sees the clients' ``upper`` data, the lower loss their ``lower`` data.
    """

    kind: ClassVar[str] = "bilevel"
    upper: Loss
    lower: Loss
    lower_level: Literal["global", "local"] = eqx.field(static=True)

    def __init__(
        self,
        upper: Loss,
        lower: Loss,
        x_set: Set | None = None,
        y_set: Set | None = None,
        lower_level: Literal["global", "local"] = "global",
    ):
        if lower_level not in ("global", "local"):
            raise ValueError(f"lower_level must be 'global' or 'local', got {lower_level!r}")
        self.upper = _loss(upper, "upper")
        self.lower = _loss(lower, "lower")
        self.x_set = _set(x_set, "x_set")
        self.y_set = _set(y_set, "y_set")
        self.lower_level = lower_level

    def upper_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """f_i(x, y; batch)."""
        return call_loss(self.upper, (x, y, batch), key, client)

    def lower_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """g_i(x, y; batch)."""
        return call_loss(self.lower, (x, y, batch), key, client)


class Minimax(Problem):
    """min over x, max over y of Σ p_i f_i(x, y). The objective sees the clients' ``upper`` data."""

    kind: ClassVar[str] = "minimax"
    objective: Loss

    def __init__(self, objective: Loss, x_set: Set | None = None, y_set: Set | None = None):
        self.objective = _loss(objective, "objective")
        self.x_set = _set(x_set, "x_set")
        self.y_set = _set(y_set, "y_set")

    def upper_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """f_i(x, y; batch)."""
        return call_loss(self.objective, (x, y, batch), key, client)

    def lower_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """−f_i(x, y; batch): what y minimises."""
        return -jnp.asarray(self.upper_loss(x, y, batch, key, client))

    def as_bilevel(self) -> Bilevel:
        """The same problem with g = −f, for the bilevel algorithms. Clients must hold one set of data, not two."""
        return Bilevel(_Upper(self), _Lower(self), self.x_set, self.y_set)


class ClientWeighting(Problem):
    """min over x in the simplex of f_0(w*(x)), where w*(x) minimises Σ x_i f_i(w).

    x holds one weight a client, w is the model. ``loss(w, batch)`` is the loss of a client on its ``lower`` data;
    f_0 is the same loss (or ``validation``) on the data the server holds (``Clients(server=...)``). Clients have no other
    weights than x: ``Clients(weights=...)`` is refused.
    """

    kind: ClassVar[str] = "weighting"
    loss: Loss
    validation: Loss

    def __init__(
        self, loss: Loss, validation: Loss | None = None, weights_set: Set | None = None, model_set: Set | None = None
    ):
        self.loss = _loss(loss, "loss")
        self.validation = _loss(loss if validation is None else validation, "validation")
        self.x_set = Simplex() if weights_set is None else _set(weights_set, "weights_set")
        self.y_set = _set(model_set, "model_set")

    def upper_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """f_0(w; batch)."""
        return call_loss(self.validation, (y, batch), key, client)

    def lower_loss(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        """f_i(w; batch), without its weight."""
        return call_loss(self.loss, (y, batch), key, client)

    def as_bilevel(self) -> Bilevel:
        """The same problem as a bilevel one: f_i = f_0 and g_i = n·x_i·f_i, for clients of equal weights p_i = 1/n.

        Bilevel algorithms ask every client for ∇f_0: give them ``clients.share_server()``.
        """
        return Bilevel(_Upper(self), _Weighted(self), self.x_set, self.y_set)


class _Derived(eqx.Module):
    """A loss made from another problem's."""

    problem: Problem


class _Upper(_Derived):
    def __call__(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        return self.problem.upper_loss(x, y, batch, key, client)


class _Lower(_Derived):
    def __call__(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        return self.problem.lower_loss(x, y, batch, key, client)


class _Weighted(_Derived):
    def __call__(self, x: Any, y: Any, batch: Any, key: Any, client: Any) -> Any:
        return x.shape[0] * x[client] * self.problem.lower_loss(x, y, batch, key, client)


def call_loss(loss: Loss, arguments: tuple[Any, ...], key: Any, client: Any) -> Any:
    """Calls ``loss`` with a key and the client's number if its signature names them. ``key`` is made when it is needed."""
    names = inspect.signature(loss).parameters
    extra = {}
    if "key" in names:
        extra["key"] = key if isinstance(loss, _Derived) else key()  # a derived loss hands the maker on
    if "client" in names:
        extra["client"] = client
    return loss(*arguments, **extra)


def _loss(loss: Loss, name: str) -> Loss:
    wanted = ("w", "batch") if name in ("loss", "validation") else ("x", "y", "batch")
    if not callable(loss):
        raise TypeError(f"{name} must be a function of ({', '.join(wanted)}), got {loss!r}")
    if not _takes(loss, len(wanted)):
        raise TypeError(
            f"{name} must be a function of ({', '.join(wanted)}), which may also name key (its own randomness) and client "
            f"(the client's number); got {getattr(loss, '__name__', type(loss).__name__)}{inspect.signature(loss)}. "
            "Bind what else it needs with functools.partial"
        )
    return loss


def _takes(loss: Loss, arguments: int) -> bool:
    """Whether the loss can be called with so many arguments, beside those it gets by name."""
    signature = inspect.signature(loss)
    named = {name: None for name in ("key", "client") if name in signature.parameters}
    try:
        signature.bind(*[None] * arguments, **named)
    except TypeError:
        return False
    return True


def _set(chosen: Set | None, name: str) -> Set:
    if chosen is None:
        return WholeSpace()
    if not isinstance(chosen, Set):
        raise TypeError(f"{name} must be a set such as rk.Box(0, 1), got {chosen!r}")
    return chosen


@dataclass(frozen=True)
class Flat:
    """A problem over vectors: what algorithms and oracles see."""

    problem: Problem
    x: Layout
    y: Layout

    def upper(self, x: X, y: Y, batch: Any, key: Any, client: Any) -> Array:
        """f_i at vectors x and y."""
        return jnp.asarray(self.problem.upper_loss(self.x.unravel(x), self.y.unravel(y), batch, key, client))

    def lower(self, x: X, y: Y, batch: Any, key: Any, client: Any) -> Array:
        """g_i at vectors x and y."""
        return jnp.asarray(self.problem.lower_loss(self.x.unravel(x), self.y.unravel(y), batch, key, client))

    def project_x(self, x: X) -> X:
        """Projection on X."""
        return _project(self.problem.x_set, self.x, x)

    def project_y(self, y: Y) -> Y:
        """Projection on Y."""
        return _project(self.problem.y_set, self.y, y)


def _project(chosen: Set, layout: Layout, vector: Array) -> Array:
    if isinstance(chosen, WholeSpace):
        return vector
    return layout.ravel(chosen.project(layout.unravel(vector)))


def _flat_flatten(flat: Flat) -> tuple[tuple[Problem], tuple[Layout, Layout]]:
    return (flat.problem,), (flat.x, flat.y)


jax.tree_util.register_pytree_node(Flat, _flat_flatten, lambda aux, children: Flat(children[0], *aux))
