"""Nearly all of the tests' time is compilation: it is made as cheap as it can be, and each file stays in one process.

What ships is compiled with XLA's own optimizations: with ROOKERY_TESTS_OPTIMIZED=1 the tests are as well, and
`make test-optimized` runs those of ``OPTIMIZED`` and ``OPTIMIZED_WHOLE``.
"""

import os

import jaxlib
import pytest

if not os.environ.get("ROOKERY_TESTS_OPTIMIZED") and jaxlib.__version__.startswith(
    "0.10."
):  # else XLA stops at the flag
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

import jax

jax.config.update("jax_enable_x64", True)  # exactness is claimed in float64
jax.config.update("jax_disable_most_optimizations", not os.environ.get("ROOKERY_TESTS_OPTIMIZED"))

SLOW = (
    "test_baselines_weighting.py::test_same_iterates",
    "test_baselines_weighting.py::test_T05",
    "test_baselines_weighting.py::test_T47_the_bias",
    "test_baselines_bilevel.py::test_T53_T54",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedMBO]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedBiOAcc-Local]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[ASFBO]",
    "test_flower.py::test_below_the_quorum",
    "test_flower.py::test_what_is_lost_is_left_out_and_the_rest_is_exact[PrimalDual]",
    "test_cli.py::test_list",
    "test_cli.py::test_sweep",
    "test_cli.py::test_runs_get_folders",
    "test_equalities.py::test_T12_T25",
    "test_reproduce.py::test_the_command_computes",
    "test_runs.py::test_a_diverged_seed",
    "test_runs.py::test_a_damaged_newest_checkpoint_falls_back_to_the_one_before[no manifest text]",
    "test_runs.py::test_a_damaged_newest_checkpoint_falls_back_to_the_one_before[arrays gone]",
    "test_runs.py::test_an_interrupted_run_ends_with_the_same_iterates[3]",
    "test_tasks_minimax.py::test_toy_is_solved",
    "test_tasks_minimax.py::test_quadratic_is_solved",
    "test_transcriptions.py::test_shrofbo",
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
    "test_transcriptions.py::test_fedbio[no ball-tied]",
    "test_transcriptions.py::test_fedbio_local[one step]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedBiOAcc]",
    "test_reproduce.py::test_tuning_writes_the_best",
    "test_flower.py::test_the_iterates_are_those_of_the_simulator[FedMBO]",
    "test_flower.py::test_the_iterates_are_those_of_the_simulator[FedNest]",
    "test_flower.py::test_a_killed_server_goes_on",
    "test_equalities.py::test_T16_T17_local_variants",
    "test_fixed_points.py::test_T40_T42_fedbioacc_is_exact",
    "test_fixed_points.py::test_T44_unequal_local_work",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedNest]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[CommFedBiO]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[SUSTAIN-CW]",
    "test_stochastic.py::test_T50_fedbioacc_noise_recursion",
    "test_baselines_localbs.py::test_T18_local_bsgvr_with_one_client",
    "test_baselines_localbs.py::test_local_bsgm_is_local_bsgvr",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedSGDA-M]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedBiO-Local]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[PrimalDual]",
    "test_stochastic.py::test_T53_variance_of_the_aggregate",
    "test_stochastic.py::test_T57_client_weights",
    "test_stochastic.py::test_T50_fedsgda_m_noise",
    "test_baselines_bilevel.py::test_T29_the_random_term",
    "test_baselines_bilevel.py::test_T54_aggitd",
    "test_baselines_bilevel.py::test_fednest_with_the_series_of_the_code",
    "test_baselines_localbs.py::test_adafbio_without",
    "test_baselines_localbs.py::test_T08_counters",
    "test_equalities.py::test_T17_local_variants_with_several",
    "test_equalities.py::test_T13_fedbioacc_that_forgets_is_fedbio_for_one_local_step_or_one_client[1]",
    "test_flower.py::test_the_iterates_are_those_of_the_simulator[FedBiOAcc]",
    "test_cli.py::test_compare",
    "test_cli.py::test_a_run_that_diverges",
    "test_engine.py::test_T03_T09_T10[F",
    "test_engine.py::test_T03_T09_T10[L",
    "test_engine.py::test_T03_T09_T10[D",
    "test_engine.py::test_T03_T09_T10[S",
    "test_small_problems.py::test_bilevel[0]",
    "test_engine.py::test_a_diverged_lane",
    "test_flower.py::test_a_loss_with_randomness",
    "test_flower.py::test_clients_of_unequal_sizes",
    "test_flower.py::test_a_participant_that_is_lost",
    "test_fixed_points.py::test_T40_T42_exact_with_one_local_step_or_equal_clients_else_biased_in_the_client_step[LA-ASFBO]",
    "test_equalities.py::test_T23_asfbo",
    "test_baselines_bilevel.py::test_T27_T29_T41",
    "test_networks.py::test_pooled_convolution_and_its_gradient[shape1-5-0]",
    "test_tasks_minimax.py::test_fair_score_by_hand",
    "test_transcriptions.py::test_asfbo[all-",
    "test_transcriptions.py::test_primal_dual[no ball",
    "test_transcriptions.py::test_fedsgda_m[one step-",
    "test_transcriptions.py::test_mefbo[one step]",
    "test_transcriptions.py::test_fedsgda_plus[free]",
    "test_transcriptions.py::test_local_sgda_plus[1]",
    "test_networks.py::test_pooled_convolution_and_its_gradient[shape0-5-2]",
    "test_networks.py::test_pooled_convolution_and_its_gradient[shape2-3-0]",
    "test_baselines_bilevel.py::test_fednest_is_its_transcription",
    "test_baselines_bilevel.py::test_T27_T40_with_several_outer_steps",
    "test_baselines_bilevel.py::test_aggitd_with_local_steps",
    "test_baselines_bilevel.py::test_T43_lfednest",
    "test_baselines_bilevel.py::test_T28_the_control_variate",
    "test_baselines_bilevel.py::test_fednest_sgd",
    "test_baselines_minimax.py::test_T33_codasca",
    "test_baselines_minimax.py::test_T31_T33_members",
    "test_baselines_minimax.py::test_T32_T34_estimates",
    "test_baselines_minimax.py::test_codasca_is_its_transcription_and_c_the_mean_of_what_clients_keep[box",
    "test_baselines_weighting.py::test_T47_T48_T09_T08_whole_runs[RFHO-CW_forward]",
    "test_baselines_weighting.py::test_T47_T48_T09_T08_whole_runs[ExactGD]",
    "test_baselines_weighting.py::test_T47_T48_T09_T08_whole_runs[FedNest-CW]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[CODASCA]",
    "test_contract.py::test_every_algorithm_keeps_the_contract[FedBiO]",
    "test_engine.py::test_T03_T09_T10[C",
    "test_engine.py::test_any_number_of_lanes_is_dealt_out_to_threads[False]",
    "test_engine.py::test_idle_clients_change_nothing_in_groups[1]",
    "test_equalities.py::test_T13_fedbioacc_that_forgets_is_fedbio_for_one_local_step_or_one_client[3]",
    "test_equalities.py::test_T21_T22_unequal_local_work[all]",
    "test_equalities.py::test_T24_T26_with_one_local_step",
    "test_equalities.py::test_T11_with_one_local_step_client_steps_have_no_effect[LAASFBO]",
    "test_fixed_points.py::test_T47_primal_dual_ends_at_the_stationary_weights_for_every_K_and_penalty[10]",
    "test_fixed_points.py::test_T47_primal_dual_ends_at_the_stationary_weights_for_every_K_and_penalty[5]",
    "test_fixed_points.py::test_T42_T45_mefbo_with_several",
    "test_fixed_points.py::test_T46_local_lower_levels_end_at_the_zero_of_the_series_hypergradient[FedBiOAccLocal-80]",
    "test_fixed_points.py::test_T40_T42_exact_with_one_local_step_or_equal_clients_else_biased_in_the_client_step[ShroFBO]",
    "test_fixed_points.py::test_minimax_over_the_simplex_ends_at_the_equaliser[FedSGDAM]",
    "test_flower.py::test_what_is_lost_is_left_out_and_the_rest_is_exact[FedBiO-Local]",
    "test_flower.py::test_the_iterates_are_those_of_the_simulator[CODASCA]",
    "test_small_problems.py::test_bilevel[1]",
)
"""Tests that were measured to take long; `make test-all` runs them. Each main algorithm keeps a quick transcription."""

OPTIMIZED_WHOLE = ("test_transcriptions.py",)
OPTIMIZED = (
    "test_fixed_points.py",
    "test_equalities.py",
    "test_measures.py",
    "test_small_problems.py",
    "test_engine.py::test_T01",
    "test_engine.py::test_the_evaluation_period",
    "test_engine.py::test_a_continued_run",
    "test_engine.py::test_clients_at_a_time",
    "test_engine.py::test_replay",
    "test_engine.py::test_a_lane",
    "test_engine.py::test_a_grid_of_rates_compiles_once",
    "test_engine.py::test_float32",
    "test_engine.py::test_a_float32_run",
    "test_flower.py::test_the_iterates_are_those_of_the_simulator",
)
"""What `make test-optimized` runs, compiled as it ships: all transcriptions, and of the quick tests fixed points,
equalities of algorithms and of engines, lanes, float32, and the simulator against Flower."""

FIRST = ("test_runs.py", "test_reproduce.py", "test_cli.py", "test_transcriptions.py")
"""The files that take longest begin: at the end one process would work on such a file and the other wait."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_are_dropped():
    """After each file. Each holds several memory maps; at 65530, Linux's default limit, the next compilation crashes."""
    yield
    jax.clear_caches()


def pytest_collection_modifyitems(config, items):
    whole = not any("::" in argument for argument in config.args)
    files = {item.path.name for item in items}
    for name in (*SLOW, *OPTIMIZED, *OPTIMIZED_WHOLE):
        if whole and name.partition("::")[0] in files and not any(name in item.nodeid for item in items):
            raise pytest.UsageError(f"tests/conftest.py lists {name!r}, and there is no such test")
    for item in items:
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
        quick = item.get_closest_marker("slow") is None
        if any(name in item.nodeid for name in (OPTIMIZED_WHOLE + OPTIMIZED if quick else OPTIMIZED_WHOLE)):
            item.add_marker(pytest.mark.optimized)
        if "test_flower_processes.py" in item.nodeid and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.federation)
    items.sort(key=lambda item: item.path.name not in FIRST)  # the others stay in order
