"""How long whoever asks for a part of a message waits for it, on both sides.

A part may be asked for before it has arrived at the SuperLink. Flower would then wait for a second.
"""

from typing import Any

from flwr.supercore.inflatable import inflatable_utils

_functions: tuple[Any, ...] = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
for _pull in _functions:
    _pull.__kwdefaults__["initial_backoff"] = 0.02
    _pull.__kwdefaults__["max_time"] = 20.0

__all__ = ["inflatable_utils"]
