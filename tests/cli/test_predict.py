"""``rookery predict``: new rows get what the model in memory says of them."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

from rookery.cli.main import app
from rookery.datasets import OwnFile
from rookery.experiment.settings import read_settings
from tests.cli.test_own_data import MODELS
from tests.helpers.own_data import KINDS, patients, read_table, write_images, write_table

QUICK = ["--rounds", 2, "--no-tune", "--no-rivals", "--batch-size", "all", "--json"]
TABLE = ["--data", "patients.csv", "--label", "kind", "--ignore", "group", "--ignore", "ok", "--ignore", "site"]
PICTURES = ["--data", "pictures"]
NEW = ["--data", "new.csv"]
RUNS = {
    "linear": ["data-cleaning", *TABLE, "--model", "linear"],
    "mlp": ["loss-tuning", *TABLE, "--model", "mlp:5"],
    "own": ["fair-classification", *TABLE, "--model", "models.py:make"],
    "two parts": ["hyper-representation", *TABLE, "--model", "mlp:5", "--set", "hidden=4"],
    "score": ["auroc", *TABLE, "--set", "positive=bad", "--model", "linear"],
    "cnn": ["fair-classification", *PICTURES, "--model", "cnn"],
}
COLUMNS = ["dose", "site", "sex", "age"]  # in another order, without labels


def rookery(*arguments, code=0):
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    write_table(folder / "patients.csv", patients())
    write_table(folder / "new.csv", patients()[::-7], COLUMNS)
    write_images(folder / "pictures")
    (folder / "models.py").write_text(MODELS)
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def done(here):
    """Makes a run when it is first asked for."""

    def run(name):
        if not (here / name).exists():
            rookery("run", *RUNS[name], *QUICK, "--clients", 2, "--out", name)
        return here / name

    return run


def in_memory(folder, inputs):
    """The outputs of the network at the last iterate, filled from the result by the names of its arrays."""
    task = read_settings(folder / "config.toml").make_tasks()[0]
    found = load_file(folder / "result.safetensors")

    def last(part, start):
        paths = jax.tree_util.tree_leaves_with_path(start)
        leaves = [
            jnp.asarray(found[".".join([part, jax.tree_util.keystr(path, simple=True, separator=".")]).rstrip(".")][0])
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else leaf
            for path, leaf in paths
        ]  # fmt: skip
        return jax.tree.unflatten(jax.tree.structure(start), leaves)

    x, y = last("x", task.x0), last("y", task.y0)
    scored = task.evaluate
    if hasattr(scored, "ranked"):
        return np.asarray(scored.ranked.objective.output(x["net"], jnp.asarray(inputs)))[:, None]
    if hasattr(scored, "worst"):
        return np.asarray(scored.worst.test.logits(None, x, jnp.asarray(inputs)))
    score = getattr(scored, "test", scored)
    return np.asarray(score.logits(x, y, jnp.asarray(inputs)))


def shares(outputs):
    if outputs.shape[1] == 1:
        return 1 / (1 + np.exp(-outputs))
    away = np.exp(outputs - outputs.max(1, keepdims=True))
    return away / away.sum(1, keepdims=True)


@pytest.mark.parametrize("name", [name if name == "linear" else pytest.param(name, marks=pytest.mark.slow)
                                  for name in RUNS if name != "cnn"])  # fmt: skip
def test_new_rows_get_what_the_model_in_memory_says(here, done, name):
    folder = done(name)
    told = json.loads(rookery("predict", folder, *NEW, "--ignore", "site", "--out", "p.csv", "--json").stdout)
    rows = read_table(here / "p.csv")
    new = patients()[::-7]
    assert [int(row["row"]) for row in rows] == list(range(len(new)))
    data = OwnFile("patients.csv", "kind", ignore=("group", "ok", "site")).read()
    where = {int(row): place for place, row in enumerate([*data.train_rows, *data.test_rows])}
    inputs = np.concatenate([data.train_inputs, data.test_inputs])[[where[number] for number in range(180)]][::-7]
    expected = shares(in_memory(folder, inputs))
    names = ["bad"] if name == "score" else list(KINDS)
    found = np.array([[float(row[f"p_{each}"]) for each in names] for row in rows])
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # six digits are written
    chosen = [row["prediction"] for row in rows]
    if name == "score":
        assert set(chosen) <= {"bad", "not bad"}
        assert [each == "bad" for each in chosen] == (expected[:, 0] >= 0.5).tolist()
    else:
        assert chosen == [KINDS[place] for place in expected.argmax(1)]
    assert told == {"file": "p.csv", "rows": len(new), "predictions": {each: chosen.count(each) for each in chosen}}


def test_labels_may_be_there_and_columns_in_any_order(here, done):
    folder = done("linear")
    rookery("predict", folder, *NEW, "--ignore", "site", "--out", "one.csv")
    write_table(here / "labelled.csv", patients()[::-7])  # with label, client, checks
    result = rookery("predict", folder, "--data", "labelled.csv", "--out", "deep/two.csv")
    assert (here / "one.csv").read_bytes() == (here / "deep" / "two.csv").read_bytes()
    counts = [line for line in result.stdout.splitlines() if line.startswith("26 rows: ")]
    assert len(counts) == 1
    assert "Predictions: deep/two.csv" in result.stdout
    rookery("predict", folder / "model.safetensors", *NEW, "--ignore", "site", "--out", "three.csv")
    assert (here / "three.csv").read_bytes() == (here / "one.csv").read_bytes()


def test_a_moved_run_predicts_with_nothing_but_its_folder(here, done, tmp_path):
    folder = shutil.copytree(done("own"), tmp_path / "moved")
    rookery("predict", done("own"), *NEW, "--ignore", "site", "--out", "one.csv")
    content = (here / "models.py").read_text()
    (here / "models.py").unlink()
    try:
        rookery("predict", folder, *NEW, "--ignore", "site", "--out", "two.csv")
        assert (here / "one.csv").read_bytes() == (here / "two.csv").read_bytes()
        (folder / "model.py").write_text(content + "\n# changed\n")
        refuse(here, [folder, *NEW], "is not the file that the model in")
    finally:
        (here / "models.py").write_text(content)


@pytest.mark.slow
def test_images(here, done):
    folder = done("cnn")
    paths = sorted(str(path.relative_to(here / "pictures")) for path in (here / "pictures").glob("*/*.png"))
    rookery("predict", folder, *PICTURES, "--out", "p.csv")
    rows = read_table(here / "p.csv")
    assert [row["row"] for row in rows] == paths
    inputs = np.stack([np.asarray(Image.open(here / "pictures" / path)) for path in paths])
    found = np.array([[float(row[f"p_line {label}"]) for label in range(6)] for row in rows])
    np.testing.assert_allclose(found, shares(in_memory(folder, inputs)), rtol=1e-4)
    Image.fromarray(inputs[5]).save(here / "one.png")
    rookery("predict", folder, "--data", "one.png", "--out", "p.csv")
    (row,) = read_table(here / "p.csv")
    assert [row[f"p_line {label}"] for label in range(6)] == [rows[5][f"p_line {label}"] for label in range(6)]
    refuse(here, [folder, "--data", "new.csv"], "must be images, as the model was trained on")
    Image.new("L", (9, 8)).save(here / "other.png")
    refuse(here, [folder, "--data", "other.png"], "9×8 pixels, must be 8×8 as the model's")


def refuse(here, arguments, message):
    """One line, status 2, no file."""
    result = rookery("predict", *arguments, "--out", "refused/p.csv", code=2)
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("Warning: ")]
    assert line.startswith("Error: ")
    assert message in line
    assert not (here / "refused").exists()


def test_what_cannot_be_predicted_is_one_line(here, done):
    folder = done("linear")
    fewer = write_table(here / "fewer.csv", patients(), ["age", "sex", "kind"])
    more = write_table(here / "more.csv", [{**row, "height": "1"} for row in patients()])
    words = write_table(here / "words.csv", [{**row, "age": "old"} for row in patients()])
    holes = write_table(here / "holes.csv", [{**row, "age": ""} for row in patients()])
    (here / "empty").mkdir()
    for arguments, message in (
        (["nowhere", *NEW], "nowhere has no model.safetensors: there is no such folder"),
        (["empty", *NEW], "empty has no model.safetensors: it is no run that is done"),
        ([folder, "--data", "nowhere.csv"], "nowhere.csv': there is no such file or folder"),
        ([folder, "--data", fewer], "other columns than the training data: without 'dose'"),
        ([folder, "--data", more], "other columns than the training data: with 'height' in addition"),
        ([folder, "--data", words], "column 'age', row 0: 'old'"),
        ([folder, "--data", holes], "missing values: 180 in 'age'"),
        ([folder, "--data", "pictures"], "images, must be a table as the training data"),
        ([folder, *NEW, "--ignore", "age"], "ignore='age': is a column that the model was trained on"),
    ):
        refuse(here, arguments, message)
    damaged = shutil.copytree(folder, here / "damaged")
    (damaged / "model.safetensors").write_bytes(b"x" * 100)
    refuse(here, [damaged, *NEW], "model.safetensors is damaged, or no file of a model")
    rookery("predict", folder, "--data", holes, "--fill", "--out", "filled.csv")
    assert len(read_table(here / "filled.csv")) == 180


@pytest.mark.slow
def test_a_task_without_a_model_says_so(here):
    few = ["--set", "queries=1", "--set", "tasks=2", "--set", "test_tasks=2", "--model", "linear", "--clients", 2]
    rookery("run", "few-shot", *PICTURES, *few, *QUICK, "--out", "few")
    refuse(here, ["few", *PICTURES], "few has no model.safetensors: its task stores no model")


@pytest.mark.slow
def test_of_two_classes_the_other_one_is_named(here):
    write_table(here / "two.csv", [{**row, "kind": "ill" if row["kind"] == "bad" else "well"} for row in patients()])
    rookery(
        "run", "auroc", "--data", "two.csv", *TABLE[2:], "--model", "linear", *QUICK, "--clients", 2, "--out", "two"
    )
    rookery("predict", "two", *NEW, "--ignore", "site", "--out", "p.csv")
    for row in read_table(here / "p.csv"):
        assert row["prediction"] == ("ill" if float(row["p_ill"]) >= 0.5 else "well")
