"""The types that cross rooms, each named once."""

from collections.abc import Callable, Mapping
from typing import Any

from jax import Array

Tree = Any

"""A pytree: arrays in any nesting of dictionaries, lists, tuples and Equinox modules."""
Weighting = str | Callable[[Tree, Array], Array] | Mapping[str, "Weighting"]
"""How uploads become what the server receives; :class:`rookery.Exchange` has the meanings."""
BatchSize = int | None | tuple[int | None, int | None]
"""Of minibatches: one number, or (lower, upper); None takes whole sets."""
Metrics = Callable[[Any, Any], Mapping[str, Any]]
"""``evaluate(x, y)``: scalars by name."""
Axes = tuple[int | None, ...]
"""For each leaf of a tree, whether it has an axis of lanes (0) or is the same for all lanes (None)."""
