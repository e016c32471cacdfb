"""What an algorithm says about its rates: of each, in one line, on what scale it lives.

From that, and from a few numbers measured on the problem at hand (:class:`Scales`), ``rookery.tuning`` makes a search
space, so that no algorithm and no problem brings numbers to search between.

    eta_x: Any = rate(0.1, "free")                        a step of x: many orders of magnitude below and above the
                                                          length of one good step of x (``Scales.x``)
    eta_y: Any = rate(0.1, "1/L")                         a step of the lower level: at or below 1/L, L its curvature
    nu: Any = rate(2.0, "above 1/L")                      a proximal parameter: at or above 1/L
    beta: Any = rate(0.5, "(0, 1]")                       a fraction, a momentum
    c: Any = rate(2.7, "penalty")                         a penalty: at or above 1, the larger the more exact and slow
    epsilon: Any = rate(0.1, "ratio")                     a ratio of two losses or sizes
    offset: Any = rate(1.0, "steps")                      a number of steps, up to all of a run
    gamma: Any = rate(1.0, "server")                      the server's step on means of iterates: 1 takes the mean
    gamma_x: Any = rate(0.2, follows="eta_x")             the same value as another, or a function of the others

Fields with the same ``knob`` move together. Counts and options are static fields: another value is another program, and
they are not searched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx

Scale = Literal["free", "1/L", "above 1/L", "(0, 1]", "ratio", "penalty", "steps", "server"]
Rates = Mapping[str, Any]


@dataclass(frozen=True)
class Scales:
    """What was measured on a problem, and the lengths of a run: what the scales of rates are multiples of."""

    x: float
    """The length of the best single step of x along the hypergradient at the start."""
    y: float
    """1/L, L the largest curvature of the lower level."""
    steps: float
    """Local steps of a whole run."""
    tau: float
    """Local steps of a round."""
    size_x: float = 1.0
    """‖∇Φ‖ at the start."""
    size_y: float = 1.0
    """‖∇_y G‖ at the start."""
    size_z: float = 1.0
    """‖∇_y F‖ at the start."""
    rms_x: float = 1.0
    """The root mean square of the entries of ∇Φ at the start."""
    flat_y: bool = False
    """Whether the lower level has next to no curvature in y: then steps of y are as free as those of x."""


@dataclass(frozen=True)
class Declared:
    """The scale of one rate: what its field says."""

    scale: Scale | None
    knob: str | None
    times: Callable[[Rates, Scales], Any] | None
    follows: Callable[[Rates, Scales], Any] | str | None


def rate(
    default: Any,
    scale: Scale | None = None,
    *,
    knob: str | None = None,
    times: Callable[[Rates, Scales], Any] | None = None,
    follows: Callable[[Rates, Scales], Any] | str | None = None,
) -> Any:
    """A field with a default and a scale.

    ``times`` is a factor of the scale that depends on other rates; ``follows`` is another rate, or a function that gives the
    whole value from the others. Both see the rates that have neither, and ``follows`` those with ``times`` as well.
    """
    return eqx.field(default=default, metadata={"rate": Declared(scale, knob, times, follows)})


def declared(kind: type) -> dict[str, Declared]:
    """The scales of the rates of a class of algorithms, by field."""
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: field.metadata["rate"] for name, field in fields.items() if "rate" in field.metadata}
