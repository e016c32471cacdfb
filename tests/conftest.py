import jax

jax.config.update("jax_enable_x64", True)  # exactness is claimed in float64
jax.config.update("jax_disable_most_optimizations", True)  # nearly all of the tests' time is compilation
