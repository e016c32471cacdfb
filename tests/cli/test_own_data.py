"""One's own data with the command, as a user would try it: every task on a table and on images, and what goes wrong."""

import json
import os
import shutil
import signal
import tomllib
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from rookery.cli.main import app
from rookery.experiment.folder import read_run
from rookery.report import write_page
from rookery.report.page import page_data
from tests.helpers.own_data import KINDS, SITES, patients, read_table, write_images, write_table
from tests.helpers.own_problem import MAKE

QUICK = ["--rounds", 3, "--no-tune", "--batch-size", "all", "--json"]
LEAN = [*QUICK, "--no-rivals"]
TABLE = ["--data", "patients.csv", "--label", "kind", "--client-column", "site", "--ignore", "group"]
CHECKED = [*TABLE, "--checked-column", "ok"]
UNCHECKED = [*TABLE, "--ignore", "ok"]
MODELS = """
import equinox as eqx

def make(shape, outputs, key):
    return eqx.nn.Linear(shape[0], outputs, key=key)

def wide(shape, outputs, key):
    return eqx.nn.Linear(shape[0], outputs + 1, key=key)

def boom():
    raise RuntimeError("no luck" + chr(10) + "today")
"""
FEW = ["--set", "queries=1", "--set", "tasks=2", "--set", "test_tasks=3", "--model", "mlp:4"]
GROUPED = [
    "--data",
    "patients.csv",
    "--label",
    "group",
    "--client-column",
    "site",
    "--ignore",
    "kind",
    "--ignore",
    "ok",
]
ON_TABLE = {
    "hyper-representation": [*CHECKED, "--set", "hidden=4"],
    "data-cleaning": [*CHECKED, "--set", "noise=0.4", "--set", "always_wrong=true"],
    "loss-tuning": [*CHECKED, "--model", "linear"],
    "few-shot": [*GROUPED, *FEW],
    "fair-classification": [*UNCHECKED, "--model", "mlp:4"],
    "auroc": [*UNCHECKED, "--set", "positive=bad", "--model", "linear"],
    "client-weighting": [*CHECKED, "--model", "linear", "--set", "noisy=1"],
}
IMAGES = ["--data", "pictures", "--clients", 2]
ON_IMAGES = {
    "hyper-representation": [*IMAGES, "--set", "hidden=4"],
    "data-cleaning": [*IMAGES, "--set", "noise=0.4"],
    "loss-tuning": [*IMAGES, "--model", "linear"],
    "few-shot": [*IMAGES, *FEW],
    "fair-classification": [*IMAGES, "--model", "mlp:4"],
    "auroc": [*IMAGES, "--set", "positive=line 0,line 1", "--model", "linear"],
    "client-weighting": [*IMAGES, "--model", "linear", "--set", "validation=2"],
}
SHOWN = {
    "hyper-representation": ["bars"],
    "data-cleaning": ["samples", "bars"],
    "loss-tuning": ["bars", "table"],
    "few-shot": ["groups"],
    "fair-classification": ["bars", "bars"],
    "auroc": ["lines"],
    "client-weighting": ["bars", "history", "bars"],
}
TABLES = {
    "data-cleaning": {"weights.csv"},
    "loss-tuning": {"class_weights.csv"},
    "fair-classification": {"class_weights.csv"},
    "client-weighting": {"clients.csv"},
}
ALWAYS = {"config.toml", "history.csv", "log.txt", "checkpoints", "result.safetensors", "learned.json"}


def rookery(*arguments, code=0):
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with data and models, which is where all commands are given."""
    folder = tmp_path_factory.mktemp("own")
    write_table(folder / "patients.csv", patients())
    write_images(folder / "pictures")
    (folder / "models.py").write_text(MODELS)
    (folder / "problem.py").write_text(MAKE)
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def cleaned(here):
    """A run with planted noise."""
    rookery("run", "data-cleaning", *ON_TABLE["data-cleaning"], *LEAN, "--out", "cleaned")
    return here / "cleaned"


def names_in(folder):
    return {each.name for each in folder.iterdir() if each.name != ".lock"}


def check_report(folder, shown):
    """The page is made, and nothing of it is damaged."""
    run = read_run(folder)
    exhibits = json.loads((folder / "learned.json").read_text())["exhibits"]
    assert [each["kind"] for each in exhibits] == shown
    write_page([run], folder / "page.html")
    (section,) = page_data([run])["sections"]
    assert section["learned"]["problems"] == []
    assert section["conclusion"]


def test_a_run_leaves_files_for_people(cleaned):
    assert names_in(cleaned) == ALWAYS | {"weights.csv", "model.safetensors"}
    check_report(cleaned, ["samples", "bars"])


def test_weights_have_a_row_for_each_sample_that_may_be_wrong(cleaned):
    rows, patient = read_table(cleaned / "weights.csv"), patients()
    samples = [int(row["sample"]) for row in rows]
    assert len(set(samples)) == len(samples) == len(load_file(cleaned / "result.safetensors")["x"].reshape(-1))
    assert all(patient[each]["ok"] == "no" for each in samples)
    assert set(samples) == {
        number for number, row in enumerate(patient) if row["ok"] == "no"
    }  # the test rows are checked
    for row in rows:
        told = patient[int(row["sample"])]
        assert row["client"] == told["site"]
        assert row["planted_wrong"] == ("no" if row["given_label"] == told["kind"] else "yes")
        assert row["prediction"] in KINDS
    weights = np.array([float(row["weight"]) for row in rows])
    assert (np.diff(weights) >= 0).all()
    wrong = Counter(row["planted_wrong"] for row in rows)["yes"]
    assert wrong == round(0.4 * len(rows))
    suspicious = [row["suspicious"] == "yes" for row in rows]
    assert suspicious == sorted(suspicious, reverse=True)
    assert 0 < sum(suspicious) < len(rows)


def test_the_suspicious_are_shown_as_they_stand_in_the_file(cleaned):
    shown = json.loads((cleaned / "learned.json").read_text())["exhibits"][0]
    first = read_table(cleaned / "weights.csv")[0]
    item, told = shown["items"][0], patients()[int(first["sample"])]
    assert item["cells"][:3] == [first["sample"], first["client"], first["given_label"]]
    values = dict(item["values"])
    assert set(values) == {"age", "sex", "dose"}
    assert values["sex"] == told["sex"]
    np.testing.assert_allclose([values["age"], values["dose"]], [float(told["age"]), float(told["dose"])], rtol=1e-4)


def test_a_toml_file_runs_it_again_with_the_same_iterates(here, cleaned):
    rookery("run", "cleaned/config.toml", "--no-rivals", "--json", "--out", "again")
    first, second = (load_file(each / "result.safetensors") for each in (cleaned, here / "again"))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    assert (here / "again" / "weights.csv").read_bytes() == (cleaned / "weights.csv").read_bytes()
    tables = [tomllib.loads((each / "config.toml").read_text()) for each in (cleaned, here / "again")]
    for name in ("data", "task", "algorithm"):
        assert tables[0][name] == tables[1][name]


def test_a_finished_run_resumes_and_reports_without_its_data(here, cleaned):
    copy = shutil.copytree(cleaned, here / "copy")
    for name in ("learned.json", "weights.csv"):
        (copy / name).unlink()
    result = rookery("resume", "copy")
    assert "finished" in result.stderr
    assert "Report: copy/report.html" in result.stdout
    assert (copy / "report.html").is_file()
    assert (copy / "weights.csv").read_bytes() == (cleaned / "weights.csv").read_bytes()
    moved = (here / "patients.csv").rename(here / "moved.csv")
    try:
        rookery("report", "copy", "--out", "elsewhere.html")
        for line in (["resume", "copy"], ["run", "copy/config.toml", "--out", "bad"]):
            check_one_line(rookery(*line, code=2), "patients.csv': there is no such file or folder", here)
        write_table(here / "patients.csv", patients(), ["age", *(name for name in patients()[0] if name != "age")])
        with open(here / "patients.csv", "a") as file:
            file.write("1,f,1,north,bad,group u,no\n")
        for line in (["resume", "copy"], ["run", "copy/config.toml", "--out", "bad"]):
            check_one_line(rookery(*line, code=2), "patients.csv is not what it was when copy was written", here)
    finally:
        moved.replace(here / "patients.csv")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "client-weighting" else pytest.mark.slow) for name in ON_TABLE]
)
def test_each_task_on_a_table(here, name):
    folder = here / f"table-{name}"
    rookery("run", name, *ON_TABLE[name], *LEAN, "--out", folder)
    model = set() if name == "few-shot" else {"model.safetensors"}
    assert names_in(folder) == ALWAYS | TABLES.get(name, set()) | model
    check_report(folder, [] if name == "few-shot" else SHOWN[name])
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["run"]["clients"] == 3
    assert config["data"]["file"] == str(here / "patients.csv")
    if name == "client-weighting":
        rows = read_table(folder / "clients.csv")
        assert [row["client"] for row in rows] == list(SITES)
        assert [row["planted_noise"] for row in rows] == ["no", "no", "yes"]
        sizes = Counter(row["site"] for row in patients() if row["ok"] == "no")
        assert [int(row["examples"]) for row in rows] == [sizes[site] for site in SITES]
        np.testing.assert_allclose(sum(float(row["weight"]) for row in rows), 1, atol=1e-5)
    if "class_weights.csv" in TABLES.get(name, set()):
        rows = read_table(folder / "class_weights.csv")
        assert [row["class"] for row in rows] == list(KINDS)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ON_IMAGES])
def test_each_task_on_images(here, name):
    folder = here / f"images-{name}"
    rookery("run", name, *ON_IMAGES[name], *LEAN, "--out", folder)
    check_report(folder, SHOWN[name])
    if name == "data-cleaning":
        rows = read_table(folder / "weights.csv")
        assert {row["client"] for row in rows} == {"1", "2"}
        for row in rows:
            assert (here / "pictures" / row["sample"]).is_file()
            assert row["planted_wrong"] == ("no" if row["given_label"] == row["sample"].split("/")[0] else "yes")
        shown = json.loads((folder / "learned.json").read_text())["exhibits"][0]["items"][0]
        assert shown["image"]["shape"] == [8, 8, 1]
    if name == "few-shot":
        (groups,) = json.loads((folder / "learned.json").read_text())["exhibits"]
        assert len(groups["groups"]) == 3
        assert len(groups["groups"][0]["support"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TABLE)
def test_each_task_has_rivals_that_its_report_shows(here, name):
    folder = here / f"rivals-{name}"
    rookery("run", name, *ON_TABLE[name], *QUICK, "--seeds", 2, "--out", folder)
    told = json.loads((folder / "rivals.json").read_text())
    assert len(told["rivals"]) >= 2
    for each in told["rivals"]:
        assert len(each["metrics"][told["metric"]]) == 2
    check_report(folder, [] if name == "few-shot" else SHOWN[name])
    page = page_data([read_run(folder)])["sections"][0]
    assert [each["name"] for each in page["rivals"]] == [each["name"] for each in told["rivals"]]


@pytest.mark.slow
def test_the_test_file_never_trains(here):
    """Neither in the run nor in the search for rates."""
    rows = patients()
    write_table(here / "test.csv", rows[:60])
    poisoned = [
        {**row, "age": str(1e4 * (1 + number)), "kind": KINDS[number % 3]} for number, row in enumerate(rows[:60])
    ]
    write_table(here / "poisoned.csv", poisoned)
    folders = []
    for name in ("test", "poisoned"):
        folders.append(here / f"tested-{name}")
        rookery(
            "run", "data-cleaning", *CHECKED, "--test", f"{name}.csv", "--rounds", 4, "--budget", 3, "--json",
            "--no-rivals", "--out", folders[-1],
        )  # fmt: skip
    first, second = (load_file(folder / "result.safetensors") for folder in folders)
    for name in ("x", "y.weight", "y.bias"):
        assert first[name].tobytes() == second[name].tobytes(), name
    losses = [read_run(folder).history["loss"] for folder in folders]
    assert not np.array_equal(*losses)


@pytest.mark.slow
def test_compare_tune_and_sweep_take_data_of_one_s_own(here):
    data = [*CHECKED, "--rounds", 3, "--batch-size", "all", "--json"]
    rookery(
        "compare",
        "data-cleaning",
        *data,
        "--algorithms",
        "MeFBO,FedBiO",
        "--no-tune",
        "--set",
        "noise=0.3",
        "--out",
        "c",
    )
    assert (here / "c" / "rivals.json").is_file()
    assert all((here / "c" / name / "weights.csv").is_file() for name in ("MeFBO", "FedBiO"))
    runs = [read_run(here / "c" / name) for name in ("MeFBO", "FedBiO")]
    (section,) = page_data(runs)["sections"]
    assert section["learned"]["problems"] == []
    assert len(section["rivals"]) == 4
    rookery("tune", "data-cleaning", *data, "--budget", 3, "--out", "t")
    rookery("run", "t/MeFBO.toml", "--no-rivals", "--json", "--out", "tuned")
    rookery("sweep", "data-cleaning", *data, "--grid", "gamma_x=1,10", "--out", "s")
    rookery("run", "s/best.toml", "--no-rivals", "--json", "--out", "swept")
    for name in ("tuned", "swept"):
        assert len(read_table(here / name / "weights.csv")) == 90


@pytest.fixture(scope="module")
def beside_rivals(here):
    rookery("run", "data-cleaning", *ON_TABLE["data-cleaning"], *QUICK, "--out", "beside-rivals")
    return here / "beside-rivals"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["rounds", "rivals"])
def test_a_run_that_was_stopped_goes_on_and_leaves_the_same(here, beside_rivals, monkeypatch, moment):
    if moment == "rounds":
        from rookery.experiment import checkpoint, running

        def save(folder, saved, seal, run):
            checkpoint.save_checkpoint(folder, saved, seal, run)
            if int(saved.state.round) == 1:
                signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(running, "save_checkpoint", save)
    else:
        from rookery.experiment import outcome

        def hold(*_):
            signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(outcome, "hold", hold)
    folder = here / f"stopped-{moment}"
    line = ["run", "data-cleaning", *ON_TABLE["data-cleaning"], *QUICK, "--checkpoint-seconds", 0, "--out", folder]
    assert rookery(*line, code=143).stderr.strip().endswith(f"Terminated. Continue with: rookery resume {folder}")
    assert not (folder / "rivals.json").exists()
    monkeypatch.undo()
    rookery("resume", folder, "--json")
    for name in ("result.safetensors", "weights.csv", "learned.json"):
        assert (folder / name).read_bytes() == (beside_rivals / name).read_bytes(), name
    first, second = (json.loads((each / "rivals.json").read_text()) for each in (beside_rivals, folder))
    assert first["rivals"] == second["rivals"]


def cancer(folder):
    found = load_breast_cancer()
    rows = [
        {**dict(zip(found.feature_names, map(str, values), strict=True)), "diagnosis": found.target_names[label]}
        for values, label in zip(found.data, found.target, strict=True)
    ]
    write_table(folder / "c.csv", rows)
    return ["--data", "c.csv", "--label", "diagnosis"]


def digits(folder):
    found = load_digits()
    for number, (pixels, digit) in enumerate(zip(found.images, found.target, strict=True)):
        (folder / "digits" / str(digit)).mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * pixels).astype(np.uint8)).save(folder / "digits" / str(digit) / f"{number:04}.png")
    return ["--data", "digits"]


@pytest.mark.slow
@pytest.mark.parametrize("write", [cancer, digits])
def test_weights_find_the_wrong_labels(here, write):
    """Four in ten labels are wrong; no rate is given."""
    folder = here / f"found-{write.__name__}"
    wrong = ["--set", "noise=0.4", "--set", "always_wrong=true"]
    rookery("run", "data-cleaning", *write(here), *wrong, "--no-rivals", "--json", "--out", folder)
    rows = read_table(folder / "weights.csv")
    planted = [row["planted_wrong"] == "yes" for row in rows]
    assert sum(planted) == round(0.4 * len(rows))
    assert roc_auc_score(planted, [-float(row["weight"]) for row in rows]) >= 0.9
    assert roc_auc_score(planted, [row["suspicious"] == "yes" for row in rows]) >= 0.9


def changed(change):
    """The patients with something changed, as a file of its own."""

    def write(folder):
        rows = [dict(row) for row in patients()]
        write_table(folder / "bad.csv", change(rows) or rows)

    return write


def with_cells(column, value, where=lambda number, row: number == 4):
    def change(rows):
        for number, row in enumerate(rows):
            if where(number, row):
                row[column] = value

    return changed(change)


def images(change):
    def write(folder):
        shutil.copytree(folder / "pictures", folder / "bad")
        change(folder / "bad")

    return write


BAD_TABLE = ["--data", "bad.csv", *TABLE[2:]]
PICTURES = ["--data", "bad", "--clients", 2]
BAD = {
    "no file": (None, "data-cleaning", ["--data", "nowhere.csv", "--label", "kind"], "nowhere.csv': there is no such file"),
    "no folder": (None, "auroc", ["--data", "nowhere"], "nowhere': there is no such file or folder"),
    "no test file": (None, "data-cleaning", [*TABLE, "--test", "gone.csv"], "gone.csv': there is no such file"),
    "label not named": (None, "data-cleaning", TABLE[:2], "label: say which column of"),
    "label missing": (None, "data-cleaning", [*TABLE, "--label", "knd"], "there is no 'knd'; did you mean 'kind'?"),
    "client column missing": (None, "auroc", [*TABLE, "--client-column", "sit"], "there is no 'sit'; did you mean 'site'?"),
    "ignored column missing": (None, "auroc", [*TABLE, "--ignore", "agee"], "there is no 'agee'; did you mean 'age'?"),
    "label constant": (
        with_cells("kind", "bad", lambda *_: True), "loss-tuning", BAD_TABLE, "label 'kind' is constant: all 180 rows"),
    "one class at a client": (
        with_cells("kind", "mild", lambda _, row: row["site"] == "west" and row["kind"] == "bad"), "auroc",
        [*BAD_TABLE, "--ignore", "ok", "--set", "positive=bad"], "client 'west' has negative labels only"),
    "few classes": (None, "few-shot", UNCHECKED, "few-shot needs at least 6 classes, and patients.csv has 3"),
    "a word among numbers": (
        with_cells("age", "old"), "data-cleaning", BAD_TABLE, "column 'age', row 4: 'old'"),
    "a missing cell": (with_cells("dose", ""), "fair-classification", BAD_TABLE, "missing values: 1 in 'dose'"),
    "NaN": (with_cells("dose", "nan"), "fair-classification", BAD_TABLE, "missing values: 1 in 'dose'"),
    "infinite": (with_cells("dose", "inf"), "fair-classification", BAD_TABLE, "column 'dose', row 4: inf is not a finite"),
    "one client": (
        with_cells("site", "north", lambda *_: True), "data-cleaning", BAD_TABLE, "client column 'site' has one value"),
    "a client without checks": (
        with_cells("ok", "no", lambda _, row: row["site"] == "west"), "data-cleaning",
        [*BAD_TABLE, "--checked-column", "ok"], "client 'west' has no checked label"),
    "a check that is neither": (
        with_cells("ok", "perhaps"), "data-cleaning", [*BAD_TABLE, "--checked-column", "ok"],
        "row 4: 'perhaps' is neither true nor false"),
    "ragged": (
        lambda folder: (folder / "bad.csv").write_text("a,b\n1,2\n1,2,3\n"), "data-cleaning",
        ["--data", "bad.csv", "--label", "b"], "row 1 has 3 cells"),
    "not an image": (
        images(lambda folder: (folder / "line 1" / "03.png").write_bytes(b"no image")), "loss-tuning", PICTURES,
        "line 1/03.png: not an image that can be read"),
    "an image of another size": (
        images(lambda folder: Image.new("L", (9, 8)).save(folder / "line 2" / "00.png")), "loss-tuning", PICTURES,
        "line 2/00.png: 9×8 pixels, must be 8×8"),
    "no images": (lambda folder: (folder / "bad").mkdir(), "auroc", PICTURES, "no images in it"),
    "outputs that do not fit": (
        None, "data-cleaning", [*UNCHECKED, "--model", "models.py:wide"], "models.py:wide: gives float"),
    "a model that raises": (
        None, "data-cleaning", [*UNCHECKED, "--model", "models.py:boom"],
        "models.py:boom, line 11: making it failed: RuntimeError: no luck today"),
    "a model that is not there": (
        None, "data-cleaning", [*UNCHECKED, "--model", "models.py:nothing"], "models.py does not define nothing"),
    "no file of a model": (None, "data-cleaning", [*UNCHECKED, "--model", "gone.py:make"], "there is no file"),
    "no such model": (None, "data-cleaning", [*UNCHECKED, "--model", "mpl:3"], "model: there is no 'mpl:3'; did you mean"),
    "widths": (None, "data-cleaning", [*UNCHECKED, "--model", "mlp:a"], "model mlp:a: the widths must be whole numbers"),
    "images for a table": (None, "data-cleaning", [*UNCHECKED, "--model", "cnn"], "model cnn is for images"),
    "a module": (None, "problem.py", TABLE, "--data is for tasks: there is no 'problem.py'"),
    "a task that takes none": (None, "quadratic-bilevel", TABLE, "--data: quadratic-bilevel takes no data of your own"),
    "a label without data": (None, "data-cleaning", TABLE[2:4], "--label says something about data of your own"),
    "a column without data": (None, "auroc", TABLE[4:6], "--client-column says something about data of your own"),
    "fill without data": (None, "auroc", ["--fill"], "--fill says something about data of your own"),
    "two data sets": (None, "data-cleaning", [*TABLE, "--dataset", "digits"], "--dataset digits and --data patients.csv"),
    "clients": (None, "data-cleaning", [*UNCHECKED, "--clients", 4], "clients must be 3, as patients.csv has them, got 4"),
    "a model for none": (None, "quadratic-bilevel", ["--model", "linear"], "--model: quadratic-bilevel has no choice of a"),
    "a column twice": (None, "data-cleaning", [*TABLE, "--ignore", "site"], "'site' is named twice among label"),
    "more clients than rows": (None, "auroc", ["--data", "pictures", "--clients", 900, "--set", "positive=line 0"], "900"),
}  # fmt: skip


def check_one_line(result, message, folder):
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Warning: ")]
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    assert message in lines[0]
    assert "Traceback" not in result.output
    assert not (folder / "bad-run").exists()
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_status_2_and_leaves_nothing(here, case):
    write, task, arguments, message = BAD[case]
    if write is not None:
        write(here)
    try:
        check_one_line(rookery("run", task, *arguments, "--out", "bad-run", code=2), message, here)
    finally:
        shutil.rmtree(here / "bad", ignore_errors=True)
        (here / "bad.csv").unlink(missing_ok=True)


@pytest.mark.parametrize("line", [["compare", "--algorithms", "MeFBO"], ["tune"], ["sweep", "--grid", "gamma_x=1,2"]])
def test_other_commands_refuse_it_too(here, line):
    command, *more = line
    for arguments, message in (
        (["--data", "nowhere.csv", "--label", "kind"], "nowhere.csv': there is no such file"),
        (["--label", "kind"], "--label says something about data of your own"),
        ([*UNCHECKED, "--model", "models.py:wide", "--clients", 3], "models.py:wide: gives float"),
    ):
        result = rookery(command, "data-cleaning", *more, *arguments, "--out", "bad-run", code=2)
        check_one_line(result, message, here)


@pytest.mark.slow
def test_cells_are_filled_on_request_a_model_of_one_s_own_is_copied_and_rivals_are_told(here):
    with_cells("dose", "")(here)
    line = ["--data", "bad.csv", *UNCHECKED[2:], "--fill", "--model", "models.py:make", "--local-steps", 1]
    models = here / "models.py"
    try:
        rookery("run", "fair-classification", *line, *QUICK, "--out", "filled")
        models.write_text(MODELS + "# another\n")
        assert "models.py:make was changed since the run in filled began" in rookery("resume", "filled", code=2).output
    finally:
        models.write_text(MODELS)
        (here / "bad.csv").unlink()
    assert (here / "filled" / "model.py").read_text() == MODELS
    assert tomllib.loads((here / "filled" / "config.toml").read_text())["data"]["fill"] is True
    told = json.loads((here / "filled" / "rivals.json").read_text())
    assert (told["metric"], told["higher_is_better"]) == ("worst_accuracy", True)
    assert [each["name"] for each in told["rivals"]] == ["plain federated averaging", "class balancing"]
    assert all(0 <= each["metrics"]["worst_accuracy"][0] <= 1 for each in told["rivals"])
    check_report(here / "filled", ["bars", "bars"])
