"""Rates that are searched for before a run: those of ``rk.run``, and of algorithms that declare no scales."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.experiment.folder import read_config
from rookery.experiment.settings import settings_from
from rookery.experiment.tuned import has_rates
from rookery.stopping import Interrupted
from rookery.tuning import journal
from tests.helpers.own_problem import PLAIN

POINTS = [np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])]


def lower(x, y, a):
    return jnp.sum((y - x) ** 2) + 0 * jnp.sum(a)


def upper(x, y, a):
    return jnp.mean(jnp.sum((y - a) ** 2, -1))


def call(folder, algorithm="FedBiO"):
    clients = rk.Clients(POINTS, POINTS)
    return rk.run(rk.Bilevel(upper, lower), algorithm, clients, jnp.zeros(2), jnp.zeros(2), rounds=15, folder=folder)


def test_a_run_by_name_keeps_the_rates_that_it_found(tmp_path, monkeypatch):
    add, calls = journal.Journal.add, []

    def killed(self, *outcome):
        add(self, *outcome)
        calls.append(outcome)
        if len(calls) == 3:
            raise Interrupted(2)

    with monkeypatch.context() as patched:
        patched.setattr(journal.Journal, "add", killed)
        with pytest.raises(Interrupted):
            call(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["tuning"]
    first = call(tmp_path / "run")
    rates = read_config(tmp_path / "run")["algorithm"]
    assert rates == json.loads((tmp_path / "run" / "tuning.json").read_text())["algorithms"]["FedBiO"]["rates"]
    assert not (tmp_path / "run" / "tuning").exists()
    monkeypatch.setattr("rookery.experiment.python_run.tune", None)  # there is nothing to search for any more
    again, given = call(tmp_path / "run"), call(tmp_path / "given", rk.FedBiO(**rates))
    for other in (again, given):
        assert np.asarray(other.x).tobytes() == np.asarray(first.x).tobytes()
    with pytest.raises(ValueError, match="holds a run with another algorithm"):
        call(tmp_path / "run", "SimFBO")


OWN = """

class Plain(rk.Algorithm):
    solves = ("bilevel",)
    eta: float = 0.1

    def round(self):
        return (rk.Exchange(lambda s: s, lambda local, down: down, lambda ctx, server, mean: mean),)


algorithms = {"Plain": Plain}
"""


def test_an_algorithm_without_scales_is_run_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(PLAIN + OWN)
    plain, given = (settings_from("own.py", {"algorithm": "Plain"}, pairs) for pairs in ([], ["eta=0.2"]))
    assert (has_rates(plain), has_rates(given)) == (False, True)
    kind = plain.source.algorithm("Plain")
    clients = rk.Clients(POINTS, POINTS)
    found = rk.tune(rk.Bilevel(upper, lower), kind, clients, jnp.zeros(2), jnp.zeros(2), rounds=5)
    assert found.best == kind()
    assert len(found.table) == 1
