"""Every code block of the README and of the docs runs; generated tables are current; the site builds."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify
from typer.testing import CliRunner

import rookery as rk
from rookery.catalogue import STATUSES, catalogue, markdown, tasks_markdown
from rookery.cli.main import app
from tests.helpers.marks import slow

ROOT = Path(__file__).parent.parent
API = ROOT / "docs" / "api"
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def with_blocks(language, quick=()):
    """The pages that have such blocks; those that are not ``quick`` are slow."""
    pages = [page for page in PAGES if blocks(page, language)]
    return [(pytest.param if page.name in quick else slow)(page, id=page.name) for page in pages]


@pytest.mark.parametrize("page", with_blocks("python", quick={"README.md", "index.md", "trust.md"}))
def test_python_blocks_run(page, capsys):
    names: dict = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)
    assert capsys.readouterr().out
    if page.name == "README.md":  # three rates, three seeds: all of them matter
        assert len(set(names["many"].history["upper_loss"][-1].tolist())) == 9


@pytest.mark.parametrize("page", with_blocks("bash"))
def test_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "bash"):
        for line in block.strip().splitlines():
            program, *arguments = shlex.split(line)
            assert program == "rookery"
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{line}\n{result.output}"


def test_there_is_no_other_kind_of_block():
    for page in PAGES:
        kinds = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.S | re.M)
        assert set(kinds) <= {"python", "bash", "toml"}, page.name


@pytest.mark.parametrize("page", ["fidelity.md", "algorithms.md"])
def test_tables_are_current(page):
    assert markdown() in (ROOT / "docs" / page).read_text(), "run: python -m rookery.catalogue"


def test_the_table_of_tasks_is_current():
    assert tasks_markdown() in (ROOT / "docs" / "tasks.md").read_text(), "run: python -m rookery.catalogue"


def test_catalogue():
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["MeFBO"].second_derivatives is False
    assert entries["MeFBO"].unequal_steps is True
    assert entries["MeFBO"].constraints == "x, y"
    assert entries["FedAvg"].constraints == "y"
    assert entries["FedBiOAcc"].exchanges == 2
    assert entries["FedBiOAcc"].unequal_steps is False
    assert entries["FedNest"].exchanges == 2 * 1 + 5 + 3
    assert entries["PrimalDual"].solves == "weighting"
    assert entries["GD-CW"].kind == "ExactGD"
    assert all(getattr(rk, entry.kind) is rk.registry[entry.name] for entry in entries.values())
    assert all(entry.paper for entry in entries.values())
    assert all(entry.status and set(entry.status.split(", ")) <= set(STATUSES) for entry in entries.values())


def test_every_public_name_stands_on_one_page_of_the_reference():
    pages = {page.name: re.findall(r"^::: rookery\.(\S+)$", page.read_text(), re.M) for page in API.glob("*.md")}
    assert Counter(name for names in pages.values() for name in names) == Counter(rk.__all__), pages


def test_docstrings_are_plain_text_on_the_pages_of_the_reference():
    spec = importlib.util.spec_from_file_location("griffe_rookery", ROOT / "docs" / "griffe_rookery.py")
    reading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reading)
    assert reading.as_markdown("y*(x), an *emphasis*, :class:`Box`") == "y\\*(x), an *emphasis*, ``Box``"
    assert reading.as_markdown("Is:\n\n    y* = ``code``") == "Is:\n\n    y* = code"
    assert reading.as_markdown("a, b      two\nlonger    one") == "    a, b      two\n    longer    one"
    assert reading.as_markdown("Args:\n    y: near y*.") == "Args:\n    y: near y\\*."


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    written = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(written)


def test_words_of_the_glossary_that_pages_link_to_are_there():
    anchors = {slugify(title, "-") for title in re.findall(r"^### (.*)$", GLOSSARY.read_text(), re.M)}
    for page in [*PAGES, *API.glob("*.md")]:
        wanted = set(re.findall(r"glossary\.md#([^)]+)\)", page.read_text()))
        assert wanted <= anchors, f"{page.name}: {wanted - anchors}"


def test_the_version_is_that_of_pyproject():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert rk.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "own_problem" / "index.html").read_text()
    assert "five hospitals" in page
    reference = (tmp_path / "site" / "api" / "bilevel" / "index.html").read_text()
    assert "rookery.FedBiO" in reference
    assert "eta_x" in reference, "the fields of an Equinox module are its signature"
