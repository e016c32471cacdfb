"""The search space of an algorithm: what its fields declare, in units that were measured on the problem.

A candidate is a place: one coordinate a knob, the decimal logarithm of its value in units of its scale. 0 is 1/L for a
step of the lower level, and one good step for x.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.rate import Declared, Scale, Scales, declared
from rookery.problem.schedules import Schedule, scaled

Place = Mapping[str, float]
"""A coordinate for each knob."""


@dataclass(frozen=True)
class Knob:
    """One coordinate of the search: where it begins to look, and whether it may leave that range."""

    name: str
    scale: Scale
    low: float
    high: float
    grows: bool


@dataclass(frozen=True)
class Space:
    """What can be searched of one class of algorithms on one problem."""

    kind: type[Algorithm]
    scales: Scales
    knobs: tuple[Knob, ...]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options and rates that are given and not searched."""
    shapes: Mapping[str, Schedule] = dataclasses.field(default_factory=dict)
    """Rates that change over the rounds: what is found is their scale."""

    @classmethod
    def of(
        cls,
        kind: type[Algorithm],
        scales: Scales,
        fixed: Mapping[str, Any] | None = None,
        shapes: Mapping[str, Schedule] | None = None,
    ) -> "Space":
        """The space that the fields of ``kind`` declare, with some of them fixed."""
        knobs: dict[str, Knob] = {}
        for field, each in declared(kind).items():
            if each.scale is not None and field not in (fixed or {}):
                name = each.knob or field
                knobs.setdefault(name, Knob(name, each.scale, *_range(each.scale, scales)))
        return cls(kind, scales, tuple(knobs.values()), dict(fixed or {}), dict(shapes or {}))

    @property
    def learns_x(self) -> bool:
        """Whether the algorithm has a step of x at all."""
        return self.free is not None

    @property
    def free(self) -> Knob | None:
        """The step of x."""
        return next((knob for knob in self.knobs if knob.scale == "free"), None)

    def below(self, ceiling: float) -> "Space":
        """The space with steps of x below this, as many orders of magnitude as before."""
        lower = tuple(
            dataclasses.replace(k, low=min(k.low, ceiling - 3.0), high=ceiling)
            if k is self.free and ceiling < k.high
            else k
            for k in self.knobs
        )
        return dataclasses.replace(self, knobs=lower)

    def algorithm(self, place: Place) -> Algorithm:
        """The algorithm with the rates of a place."""
        return self.kind(**{**self.rates(place), **self.fixed})

    def rates(self, place: Place) -> dict[str, Any]:
        """The rates of a place, by field."""
        found = _Resolved(self, place)
        return {name: found.value(name) for name in declared(self.kind)}

    def frozen(self, place: Place) -> Algorithm:
        """The same place with steps of length 0 for x."""
        return dataclasses.replace(self, scales=dataclasses.replace(self.scales, x=0.0)).algorithm(place)

    def spread(self, count: int, rng: np.random.Generator) -> list[dict[str, float]]:
        """Places spread evenly over the ranges: Halton's sequence, shifted at random; the step of x has its best base.

        Each coordinate by itself is spread as evenly as it can be, and a longer list begins with the shorter one.
        """
        order = sorted(range(len(self.knobs)), key=lambda k: self.knobs[k].scale != "free")
        shifts = rng.uniform(size=len(self.knobs))
        units = np.empty((count, len(self.knobs)))
        for base, column in zip(_PRIMES, order, strict=False):
            units[:, column] = ([_mirrored(number, base) for number in range(1, count + 1)] + shifts[column]) % 1
        lows, highs = np.array([k.low for k in self.knobs]), np.array([k.high for k in self.knobs])
        return [self._place(row) for row in lows + units * (highs - lows)]

    def near(self, place: Place, width: float, rng: np.random.Generator) -> dict[str, float]:
        """A place in the neighbourhood, ``width`` of the ranges away in each coordinate; steps of x may leave theirs."""
        moved = []
        for knob in self.knobs:
            value = place[knob.name] + width * (knob.high - knob.low) * rng.standard_normal()
            moved.append(value if knob.grows else min(max(value, knob.low), knob.high))
        return self._place(moved)

    def edges(self, place: Place, tried: list[Place]) -> dict[str, str]:
        """Of the steps that are searched over orders of magnitude, those at an edge of all that was tried.

        A step of the lower level has its edge where it gets unstable: that is no news.
        """
        found = {}
        for knob in self.knobs:
            values = sorted({round(each[knob.name], 9) for each in tried})
            here = place[knob.name]
            margin = 0.05 * (knob.high - knob.low)
            if knob.grows and knob.high > 0.5 and len(values) > 2:
                if here <= values[0] + margin:
                    found[knob.name] = "smallest"
                elif here >= values[-1] - margin:
                    found[knob.name] = "largest"
        return found

    def ends(self, place: Place, tried: list[Place]) -> dict[str, float]:
        """The coordinates in which a place lies at an end of all that was tried, and how far the next one out would be.

        That a fraction cannot be more than 1 is no end.
        """
        found = {}
        for knob in self.knobs:
            values, here = [each[knob.name] for each in tried], place[knob.name]
            step = 0.1 * (knob.high - knob.low)
            for distance, out in ((here - min(values), -step), (max(values) - here, step)):
                if distance < step / 2 and not (knob.scale == "(0, 1]" and here + out > 0):
                    found[knob.name] = out
        return found

    def beyond(self, place: Place, tried: list[Place]) -> list[dict[str, float]]:
        """Places further out, one for each coordinate in which this one lies at an end."""
        return [{**place, name: place[name] + out} for name, out in self.ends(place, tried).items()]

    def _place(self, values: Any) -> dict[str, float]:
        return {knob.name: float(value) for knob, value in zip(self.knobs, values, strict=True)}


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


def _mirrored(number: int, base: int) -> float:
    """The digits of a number mirrored at the point: 6 = 110 in base 2 becomes 0.011."""
    found, digit = 0.0, 1.0
    while number:
        digit /= base
        number, rest = divmod(number, base)
        found += rest * digit
    return found


def _range(scale: Scale, scales: Scales) -> tuple[float, float, bool]:
    """Where a rate of this scale is looked for first (low, high), and whether the search may leave that."""
    if scale == "free" or (scale == "1/L" and scales.flat_y):
        return -math.log10(max(scales.steps, 10.0)), 1.25, True
    ranges: dict[str, tuple[float, float, bool]] = {
        "1/L": (-1.5, 0.2, True),
        "above 1/L": (0.0, 3.0, False),
        "(0, 1]": (-2.0, 0.0, False),
        "ratio": (-1.0, 1.5, False),
        "penalty": (0.0, 3.0, False),
        "steps": (-3.0, 0.5, False),
        "server": (-0.7, 0.3, True),
    }
    return ranges[scale]


class _Resolved(Mapping[str, Any]):
    """The rates of a place by field, each computed when another asks for it."""

    def __init__(self, space: Space, place: Place):
        self._declared, self._scales, self._place, self._fixed = declared(space.kind), space.scales, place, space.fixed
        self._fields = {field.name: field.default for field in dataclasses.fields(space.kind)} | dict(space.shapes)

    def __getitem__(self, name: str) -> Any:
        """The number; of a schedule its scale."""
        if name in self._fixed:
            return getattr(self._fixed[name], "scale", self._fixed[name])
        each = self._declared[name]
        if each.follows is not None:
            return self[each.follows] if isinstance(each.follows, str) else each.follows(self, self._scales)
        factor = 1.0 if each.times is None else float(each.times(self, self._scales))
        return self._unit(each) * factor * 10 ** self._place[each.knob or name]

    def _unit(self, each: Declared) -> float:
        scales = self._scales
        units = {"free": scales.x, "1/L": scales.y, "above 1/L": scales.y, "steps": scales.steps}
        return units.get(each.scale or "", 1.0)

    def value(self, name: str) -> Any:
        """What the field gets: a schedule keeps its shape."""
        default = self._fields[name]
        return scaled(default, self[name]) if isinstance(default, Schedule) else self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)
