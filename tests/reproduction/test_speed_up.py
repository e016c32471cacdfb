"""The power of P is found from the curves of all seeds, and what is not reached is said and not fitted."""

import numpy as np
import pytest

from rookery.reproduction.compute import save
from rookery.reproduction.experiment import SIZES, experiment, experiments
from rookery.reproduction.page import draw, markdown
from rookery.reproduction.speed_up import _off, _Run, _speed_up, _to, speed_ups, table
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


def keep(which, folder, power, scatter=0.02, methods=("FedBiO", "SimFBO"), lost=(), fall=1.34, luck=0.0):
    """Stores what a method has that is tuned for each horizon T: 10 (P^-power T)^-½ is left of 10, up to a scatter.

    Without noise, the measure falls to exp(-fall) of itself in a round; with ``luck``, each search comes to other rates.
    """
    rng = np.random.default_rng(7)
    for cell in which.cells():
        if cell.method not in methods:
            continue
        settings = cell.settings
        rounds = np.linspace(0, settings.rounds, POINTS + 1)
        noisy = float(settings.options["noise"] > 0)
        lucky = np.exp(luck * noisy * rng.standard_normal())
        end = lucky * 10 * (settings.participants**-power * settings.rounds) ** -0.5 * noisy
        values = end + (10 - end) * np.exp(-rounds * (12 / settings.rounds if noisy else fall))
        seeds = values[:, None] * np.exp(scatter * noisy * rng.standard_normal((POINTS + 1, settings.seeds)))
        seeds[0] = 10.0
        if (settings.participants if noisy else 0) in lost:
            seeds[1:] = np.nan
        told = [[None if np.isnan(v) else float(v) for v in row] for row in seeds]
        found = result(which, cell, [1.0] * settings.seeds)
        found["curve"] |= {"round": rounds.tolist(), "seeds": told}
        save(cell, found, folder)


def one(which, folder):
    """What is found of FedBiO."""
    return next(each for each in speed_ups(which, folder) if each.method == "FedBiO")


@pytest.mark.parametrize("power", [-0.5, -1.0, -2.0])
def test_a_known_power_is_recovered(which, tiny, power):
    keep(which, tiny, power)
    found = one(which, tiny)
    assert found.slope == pytest.approx(power, abs=0.2 if power == -2.0 else 0.12)  # of three P, close to no noise
    assert found.low <= power <= found.high
    assert (found.verdict == "holds") == (power <= -1.0)
    assert len(table([found])[1][0]) == len(table([found])[0])


def test_the_claimed_power_is_that_of_the_method(which, tiny):
    keep(which, tiny, -1.0)
    one, two = speed_ups(which, tiny)
    assert (one.verdict, two.verdict) == ("holds", "weaker than claimed")
    assert (one.claimed, two.claimed) == (-1, -2)


def test_the_interval_covers_the_power_and_grows_with_the_scatter(which, tiny):
    widths = []
    for scatter in (0.02, 0.3):
        keep(which, tiny, -1.0, scatter)
        found = one(which, tiny)
        assert found.low - 0.05 <= -1.0 <= found.high + 0.05
        widths.append(found.high - found.low)
    assert widths[0] < widths[1]


def test_rounds_that_noise_does_not_set_are_left_out_and_said(which, tiny):
    """A method so much better than claimed that at P = 64 it has no noise left to average."""
    keep(which, tiny, -2.0)
    found = one(which, tiny)
    assert found.fitted == (1, 4, 16)
    assert found.rounds[64] < 2 * found.noiseless
    assert table([found])[1][0][5] == f"({found.rounds[64]:.1f})"


def made_up(rounds, noiseless, every=1):
    """Runs that fall exponentially to 1e-3 of their start, in so many rounds by P, evaluated every so many."""

    def run_(to):
        at = np.arange(0, 4 * to + every, every)
        return [_Run(at, np.repeat(1e3 ** -(at / to)[:, None], 1001, 1), 8)]

    return {p: run_(to) for p, to in {0: noiseless, **rounds}.items()}


@pytest.mark.parametrize("power", [-1.0, -2.0])
@pytest.mark.parametrize("noiseless", [0.2, 1.0, 5.0, 20.0])
def test_rounds_that_are_needed_without_noise_do_not_bend_the_slope(power, noiseless):
    rounds = {p: 1024.0 * 16 * p**power + noiseless for p in (1, 4, 16, 64)}
    found = _speed_up("FedBiO", power, made_up(rounds, noiseless), 21)
    assert found.slope == pytest.approx(power, abs=0.02)
    assert len(found.fitted) >= 3


def test_a_crossing_is_found_between_evaluations():
    """However seldom a curve is evaluated, if its logarithm is straight."""
    for every in (1, 7, 50):
        run_ = made_up({1: 100.0}, 10.0, every)[1]
        assert _to(1e-2, run_)[0] == pytest.approx(100 * 2 / 3)
    start = _Run(np.array([0, 10]), np.array([[np.inf], [0.0]]), 1)
    assert _to(1e-2, [start])[0] == 10, "from where there is no number"


def test_the_luck_of_searches_is_in_the_interval(which, tiny):
    """Rates that happen to be better or worse move a P by more than the seeds' scatter tells."""
    keep(which, tiny, -1.0)
    before = one(which, tiny)
    keep(which, tiny, -1.0, luck=0.3)
    found = one(which, tiny)
    assert found.high - found.low > 3 * (before.high - before.low)
    assert found.low < -1.0 < found.high
    x = np.log([1, 4, 16])
    assert _off(x, np.array([0.1, -0.2, 0.1])) == pytest.approx(
        12.706 * 0.06**0.5 / (2 * np.log(4) ** 2) ** 0.5, rel=1e-4
    )


@pytest.mark.parametrize("why", ["too slow", "diverged"])
def test_a_run_without_noise_that_does_not_reach_epsilon_excludes_nothing(which, tiny, why):
    keep(which, tiny, -1.0)
    before = one(which, tiny)
    keep(which, tiny, -1.0, **({"fall": 1e-3} if why == "too slow" else {"lost": [0]}))
    found = one(which, tiny)
    assert found.fitted == (1, 4, 16, 64)
    assert found.slope == pytest.approx(before.slope, abs=0.1)
    assert (found.noiseless, found.floor) == (np.inf, 0.0)
    assert table([found])[1][0][6] == "> 64"
    draw(which, tiny, tiny / "some.png")


def test_no_speed_up(which, tiny):
    keep(which, tiny, 0.0, 0.2)
    found = one(which, tiny)
    assert found.verdict == "no speed-up shown"
    assert found.slope == pytest.approx(0.0, abs=0.1)
    assert "FedBiO **no speed-up shown**" in markdown(tiny)


def test_epsilon_is_what_all_reach_and_no_less(which, tiny):
    keep(which, tiny, -1.0)
    found = one(which, tiny)
    least = 10 * 4096**-0.5
    assert least < found.epsilon < 1.3 * least, "of P = 1, with the longest horizon"
    assert all(np.isfinite(each) for each in found.rounds.values())
    assert 1024 < found.rounds[1] <= 2048
    assert found.noiseless == pytest.approx(np.log(10 / found.epsilon) / 1.34, abs=0.01)


def test_a_p_that_gets_nowhere_is_left_out_and_said(which, tiny):
    keep(which, tiny, -1.0, lost=[1])
    found = one(which, tiny)
    assert found.epsilon < 10 * 1024**-0.5, "of P = 4"
    assert found.rounds[1] == np.inf
    assert found.slope == pytest.approx(-1.0, abs=0.12)
    assert found.verdict == "holds"
    assert table([found])[1][0][2] == "> 4096"
    assert list(found.power.missed) == [1]
    keep(which, tiny, -1.0, lost=[1, 4])
    found = one(which, tiny)
    assert (found.slope_text, found.verdict) == ("–", "not decided"), "two P have no slope"
    draw(which, tiny, tiny / "some.png")
    keep(which, tiny, -1.0, lost=[1, 4, 16, 64])
    found = one(which, tiny)
    assert np.isnan(found.epsilon)
    assert set(found.rounds.values()) == {np.inf}
    draw(which, tiny, tiny / "none.png")


def test_a_seed_that_diverged_does_not_count_as_reached(which, tiny):
    keep(which, tiny, -1.0)
    before = one(which, tiny)
    cell = next(cell for cell in which.cells() if cell.setting == "P = 64, 64 rounds")
    told = result(which, cell, [1.0] * 8)
    told["curve"] |= {"round": [0, 64], "seeds": [[10.0] * 8, [0.01] * 7 + [None]]}
    save(cell, told, tiny)
    found = one(which, tiny)
    assert found.rounds[64] > 64
    assert found.slope > before.slope


def test_one_seed_decides_nothing(which, tiny):
    text = (tiny / "presets" / "T2.toml").read_text()
    (tiny / "presets" / "T2.toml").write_text(text.replace("seeds = 8", "seeds = 1"))
    alone = experiment("T2")
    keep(alone, tiny, -1.0)
    found = one(alone, tiny)
    assert found.slope == pytest.approx(-1.0, abs=0.12)
    assert found.verdict == "not decided"


@pytest.mark.parametrize("name", ["P = 1, 16 rounds", "without noise"])
def test_there_is_no_verdict_until_all_cells_of_a_method_are_of_today(which, tiny, name):
    folder = tiny / "reproduction"
    keep(which, folder, -1.0)
    cell = next(cell for cell in which.cells() if (cell.setting, cell.method) == (name, "FedBiO"))
    save(cell, {**result(which, cell, [1.0] * 8, seconds=6e5), "digest": "of another day"}, folder)
    found, other = speed_ups(which, folder)
    assert (found.verdict, found.slope_text, found.rounds) == ("not computed: 20 of 21 cells", "–", {})
    assert other.verdict == "weaker than claimed"
    assert table([found, other])[1][0][1:] == ["–"] * 7 + ["-1", "not computed: 20 of 21 cells"]
    section = markdown(folder).split("## T2")[1]
    assert "FedBiO **not computed: 20 of 21 cells**, SimFBO **weaker than claimed**" in section
    assert "41 of 42 cells" in section, "neither the cell nor its minutes"
    assert " 62 minutes" in section, "three of a core for each of 41"
    draw(which, folder, tiny / "some.png")


def test_old_results_alone_are_no_results(which, tiny):
    for cell in which.cells():
        save(cell, {**result(which, cell, [1.0]), "digest": "of another day"}, tiny / "reproduction")
    assert "Not computed here: `rookery reproduce T2`." in markdown(tiny / "reproduction")


def test_the_page_and_the_command_show_it(which, tiny):
    keep(which, tiny / "reproduction", -1.0)
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
        for cell in noisy:
            if cell.method in ("MeFBO", "ASFBO"):  # the corollaries' powers are those of partial participation
                assert int(cell.settings.participants) < cell.settings.clients
