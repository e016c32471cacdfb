"""The search without a problem: candidates are scored by a formula."""

import pytest

import rookery as rk
from rookery.algorithm.rate import Scales
from rookery.tuning.search import Search
from rookery.tuning.space import Space

SPACE = Space.of(rk.FedBiO, Scales(x=100.0, y=0.25, steps=600.0, tau=1.0))
ROUNDS = 20


class Bowl:
    """What runs trials: the score of a place is its distance from the best one, above all in eta_z, whatever the round."""

    width, keys = 8, (0,)

    def __init__(self, best):
        self.best = best

    def advance(self, trials, to):
        for each in trials:
            each.spent["rounds"] = each.spent.get("rounds", 0) + to - each.rounds
            each.rounds = to
            each.score = sum(
                (1.0 if name == "eta_z" else 0.1) * (each.place[name] - best) ** 2 for name, best in self.best.items()
            )


def searched(growth, **best):
    """A search, done, and its winner. Where nothing else is said the best lies inside of the ranges."""
    inside = {knob.name: knob.low + 0.6 * (knob.high - knob.low) for knob in SPACE.knobs}
    bowl = Bowl(inside | best)
    search = Search(SPACE, bowl, ROUNDS, 6.0, higher=False, random=False, seed=[1, 2], growth=growth)
    return search, search.run()


def places(search):
    return [each.place for each in search.trials]


def test_growth_goes_beyond_an_edge_until_it_is_spent():
    short, before = searched(0.0, eta_z=4.0)
    grown, after = searched(3.0, eta_z=4.0)
    assert "eta_z" in SPACE.ends(before.place, places(short))
    assert places(grown)[: len(short.trials)] == places(short), "the search is the same up to there"
    assert len(grown.trials) == len(short.trials) + 3
    assert grown.spent() == short.spent() + 3
    gone = [each.place for each in grown.trials[-3:]]
    assert [name for place in gone for name in place if place[name] > before.place[name]] == ["eta_y", "eta_z", "eta_z"]
    assert after.place == pytest.approx({**before.place, "eta_z": before.place["eta_z"] + 2 * 0.17})
    assert after.score < before.score
    assert "eta_z" in SPACE.ends(after.place, places(grown)), "that it might go further is told"


def test_growth_stops_when_the_best_lies_inside():
    short, before = searched(0.0, eta_z=1.0)
    grown, after = searched(20.0, eta_z=1.0)
    assert SPACE.ends(before.place, places(short))
    assert 1 <= len(grown.trials) - len(short.trials) < 20
    assert SPACE.ends(after.place, places(grown)) == {}
    assert after.place["eta_z"] == pytest.approx(1.0, abs=0.17)


def test_growth_costs_nothing_where_the_best_lies_inside():
    short, before = searched(0.0)
    grown, after = searched(3.0)
    assert SPACE.ends(before.place, places(short)) == {}
    assert len(grown.trials) == len(short.trials)
    assert after.place == before.place


def test_a_part_of_a_run_is_not_enough_to_go_on():
    short, _ = searched(0.0, eta_z=4.0)
    for growth, more in ((0.9, 0), (1.5, 1), (2.0, 2)):
        assert len(searched(growth, eta_z=4.0)[0].trials) == len(short.trials) + more


def test_a_search_keeps_within_its_budget():
    for growth in (0.0, 3.0):
        search, _ = searched(growth, eta_z=4.0, eta_y=2.0, eta_x=3.0)
        assert 4 < search.spent() <= 6 + growth + 1
