"""Checks of an algorithm's rates and options, each in one line where they are declared."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.core import Tracer

from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.schedules import Schedule


def require(ok: Any, owner: object, name: str, value: Any, accepted: str) -> None:
    """Raises ``ValueError`` naming the hyperparameter, its value and what is accepted."""
    if not ok:
        raise ValueError(f"{type(owner).__name__}: {name} must be {accepted}, got {value!r}")


def known(value: Any) -> np.ndarray[Any, Any] | None:
    """The value of a hyperparameter as an array (not a number if it is none), or None if it is traced or a schedule."""
    if isinstance(value, Tracer | Schedule):
        return None
    array = np.asarray(value)
    number = np.issubdtype(array.dtype, np.number) and not isinstance(value, list | tuple)
    return array if number else np.asarray(np.nan)


def check_rates(owner: object, *names: str) -> None:
    """Rates are finite numbers, not negative."""
    for name in names:
        value = getattr(owner, name)
        array = known(value)
        if array is not None:
            number = np.issubdtype(array.dtype, np.number)
            require(number and np.isfinite(array).all() and (array >= 0).all(), owner, name, value, "a number >= 0")


def check_constant(owner: object, *names: str) -> None:
    """Not a schedule."""
    for name in names:
        value = getattr(owner, name)
        require(not isinstance(value, Schedule), owner, name, value, "a number, not a schedule")


def check_positive(owner: object, *names: str, schedule: bool = False) -> None:
    """Positive numbers, infinity included; no schedules unless they are allowed."""
    for name in names:
        value = getattr(owner, name)
        if not schedule:
            check_constant(owner, name)
        array = known(value)
        if array is not None:
            require(np.issubdtype(array.dtype, np.number) and (array > 0).all(), owner, name, value, "positive")


def check_fraction(owner: object, *names: str, zero: bool = False, schedule: bool = False) -> None:
    """Momentum weights are in (0, 1] (with ``zero``: in [0, 1]); no schedules unless they are allowed."""
    for name in names:
        value = getattr(owner, name)
        if not schedule:
            check_constant(owner, name)
        array = known(value)
        if array is not None:
            above = (array >= 0).all() if zero else (array > 0).all()
            require(above and (array <= 1).all(), owner, name, value, "in [0, 1]" if zero else "in (0, 1]")


def check_counts(owner: object, *names: str, least: int = 1) -> None:
    """Static integers."""
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value >= least, owner, name, value, f"an integer >= {least}")


def check_optional(check: Callable[..., None], owner: object, *names: str) -> None:
    """What was given meets the check; None is none."""
    check(owner, *(name for name in names if getattr(owner, name) is not None))


def check_momentum(owner: Any, *names: str) -> None:
    """c_v δ_1² <= 1, δ_1 = δ/(u + 1)^{1/3} the largest δ_s."""
    check_rates(owner, "offset", *names)
    check_positive(owner, "delta")
    check_constant(owner, "offset", *names)
    delta, offset = known(owner.delta), known(owner.offset)
    for name in names:
        c = known(getattr(owner, name))
        if c is not None and delta is not None and offset is not None:
            beta = np.max(c * (delta / (offset + 1) ** (1 / 3)) ** 2)
            require(beta <= 1 + 1e-6, owner, f"{name}·δ_1²", float(beta), "at most 1 (δ_1 = delta/(offset+1)^(1/3))")


def check_forgets(owner: object, whole_sets: bool, *names: str) -> None:
    """A momentum constant of 0 never forgets the noise of its batches: it is for whole sets only."""
    for name in names:
        value = known(getattr(owner, name))
        if value is not None and not whole_sets:
            require((value > 0).all(), owner, name, getattr(owner, name), "positive unless batch_size is None")


def check_equal_steps(owner: object, steps: Steps) -> None:
    """All clients make the same number of local steps."""
    require(steps.fixed, owner, "local_steps", steps, "one number: its step counter is the same for all clients")


def check_one_step(owner: object, steps: Steps) -> None:
    """Clients make one local step."""
    require(steps.high == 1, owner, "local_steps", steps.high, "1")


def check_equal_weights(owner: object, clients: Clients) -> None:
    """Client weighting has weights x of its own: p_i that were given would be ignored."""
    p = np.asarray(clients.weights)
    if not np.allclose(p, 1 / p.size, rtol=1e-4, atol=0):
        raise ValueError(
            f"weights: {type(owner).__name__} weights clients by x, which starts at x0, and would ignore "
            f"Clients(weights=...), got weights from {p.min():g} to {p.max():g}; leave weights out"
        )
