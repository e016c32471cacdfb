"""The page of invariants and the tests that carry their numbers are in step."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"


def on_the_page():
    """Of each number, what the page says about where it is tested."""
    rows = re.findall(r"^\| (T\d\d) \| .+ \| (.+) \|$", (ROOT / "docs" / "invariants.md").read_text(), re.M)
    assert len(dict(rows)) == len(rows), "a number stands there twice"
    return dict(rows)


def in_names():
    """Of each number, the files with a test that has it in its name."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M):
            for number in re.findall(r"(?<=_)T\d\d(?=_|$)", name):
                found.setdefault(number, set()).add(path.relative_to(TESTS).as_posix())
    return found


def test_every_invariant_says_where_it_is_tested_or_why_not():
    page, names = on_the_page(), in_names()
    assert len(page) > 50
    assert set(names) <= set(page), "a test's name has a number that the page does not have"
    for number, where in page.items():
        files = set(re.findall(r"`(\S+\.py)`", where))
        assert files == names.get(number, set()), number
        assert files or where.startswith("not tested: "), number
