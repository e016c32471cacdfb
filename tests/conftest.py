"""Nearly all of the tests' time is compilation: it is made as cheap as it can be, and each file stays in one process.

What ships is compiled with XLA's own optimizations: with ROOKERY_TESTS_OPTIMIZED=1 the tests are as well, and
`make test-optimized` runs those marked ``optimized``. Marks stand at the tests (see tests/README.md).
"""

import os
import signal

import jaxlib
import jaxtyping
import pytest

import tests.helpers.shapes  # noqa: F401  (the import hook below names it)

if not os.environ.get("ROOKERY_TESTS_OPTIMIZED") and jaxlib.__version__.startswith(
    "0.10."
):  # else XLA stops at the flag
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

import jax

CHECKED = [
    "rookery.problem.measures",
    "rookery.problem.oracles",
    "rookery.problem.participation",
    "rookery.problem.problems",
    "rookery.aggregation",
    "rookery.algorithm",
    "rookery.algorithms",
]
"""Whose functions check the shapes of arrays, given and returned, while tests run. Not what warns: a warning points to the
line of the user's that is nearest, and would find that of the checker."""

jaxtyping.install_import_hook(CHECKED, "tests.helpers.shapes.only_shapes")  # before they are imported
jax.config.update("jax_enable_x64", True)  # exactness is claimed in float64
jax.config.update("jax_num_cpu_devices", 4)  # for those of several devices; all others compute on the first
jax.config.update("jax_disable_most_optimizations", not os.environ.get("ROOKERY_TESTS_OPTIMIZED"))


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what is in its background like that
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_are_dropped():
    """After each file. Each holds several memory maps; at 65530, Linux's default limit, the next compilation crashes."""
    yield
    jax.clear_caches()


def pytest_collection_modifyitems(items):
    """Files marked ``first`` begin: at the end one process would work on such a file, and the other wait."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)  # the others stay in order
