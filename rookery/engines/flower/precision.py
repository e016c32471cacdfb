"""Whether JAX computes in 32 or in 64 bits here: all parts of a federation must agree."""

from typing import Any

import jax

_config: Any = jax.config


def x64_enabled() -> bool:
    """Whether JAX computes in 64 bits here."""
    return bool(_config.read("jax_enable_x64"))


def enable_x64(wanted: bool) -> None:
    """Makes JAX compute in 64 bits, or in 32."""
    _config.update("jax_enable_x64", wanted)
