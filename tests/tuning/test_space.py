"""What algorithms declare about their rates, and the search spaces that come of it."""

import dataclasses

import numpy as np
import pytest

import rookery as rk
from rookery.algorithm.rate import Scales, declared
from rookery.tuning.space import Space

SCALES = Scales(x=100.0, y=0.25, steps=600.0, tau=3.0, size_x=2.0, size_y=3.0, size_z=4.0, rms_x=0.5)


def middle(space):
    return {knob.name: (knob.low + knob.high) / 2 for knob in space.knobs}


@pytest.mark.parametrize("name", list(rk.registry))
def test_every_step_of_every_algorithm_has_a_scale(name):
    fields = {f.name for f in dataclasses.fields(rk.registry[name]) if f.name.startswith(("eta", "neumann"))}
    without = {"neumann_step"} if name.startswith("FBO-AggITD") else set()  # there it is the step of y
    assert fields - without <= set(declared(rk.registry[name]))


@pytest.mark.parametrize("name", list(rk.registry))
def test_any_place_is_an_algorithm(name):
    space = Space.of(rk.registry[name], SCALES)
    rng = np.random.default_rng(0)
    for place in [middle(space), *space.spread(20, rng), space.near(middle(space), 0.5, rng)]:
        made = space.algorithm(place)
        assert isinstance(made, rk.registry[name])
    if space.learns_x and any(field.endswith("_x") for field in declared(space.kind)):
        held = space.frozen(middle(space))
        steps = [
            field
            for field in ("eta_x", "gamma_x")
            if hasattr(held, field) and name not in ("FedSGDA+", "FSGDA", "SAGDA")
        ]
        assert steps == [] or all(getattr(held, field) == 0 for field in steps)


def test_scales_are_units():
    made = Space.of(rk.FedBiO, SCALES).algorithm({"eta_x": -2.0, "eta_y": 0.0, "eta_z": -1.0})
    assert (made.eta_x, made.eta_y, made.eta_z) == pytest.approx((1.0, 0.25, 0.025))


def test_what_follows_follows():
    made = Space.of(rk.MeFBO, SCALES).algorithm({"gamma_x": -1.0, "y": 0.0, "c": 1.0, "nu": 2.0})
    assert made.c.scale == pytest.approx(10.0)
    assert made.gamma_x == pytest.approx(100.0)  # 100 · 10^-1 · c
    assert made.eta_x == pytest.approx(made.gamma_x / 3)
    assert made.gamma_y == made.gamma_theta == pytest.approx(0.25 * 10 / 11)
    assert made.nu == pytest.approx(25.0)
    storm = Space.of(rk.FedBiOAcc, SCALES).algorithm(middle(Space.of(rk.FedBiOAcc, SCALES)))
    assert storm.delta / (storm.offset + 1) ** (1 / 3) == pytest.approx(1.0)


def test_places_are_spread_evenly():
    space = Space.of(rk.FedBiO, SCALES)
    places = space.spread(40, np.random.default_rng(3))
    for knob in space.knobs:
        values = np.sort([(place[knob.name] - knob.low) / (knob.high - knob.low) for place in places])
        assert values[0] >= 0
        assert values[-1] <= 1
        assert np.diff(values).max() < 0.1


def test_a_space_goes_down_where_long_steps_diverge():
    space = Space.of(rk.FedBiO, SCALES)
    lower = space.below(-1.0)
    assert lower.free.high == -1.0
    assert lower.free.low == pytest.approx(min(space.free.low, -4.0))
    assert space.below(float("inf")) == space


def test_edges_are_told():
    space = Space.of(rk.FedBiO, SCALES)
    tried = space.spread(30, np.random.default_rng(0))
    top = max(tried, key=lambda place: place["eta_x"])
    inner = sorted(tried, key=lambda place: place["eta_x"])[15]
    assert space.edges(top, tried)["eta_x"] == "largest"
    assert "eta_x" not in space.edges(inner, tried)


def test_what_is_given_is_no_knob_and_others_see_it():
    space = Space.of(rk.MeFBO, SCALES, {"c": rk.Power(4.0, 0.1), "nu": 20.0})
    assert {knob.name for knob in space.knobs} == {"gamma_x", "y"}
    made = space.algorithm({"gamma_x": -1.0, "y": 0.0})
    assert (made.c, made.nu) == (rk.Power(4.0, 0.1), 20.0)
    assert made.gamma_x == pytest.approx(40.0), "100 · 10^-1 · c, of a schedule its scale"
    assert made.gamma_y == pytest.approx(0.25 * 4 / 5)
    held = Space.of(rk.FedBiO, SCALES, {"eta_x": 0.0, "tie_batches": True})
    assert not held.learns_x
    assert (held.algorithm(middle(held)).eta_x, held.algorithm(middle(held)).tie_batches) == (0.0, True)


def test_rates_that_change_over_the_rounds_keep_their_shape():
    half = rk.Cosine(1.0, 0.05, 10.0)
    space = Space.of(rk.SimFBO, SCALES, shapes={"gamma_x": half, "eta_y": half})
    assert space.knobs == Space.of(rk.SimFBO, SCALES).knobs, "what is searched for is their scale"
    place = middle(space)
    constant, made = Space.of(rk.SimFBO, SCALES).algorithm(place), space.algorithm(place)
    for field in ("gamma_x", "eta_y"):
        start = getattr(constant, field)
        changes = getattr(made, field)
        assert (changes.start, changes.end, changes.rounds) == pytest.approx((start, 0.05 * start, 10.0))
    assert made.eta_x == constant.eta_x, "others see the number, and do not change with it"
    assert space.frozen(place).gamma_x.start == space.frozen(place).gamma_x.end == 0


def test_the_servers_step_lies_about_the_mean():
    for kind, fields in ((rk.FedSGDAPlus, ("gamma_x", "gamma_y")), (rk.CODASCA, ("gamma",))):
        space = Space.of(kind, SCALES)
        for field in fields:
            (knob,) = (knob for knob in space.knobs if knob.name == field)
            assert (10**knob.low, 10**knob.high) == pytest.approx((0.2, 2.0), rel=0.01)
            assert knob.grows
            assert getattr(space.algorithm({**middle(space), field: 0.0}), field) == 1.0


def test_an_end_of_what_was_tried_has_more_beyond():
    space = Space.of(rk.FedSGDAM, SCALES)
    names = {knob.name: knob for knob in space.knobs}
    tried = [*space.spread(30, np.random.default_rng(0)), middle(space)]
    assert space.ends(middle(space), tried) == {}
    assert space.beyond(middle(space), tried) == []
    for name, knob in names.items():
        step = 0.1 * (knob.high - knob.low)
        for far, out in ((min, -step), (max, step))[: 1 if knob.scale == "(0, 1]" else 2]:
            place = {**middle(space), name: far(each[name] for each in tried)}
            assert space.ends(place, tried) == pytest.approx({name: out})
            (beyond,) = space.beyond(place, tried)
            assert beyond == pytest.approx({**place, name: place[name] + out})


def test_that_a_fraction_is_at_most_1_is_no_end():
    space = Space.of(rk.FedSGDAM, SCALES)
    (knob,) = (knob for knob in space.knobs if knob.scale == "(0, 1]")
    one, least = ({**middle(space), knob.name: value} for value in (knob.high, knob.low))
    tried = [one, middle(space), least]
    assert knob.name not in space.ends(one, tried)
    assert knob.name in space.ends(least, tried)
    below = {**one, knob.name: -0.05}
    assert knob.name not in space.ends(below, [below, least]), "the next one out would be more than 1"
