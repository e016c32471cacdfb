"""The types that cross rooms, each named once. Shapes are jaxtyping's; the tests check them at run time.

In a shape ``dx`` and ``dy`` are the numbers of reals in x and y, ``n`` is the number of clients and ``slots`` the number of
places for the participants of a draw.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jax import Array
from jaxtyping import Bool, Float, Int

Tree = Any
"""A pytree: arrays in any nesting of dictionaries, lists, tuples and Equinox modules."""
X = Float[Array, " dx"]
"""The upper variable as a vector."""
Y = Float[Array, " dy"]
"""The lower variable as a vector."""
Vectors = dict[str, Array]
"""Vectors by the names that they have in the paper."""
Ids = Int[Array, " slots"]
"""The numbers of a draw's participants; a slot that is not used repeats one of them."""
Mask = Bool[Array, " slots"]
"""Which slots are used."""
ClientWeights = Float[Array, " n"]
"""The p_i."""
Scalar = Float[Array, ""]
"""A number that a traced function returns."""
Weighting = str | Callable[[Tree, Array], Array] | Mapping[str, "Weighting"]
"""How uploads become what the server receives; :class:`rookery.Exchange` has the meanings."""
BatchSize = int | None | tuple[int | None, int | None]
"""Of minibatches: one number, or (lower, upper); None takes whole sets."""
Metrics = Callable[[Any, Any], Mapping[str, Any]]
"""``evaluate(x, y)``: scalars by name."""
Axes = tuple[int | None, ...]
"""For each leaf of a tree, whether it has an axis of lanes (0) or is the same for all lanes (None)."""
