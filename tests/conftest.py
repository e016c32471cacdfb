"""Nearly all of the tests' time is compilation: it is made as cheap as it can be, and each file stays in one process."""

import os

import jaxlib

if jaxlib.__version__.startswith("0.10."):  # XLA stops at a flag that it does not know
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

import jax

jax.config.update("jax_enable_x64", True)  # exactness is claimed in float64
jax.config.update("jax_disable_most_optimizations", True)
