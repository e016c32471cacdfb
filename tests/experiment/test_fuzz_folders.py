"""Folders of runs that were damaged: what is read is what was written, or one error that is documented."""

import json
import math
import shutil
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rookery.cli import main as cli
from rookery.experiment.checkpoint import newest
from rookery.experiment.folder import read_config, read_run
from rookery.experiment.running import prepare_run, resume_run, start_run
from rookery.experiment.settings import Settings, read_settings, resolve
from tests.helpers.fuzzing import examples

SMALL = {"task": "hyper-representation", "algorithm": "FedBiO", "rounds": 12, "every": 3, "seeds": 2, "clients": 10,
         "participants": 4, "batch_size": 8}  # fmt: skip
PARTS = ("manifest", "older manifest", "arrays", "history", "config")


class Stop(Exception):
    pass


def stop(state, history):
    if state.round >= 9:
        raise Stop


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(a finished run, one that was stopped after round 9)."""
    place = tmp_path_factory.mktemp("folders")
    settings = resolve(SMALL, {"hidden": 4})
    start_run(settings, place / "whole", checkpoint_seconds=0)
    with pytest.raises(Stop):
        start_run(settings, place / "stopped", checkpoint_seconds=0, watch=stop)
    return place / "whole", place / "stopped"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


def part(folder: Path, name: str) -> Path:
    older, newer = sorted((folder / "checkpoints").glob("*.json"))
    return {
        "manifest": newer,
        "older manifest": older,
        "arrays": newer.with_suffix(".safetensors"),
        "history": folder / "history.csv",
        "config": folder / "config.toml",
    }[name]


# --- damage ----------------------------------------------------------------------------------------------------------

JUNK = st.sampled_from([b"", b"\0", b"\xff", b"[", b"]", b"{", b"}", b"null", b"-", b"9", b".", b"e5", b",", b"\n", b'"',
                        b"=", b"nan", b"Infinity", b"[" * 5000, b"9" * 5000])  # fmt: skip
PLACE = st.floats(0, 1, exclude_max=True)


@st.composite
def damages(draw):
    """A function of bytes: a bit flipped, a piece lost, doubled, moved or overwritten, a digit that is another one."""
    kind = draw(st.sampled_from(["flip", "cut", "lose", "double", "write", "digit", "digit"]))
    at, length, bit, junk = draw(PLACE), draw(st.integers(1, 40)), draw(st.integers(0, 7)), draw(JUNK)

    def damage(body: bytes) -> bytes:
        if not any(48 <= byte <= 57 for byte in body):
            return b""  # a second damage has little left
        i = int(at * len(body))
        if kind == "flip":
            return body[:i] + bytes([body[i] ^ 1 << bit]) + body[i + 1 :]
        if kind == "cut":
            return body[:i]
        if kind == "lose":
            return body[:i] + body[i + length :]
        if kind == "double":
            return body[: i + length] + body[i:]
        if kind == "write":
            return body[:i] + junk + body[i + length :]
        digits = [k for k, byte in enumerate(body) if 48 <= byte <= 57]
        i = digits[int(at * len(digits))]
        return body[:i] + bytes([48 + (body[i] - 48 + 1 + bit) % 10]) + body[i + 1 :]

    return damage


def damaged(folder: Path, place: Path, *changes) -> Path:
    """A copy of a run with some files changed."""
    copy = place / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    for name, damage in changes:
        path = part(copy, name)
        path.write_bytes(damage(path.read_bytes()))
    return copy


def read_or_refused(read, path):
    """(what was read, None) or (None, why not)."""
    try:
        return read(path), None
    except ValueError as error:
        return None, str(error)


CHANGES = st.lists(st.tuples(st.sampled_from(PARTS), damages()), min_size=1, max_size=2)


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.fuzz
def test_what_is_read_is_what_was_written_or_it_is_refused(folders, place):
    """The configuration and the history of a finished run, which reports are made of."""
    whole = read_run(folders[0])

    @examples(60, 3000)
    @given(CHANGES)
    def holds(changes):
        copy = damaged(folders[0], place, *changes)
        found, _ = read_or_refused(read_run, copy)
        if found is None:
            return
        assert found.config == whole.config
        hit = {name.removeprefix("older ") for name, _ in changes}
        if not {"manifest", "history"} <= hit:  # one of the two tells of the other
            assert found.history.as_csv() == whole.history.as_csv()

    holds()


@pytest.mark.fuzz
def test_a_run_goes_on_from_a_checkpoint_that_was_written_or_from_none(folders, place):
    prepared, _ = prepare_run(resolve(SMALL, {"hidden": 4}))
    seal = read_config(folders[1])["checksum"]["sha256"]
    last = newest(folders[1], prepared.run, seal)
    first = damaged(folders[1], place, ("manifest", lambda body: b""))
    genuine = {int(found.state.round): found for found in (last, newest(first, prepared.run, seal))}
    assert len(genuine) == 2

    @examples(60, 3000)
    @given(st.lists(st.tuples(st.sampled_from(PARTS[:4]), damages()), min_size=1, max_size=2))
    def holds(changes):
        found = newest(damaged(folders[1], place, *changes), prepared.run, seal)
        if found is None:
            return
        told = genuine[int(found.state.round)]
        assert found.memory == told.memory
        assert found.history.as_csv() == told.history.as_csv()
        for a, b in zip(*(jax.tree.leaves(each.state) for each in (found, told)), strict=True):
            np.testing.assert_array_equal(a, b)

    holds()


@pytest.mark.fuzz
def test_a_damaged_run_that_resumes_ends_as_it_would_have(folders, place, capsys):
    whole, stopped = folders
    expected = (whole / "result.safetensors").read_bytes()
    history = read_run(whole).history

    @examples(6, 150)
    @given(CHANGES)
    def holds(changes):
        copy = damaged(stopped, place, *changes)
        try:
            resume_run(copy)
        except ValueError:
            assert any(name == "config" for name, _ in changes)  # all else can be left out
            return
        assert (copy / "result.safetensors").read_bytes() == expected
        found = read_run(copy).history
        for name in history.columns:
            if name != "seconds":
                np.testing.assert_array_equal(found[name], history[name])
        assert sorted(each.name for each in place.iterdir()) == ["run"]
        capsys.readouterr()

    holds()


@pytest.mark.fuzz
def test_the_report_of_a_damaged_run_is_a_page_or_one_line(folders, place, monkeypatch):
    monkeypatch.setattr("rookery.cli.output.plot_curves", lambda *_: None)  # which takes a second
    page = place.with_name("page")

    @examples(30, 500)
    @given(CHANGES, st.sampled_from([0, 1]))
    def holds(changes, which):
        copy = damaged(folders[which], place, *changes)
        done = CliRunner().invoke(cli.app, ["report", str(copy), "--out", str(page / "report.html")])
        if done.exit_code == 0:
            return
        assert done.exit_code == 2, (done.output, done.exception)
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stderr.startswith("Error: ")

    holds()


# --- settings that somebody wrote ------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(-3, 300), st.sampled_from([10**9, 10**18, 2**63 - 1, -(2**63)]), st.floats())
WORDS = st.one_of(
    st.sampled_from(["all", "None", "", "5-15", "0.5", "1,2", "Power", "٣", "1e3", "-1"]), st.text(max_size=5)
)
SCALARS = st.one_of(st.booleans(), NUMBERS, WORDS)
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(WORDS, each, max_size=2), max_leaves=4
)


@pytest.mark.fuzz
def test_settings_are_understood_or_refused_by_name(tmp_path):
    tables = resolve(SMALL, {"hidden": 4}, {"eta_x": {"schedule": "Power", "scale": 1, "exponent": 0.5}}).tables()
    places = [(table, key) for table, values in tables.items() for key in (*values, "unheard_of")]
    places += [("algorithm", "eta_x", key) for key in ("schedule", "scale", "exponent", "shift")]
    places += [(table,) for table in tables]
    names = [*{key for where in places for key in where}, "participants", "local_steps", "batch_size"]

    @examples(150, 3000)
    @given(st.lists(st.tuples(st.sampled_from(places), st.none() | VALUES), min_size=1, max_size=3))
    def holds(changes):
        made = tomllib.loads(tomli_w.dumps(tables))
        for (*where, last), value in changes:
            table = made
            for key in where:
                table = table.get(key) if isinstance(table, dict) else None
            if isinstance(table, dict):
                table.pop(last, None)
                if value is not None:
                    table[last] = value
        path = tmp_path / "settings.toml"
        path.write_text(tomli_w.dumps(made))
        found, refused = read_or_refused(read_settings, path)
        if found is None:
            assert any(name in refused for name in names)
            return
        assert isinstance(found, Settings)
        assert all(math.isfinite(each) for each in (found.clients, found.rounds, found.every, found.seed, found.seeds))
        assert json.dumps(resolve(*found.tables().values()).tables()) == json.dumps(found.tables())

    holds()
