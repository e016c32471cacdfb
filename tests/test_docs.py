"""Every Python block of the README and of the docs runs; generated tables are current."""

import re
from pathlib import Path

import pytest

from rookery.catalogue import catalogue, markdown

ROOT = Path(__file__).parent.parent
PAGES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "```python" in page.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    names: dict = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", ["fidelity.md", "algorithms.md"])
def test_tables_are_current(page):
    assert markdown() in (ROOT / "docs" / page).read_text(), "run: python -m rookery.catalogue"


def test_catalogue():
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["MeFBO"].second_derivatives is False
    assert entries["MeFBO"].unequal_steps is True
    assert entries["FedBiOAcc"].exchanges == 2
    assert entries["FedBiOAcc"].unequal_steps is False
    assert entries["FedNest"].exchanges == 2 * 1 + 5 + 3
    assert entries["PrimalDual"].solves == "weighting"
    assert all(entry.status and entry.paper for entry in entries.values())
