"""Nearly all of the tests' time is compilation: it is made as cheap as it can be, and each file stays in one process."""

import os

import jaxlib
import pytest

if jaxlib.__version__.startswith("0.10."):  # XLA stops at a flag that it does not know
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

import jax

jax.config.update("jax_enable_x64", True)  # exactness is claimed in float64
jax.config.update("jax_disable_most_optimizations", True)

SLOW = (
    "test_baselines_weighting.py::test_same_iterates",
    "test_baselines_weighting.py::test_T05",
    "test_baselines_weighting.py::test_T47_the_bias",
    "test_baselines_bilevel.py::test_T53_T54",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedMBO]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedBiOAcc-Local]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[ASFBO]",
    "test_flower.py::test_below_the_quorum",
    "test_tasks_bilevel.py::test_few_shot_metrics",
    "test_tasks_bilevel.py::test_the_defaults_learn_on_digits",
    "test_tasks_bilevel.py::test_adapted_heads",
    "test_tasks_bilevel.py::test_mnist",
    "test_tasks_minimax.py::test_auroc_learns",
    "test_tasks_minimax.py::test_fair_classification_learns",
    "test_tasks_minimax.py::test_fair_objective_is_the_mean",
    "test_tasks_minimax.py::test_toy_with_noise",
    "test_tasks_minimax.py::test_mnist_client_weighting",
    "test_tasks_minimax.py::test_client_weighting_seeds",
    "test_transcriptions.py::test_fedbioacc[no ball-1-2]",
    "test_transcriptions.py::test_fedbioacc[ball",
    "test_transcriptions.py::test_fedbioacc_local[1]",
    "test_transcriptions.py::test_shrofbo[active]",
    "test_transcriptions.py::test_fedbio[no ball-tied]",
    "test_transcriptions.py::test_fedbio_local[one step]",
    "test_transcriptions.py::test_primal_dual[no ball-1]",
)
"""Tests that were measured to take long and have a quicker relative: `make test-all` runs them."""


def pytest_collection_modifyitems(items):
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
