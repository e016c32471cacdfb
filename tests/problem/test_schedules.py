"""A schedule of the same shape with another scale is that many times the schedule, in every round."""

import numpy as np
import pytest

import rookery as rk
from rookery.problem.schedules import at, scaled


@pytest.mark.parametrize(
    ("shape", "unit"), [(rk.Cosine(1.0, 0.05, 10.0), 1.0), (rk.Cosine(4.0, 1.0, 7.0), 4.0), (rk.Power(2.7, -0.5), 2.7)]
)
def test_scaled(shape, unit):
    made = scaled(shape, 0.3)
    assert type(made) is type(shape)
    for t in (0, 1, 3.5, 10, 50):
        np.testing.assert_allclose(at(made, t), 0.3 / unit * at(shape, t), rtol=1e-6)


def test_scaled_says_what_it_is():
    assert scaled(rk.Cosine(2.0, 0.1, 10.0), 0.5) == rk.Cosine(0.5, 0.025, 10.0)
    assert scaled(rk.Power(2.7, 0.001), 4.0) == rk.Power(4.0, 0.001)
    assert at(scaled(rk.Cosine(2.0, 0.1, 10.0), 0.0), 0) == 0, "x held at its start"
