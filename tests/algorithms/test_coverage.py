"""Every algorithm has tests of its own, beside those that go through the registry."""

import ast
import re
from pathlib import Path

import pytest

import rookery as rk

FOLDER = Path(__file__).parent


def named_in(text):
    """All names and attributes that a file uses."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


TEXTS = [path.read_text() for path in FOLDER.glob("test_*.py")]
BESIDE_NUMPY = set().union(*(named_in(text) for text in TEXTS if re.search("import (quadratics|small_problems)", text)))
"""Named in a file that compares with problems solved in NumPy, or with the papers' boxes."""


@pytest.mark.parametrize("name", rk.registry)
def test_every_algorithm_is_compared_with_something_written_in_numpy(name):
    assert rk.registry[name].__name__ in BESIDE_NUMPY
