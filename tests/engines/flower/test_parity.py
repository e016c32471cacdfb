"""Every algorithm of the package makes the same iterates on every engine.

On Flower's, on the simulator, and on one that is not in the package: a few rounds inside one process, for ``make test``;
``test_flower.py`` has more of them over Flower's own messages.
"""

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.engines.flower.engine import Over
from rookery.engines.flower.wire.transport import Direct
from tests.engines.flower.test_flower import Case, assert_close, parts
from tests.helpers.marks import ONE_OF_EACH_KIND, quick_ones
from tests.helpers.queue_engine import Queued

pytestmark = pytest.mark.first


@pytest.mark.parametrize("name", quick_ones(rk.registry, ONE_OF_EACH_KIND))
def test_a_few_rounds_are_those_of_the_simulator(name):
    case = Case(rk.registry[name]())
    how = {"rounds": 3, "every": 3}
    expected = rk.solve(*case.task, **case.how, **how)
    found = rk.solve(*case.task, **case.how, **how, engine=Over(transport=Direct(case.nodes())))
    assert_close((found.x, found.y, parts(found.state)), (expected.x, expected.y, parts(expected.state)))
    assert {**found.history.last, "seconds": 0} == {**expected.history.last, "seconds": 0}
    queued = rk.solve(*case.task, **case.how, **how, engine=Queued())  # an engine that is not in the package
    for a, b in zip(jax.tree.leaves(queued.state), jax.tree.leaves(expected.state), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(np.asarray(expected.y) - case.task[4]).max() > 1e-4, "something happened"
