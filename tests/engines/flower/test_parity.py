"""Every algorithm of the package makes the same iterates on Flower's engine as on the simulator.

Here a few rounds inside one process, for ``make test``; ``test_flower.py`` has more of them over Flower's own messages.
"""

import numpy as np
import pytest

import rookery as rk
from rookery.engines.flower.engine import Over
from rookery.engines.flower.wire.transport import Direct
from tests.engines.flower.test_flower import Case, assert_close, parts

pytestmark = pytest.mark.first


@pytest.mark.parametrize("name", rk.registry)
def test_a_few_rounds_are_those_of_the_simulator(name):
    case = Case(rk.registry[name]())
    how = {"rounds": 3, "every": 3}
    expected = rk.solve(*case.task, **case.how, **how)
    found = rk.solve(*case.task, **case.how, **how, engine=Over(transport=Direct(case.nodes())))
    assert_close((found.x, found.y, parts(found.state)), (expected.x, expected.y, parts(expected.state)))
    assert {**found.history.last, "seconds": 0} == {**expected.history.last, "seconds": 0}
    assert np.abs(np.asarray(expected.y) - case.task[4]).max() > 1e-4, "something happened"
