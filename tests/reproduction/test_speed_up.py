"""The power of P is found from the curves of all seeds, and what is not reached is said and not fitted."""

import numpy as np
import pytest

from rookery.reproduction.compute import save
from rookery.reproduction.experiment import SIZES, experiment, experiments
from rookery.reproduction.page import draw, markdown
from rookery.reproduction.speed_up import speed_ups, table
from tests.reproduction.command import run
from tests.reproduction.made_up import result

POINTS = 64
PRESET = """
title = "A speed-up"
paper = "Nobody"
asks = "Rounds fall as 1/P."
legend = "Local steps are fixed."
claimed = { FedBiO = -1, SimFBO = -2 }
form = "speed-up"
curve_seeds = true
metric = "hypergradient"
higher_is_better = false
percent = false
at = [16]

[run]
task = "quadratic-bilevel"
clients = 64
participants = 1
rounds = 64
seeds = 8

[task]
noise = 1.0
examples = 2

[settings]
"""


@pytest.fixture
def which(tiny):
    """Four P with five horizons each, and one without noise, for two methods."""
    settings = [f'"P = {p}, {t} rounds" = {{ run = {{ participants = {p}, rounds = {t} }} }}'
                for p in (1, 4, 16, 64) for t in (16, 64, 256, 1024, 4096)]  # fmt: skip
    settings += ['"without noise" = { run = { participants = 64, seeds = 1 }, task = { noise = 0.0 } }']
    methods = "\n[methods]\nFedBiO = {}\nSimFBO = {}\n"
    (tiny / "presets" / "T1.toml").unlink()
    (tiny / "presets" / "T2.toml").write_text(PRESET + "\n".join(settings) + methods)
    return experiment("T2")


def keep(which, folder, power, scatter=0.02, methods=("FedBiO",), lost=()):
    """Stores what a method has that is tuned for each horizon T: 10 (P^-power T)^-½ is left of 10, up to a scatter."""
    rng = np.random.default_rng(7)
    for cell in which.cells():
        if cell.method not in methods:
            continue
        settings = cell.settings
        rounds = np.linspace(0, settings.rounds, POINTS + 1)
        noisy = float(settings.options["noise"] > 0)
        end = 10 * (settings.participants**-power * settings.rounds) ** -0.5 * noisy
        values = end + (10 - end) * np.exp(-rounds * (12 / settings.rounds if noisy else 1.34))
        seeds = values[:, None] * np.exp(scatter * noisy * rng.standard_normal((POINTS + 1, settings.seeds)))
        seeds[0] = 10.0
        if settings.participants in lost and noisy:
            seeds[1:] = np.nan
        told = [[None if np.isnan(v) else float(v) for v in row] for row in seeds]
        found = result(which, cell, [1.0] * settings.seeds)
        found["curve"] |= {"round": rounds.tolist(), "seeds": told}
        save(cell, found, folder)


@pytest.mark.parametrize("power", [-0.5, -1.0, -2.0])
def test_a_known_power_is_recovered(which, tiny, power):
    keep(which, tiny, power)
    (found,) = speed_ups(which, tiny)
    assert found.slope == pytest.approx(power, abs=0.12)
    assert found.low <= found.slope <= found.high
    assert found.verdict == ("weaker than claimed" if power == -0.5 else "holds")
    assert len(table([found])[1][0]) == len(table([found])[0])


def test_the_claimed_power_is_that_of_the_method(which, tiny):
    keep(which, tiny, -1.0, methods=("FedBiO", "SimFBO"))
    one, two = speed_ups(which, tiny)
    assert (one.verdict, two.verdict) == ("holds", "weaker than claimed")
    assert (one.claimed, two.claimed) == (-1, -2)


def test_the_interval_covers_the_power_and_grows_with_the_scatter(which, tiny):
    widths = []
    for scatter in (0.02, 0.3):
        keep(which, tiny, -1.0, scatter)
        (found,) = speed_ups(which, tiny)
        assert found.low - 0.05 <= -1.0 <= found.high + 0.05
        widths.append(found.high - found.low)
    assert widths[0] < widths[1]


def test_rounds_that_noise_does_not_set_are_left_out_and_said(which, tiny):
    """A method so much better than claimed that at P = 64 it has no noise left to average."""
    keep(which, tiny, -2.0)
    (found,) = speed_ups(which, tiny)
    assert found.fitted == (1, 4, 16)
    assert found.rounds[64] < 2 * found.noiseless
    assert table([found])[1][0][5] == f"({found.rounds[64]:.0f})"


def test_no_speed_up(which, tiny):
    keep(which, tiny, 0.0, 0.2)
    (found,) = speed_ups(which, tiny)
    assert found.verdict == "no speed-up"
    assert found.slope == pytest.approx(0.0, abs=0.1)
    assert "FedBiO **no speed-up**" in markdown(tiny)


def test_epsilon_is_what_all_reach_and_no_less(which, tiny):
    keep(which, tiny, -1.0)
    (found,) = speed_ups(which, tiny)
    least = 10 * 4096**-0.5
    assert least < found.epsilon < 1.3 * least, "of P = 1, with the longest horizon"
    assert all(np.isfinite(each) for each in found.rounds.values())
    assert 1024 < found.rounds[1] <= 2048
    assert found.noiseless == 3


def test_a_p_that_gets_nowhere_is_left_out_and_said(which, tiny):
    keep(which, tiny, -1.0, lost=[1])
    (found,) = speed_ups(which, tiny)
    assert found.epsilon < 10 * 1024**-0.5, "of P = 4"
    assert found.rounds[1] == np.inf
    assert found.slope == pytest.approx(-1.0, abs=0.12)
    assert found.verdict == "holds"
    assert table([found])[1][0][2] == "> 4096"
    assert list(found.power.missed) == [1]
    keep(which, tiny, -1.0, lost=[1, 4])
    (found,) = speed_ups(which, tiny)
    assert (found.slope_text, found.verdict) == ("–", "not decided"), "two P have no slope"
    draw(which, tiny, tiny / "some.png")
    keep(which, tiny, -1.0, lost=[1, 4, 16, 64])
    (found,) = speed_ups(which, tiny)
    assert np.isnan(found.epsilon)
    assert set(found.rounds.values()) == {np.inf}
    draw(which, tiny, tiny / "none.png")


def test_a_seed_that_diverged_does_not_count_as_reached(which, tiny):
    keep(which, tiny, -1.0)
    (before,) = speed_ups(which, tiny)
    cell = next(cell for cell in which.cells() if cell.setting == "P = 64, 64 rounds")
    told = result(which, cell, [1.0] * 8)
    told["curve"] |= {"round": [0, 64], "seeds": [[10.0] * 8, [0.01] * 7 + [None]]}
    save(cell, told, tiny)
    (found,) = speed_ups(which, tiny)
    assert found.rounds[64] > 64
    assert found.slope > before.slope


def test_one_seed_decides_nothing(which, tiny):
    text = (tiny / "presets" / "T2.toml").read_text()
    (tiny / "presets" / "T2.toml").write_text(text.replace("seeds = 8", "seeds = 1"))
    alone = experiment("T2")
    keep(alone, tiny, -1.0)
    (found,) = speed_ups(alone, tiny)
    assert found.slope == pytest.approx(-1.0, abs=0.12)
    assert found.verdict == "not decided"


def test_results_of_other_settings_are_not_fitted(which, tiny):
    keep(which, tiny, -1.0)
    for cell in which.cells(only=["P = 1, "]):
        if cell.method == "FedBiO":
            save(cell, {**result(which, cell, [1.0] * 8), "digest": "of another day"}, tiny)
    (found,) = speed_ups(which, tiny)
    assert list(found.rounds) == [4, 16, 64]


def test_the_page_and_the_command_show_it(which, tiny):
    keep(which, tiny / "reproduction", -1.0, methods=("FedBiO", "SimFBO"))
    text = markdown(tiny / "reproduction")
    section = text[text.index("## T2") :]
    assert "*Found:* FedBiO **holds**, SimFBO **weaker than claimed**." in section
    assert "42 of 42 cells, 1/8 seeds, 16 to 4096 rounds" in section
    head = "| method | ε | rounds, P = 1 | rounds, P = 4 | rounds, P = 16 | rounds, P = 64 | without noise | slope |"
    assert head in section
    told = section[: section.index(head)].split() + section[section.index("Local steps are fixed.") :].split()
    assert len(told) <= 80
    assert "| FedBiO **holds**, SimFBO **weaker than claimed** |" in text[: text.index("## T2")]
    output = run("T2").output
    assert "Local steps are fixed." in output
    assert "weaker than claimed" in output
    assert "T2: A speed-up" in output
    assert (tiny / "reproduction" / "T2.png").stat().st_size > 5000


@pytest.mark.parametrize("name", [name for name, which in experiments().items() if which.form == "speed-up"])
def test_the_presets_have_the_same_horizons_for_all_p(name):
    """The longest is the same for all P, each method has all of them, and a search does not see their seeds."""
    for size in SIZES:
        cells = experiment(name).cells(size)
        noisy = [cell for cell in cells if cell.settings.options["noise"]]
        longest: dict[int, int] = {}
        for cell in noisy:
            p = cell.settings.clients if cell.settings.participants is None else cell.settings.participants
            longest[p] = max(longest.get(p, 0), cell.settings.rounds)
        assert (min(longest), max(longest)) == (1, 64)
        assert len(set(longest.values())) == 1
        assert {cell.method for cell in cells if not cell.settings.options["noise"]} == {c.method for c in cells}
