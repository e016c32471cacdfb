"""Rates that change with the round. A rate is a number or one of these."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp


class Schedule(eqx.Module):
    """A rate as a function of the round t = 0, 1, ...; its parameters are numbers, so another value is not recompiled."""

    def __call__(self, t: Any) -> Any:
        """The rate of round t."""
        raise NotImplementedError


class Power(Schedule):
    """scale · (offset + t)^exponent: 1/t decay with exponent −1, MeFBO's growing penalty c̲(t+1)^p with exponent p."""

    scale: Any
    exponent: Any
    offset: Any = 1.0

    def __call__(self, t: Any) -> Any:
        """The rate of round t."""
        dtype = jnp.result_type(self.scale)
        if not jnp.issubdtype(dtype, jnp.floating):  # whole numbers have no negative powers
            dtype = jnp.result_type(float)
        return self.scale * (self.offset + jnp.asarray(t, dtype)) ** self.exponent


class Cosine(Schedule):
    """From ``start`` to ``end`` by half a cosine over ``rounds`` rounds, then constant."""

    start: Any
    end: Any
    rounds: Any

    def __check_init__(self) -> None:
        if isinstance(self.rounds, int | float) and self.rounds <= 0:
            raise ValueError(f"Cosine: rounds must be positive, got {self.rounds!r}")

    def __call__(self, t: Any) -> Any:
        """The rate of round t."""
        part = jnp.clip(jnp.asarray(t, jnp.result_type(self.start)) / self.rounds, 0.0, 1.0)
        return self.end + (self.start - self.end) * 0.5 * (1 + jnp.cos(jnp.pi * part))


def scaled(shape: Schedule, number: Any) -> Schedule:
    """The schedule of this shape whose scale, or value at the start, is the number."""
    if isinstance(shape, Cosine):
        return dataclasses.replace(shape, start=number, end=number * (shape.end / shape.start))
    return dataclasses.replace(shape, scale=number)  # type: ignore[call-arg]


def at(rate: Any, t: Any) -> Any:
    """The value of a rate (a number or a schedule) in round t."""
    return rate(t) if isinstance(rate, Schedule) else rate
