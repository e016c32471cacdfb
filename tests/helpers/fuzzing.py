"""How many examples a fuzz test tries: a quick number in `make test`, the long one with `make fuzz` (ROOKERY_FUZZ=long)."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

LONG = os.environ.get("ROOKERY_FUZZ") == "long"


def examples(quick: int, long: int) -> Callable[[Any], Any]:
    """The settings of a Hypothesis test; the same examples each time, unless it is the long version."""
    number = long if LONG else quick
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=not LONG,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
