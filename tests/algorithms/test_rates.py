"""An algorithm told by its name and numbers is made again, whatever its rates are."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rookery as rk
from rookery.algorithms.rates import make_algorithm, tell_algorithm
from tests.helpers.fuzzing import examples

rates = st.floats(1e-3, 0.5)
schedules = st.builds(rk.Power, rates, st.floats(-1, 0)) | st.builds(rk.Cosine, rates, rates, st.floats(1, 1e3))


@pytest.mark.parametrize("name", rk.registry)
def test_an_algorithm_told_by_name_and_rates_is_made_again(name):
    kind = rk.registry[name]
    steps = [f.name for f in dataclasses.fields(kind) if f.name.startswith("eta") and not f.metadata.get("static")]

    @examples(20, 1_000)
    @given(st.fixed_dictionaries({}, optional=dict.fromkeys(steps, rates | schedules)))
    def law(chosen):
        made = kind(**chosen)
        told = json.loads(json.dumps(tell_algorithm(made)))
        assert told["name"] == name
        assert make_algorithm(kind, told["rates"]) == made

    law()
