"""Compiled programs that are kept on disk."""

import os
import platform

import jax

from rookery.datasets.files import DataError, user_cache


def keep_compiled() -> None:
    """Keeps compiled programs on disk, so that a process that needs the same ones need not compile them again.

    They are in the user's cache, in a folder for each machine, or where ``JAX_COMPILATION_CACHE_DIR`` says.
    """
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        try:
            folder = user_cache() / "compiled" / platform.node()
        except DataError:  # a user without a home: every start compiles again
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
