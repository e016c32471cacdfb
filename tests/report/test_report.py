"""The report: statistics over lanes, names, what the page embeds, figures and tables."""

import importlib.resources
import io
import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rookery.experiment.folder import StoredRun
from rookery.problem.oracles import UNITS
from rookery.report import final_table, plot_curves, write_page
from rookery.report.describing import configurations, distinct_names, notes
from rookery.report.page import embedded, page_data
from rookery.report.tables import is_fraction, metrics, peaks, spent, stopped, summary
from rookery.solving.history import History

ALGORITHMS = {
    # name: (final accuracy, rounds to get there, exchanges a round, bytes of a message, hvp a round, noise, rates)
    "MeFBO": (0.957, 70, 1, 35_000, 0, 0.006, {"gamma_x": 3.0, "gamma_y": 0.3, "gamma_theta": 0.3, "nu": 2.0, "c": 1.0}),
    "FedBiO": (0.962, 40, 1, 22_000, 30, 0.004, {"eta_x": 0.3, "eta_y": 0.1, "eta_z": 0.03}),
    "FedBiOAcc": (0.964, 22, 2, 27_500, 60, 0.002, {"eta_x": 1.0, "eta_y": 0.3, "eta_z": 0.1, "c_x": 1.0}),
    "SimFBO": (0.961, 43, 1, 22_000, 30, 0.004, {"gamma_x": 0.3, "gamma_y": 0.1, "gamma_z": 0.03}),
    "ASFBO": (0.932, 80, 1, 22_000, 30, 0.012, {"gamma_x": 0.3, "gamma_y": 0.3, "clip_x": [0.01, 0.3]}),
    "FedNest": (0.944, 60, 9, 24_000, 40, 0.005, {"alpha": {"kind": "power", "start": 0.5, "power": 0.5}, "beta": 0.1}),
}  # fmt: skip


def sample_run(
    name: str, *, seeds: int = 3, rounds: int = 300, every: int = 10, folder: str = "runs", **changes
) -> StoredRun:
    """A run with curves such as digits gives: accuracy rises, loss falls, seeds differ, costs grow."""
    final, pace, exchanges, size, hvp, noise, rates = ALGORITHMS[name]
    random = np.random.default_rng(sum(map(ord, name)))
    history, wander = History(), np.zeros(seeds)
    for round in range(0, rounds + 1, every):
        wander = 0.7 * wander + noise * random.standard_normal(seeds)
        gone = np.exp(-round / pace)
        accuracy = np.clip(final - (final - 0.1) * gone + wander * (0.4 + 4 * gone * (round > 0)), 0, 1)
        lanes = np.ones(seeds, int)
        history.append(
            {
                "round": round,
                "exchanges": round * exchanges * lanes,
                "bytes_down": 10 * round * exchanges * size * lanes,
                "bytes_up": 10 * round * exchanges * size * lanes,
                **dict.fromkeys(UNITS, 0 * lanes),
                "grad_f": 30 * round * lanes,
                "grad_g": 60 * round * lanes,
                "hvp": hvp * round * lanes,
                "jvp": hvp * round * lanes,
                "seconds": 0.6 + 0.004 * round * exchanges if round else 0.0,
                "accuracy": accuracy,
                "loss": 2.3 * (1 - accuracy) / 0.9 + 0.05 * np.exp(wander),
            }
        )
    about = {
        "task": "hyper-representation", "dataset": "digits", "algorithm": name, "clients": 20, "participants": 10,
        "local_steps": 3, "batch_size": 32, "rounds": rounds, "every": every, "seed": 0, "seeds": seeds,
        "metric": "accuracy", "higher_is_better": True,
        "command": f"rookery run hyper-representation --dataset digits --algorithm {name} --rounds {rounds} --seeds {seeds}",
    }  # fmt: skip
    config = {
        "run": {**about, **{key: value for key, value in changes.items() if key != "algorithm"}},
        "task": {"hidden": 32, "rc": 0.01, "iid": True},
        "algorithm": {**rates, **changes.get("algorithm", {})},
        "environment": {"python": "3.11.7", "jax": "0.10.2", "revision": "4e65ad8", "device": "cpu"},
    }
    return StoredRun(Path(folder) / name.lower(), config, history)


def sample_runs() -> list[StoredRun]:
    """Six algorithms, three seeds, thirty evaluations and the start."""
    return [sample_run(name) for name in ALGORITHMS]


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>{{data}}"


def hostile_run() -> StoredRun:
    """Every text of its configuration tries to become HTML."""
    run = sample_run("MeFBO", rounds=50, task=HOSTILE, dataset="<b>d</b>", command=f"rookery {HOSTILE}", note=HOSTILE)
    run.config["run"]["algorithm"] = HOSTILE
    run.config["algorithm"][HOSTILE] = HOSTILE
    for row in run.history:
        row[HOSTILE] = row["loss"]
    return run


def with_bad_seed(run: StoredRun, kind: str) -> StoredRun:
    """Seed 1 diverges at half time: its metrics become NaN ("nan"), or the engine freezes it ("frozen")."""
    half = len(run.history) // 2
    for row in run.history.rows[half + 1 :]:
        for name in metrics(run.history) if kind == "nan" else [n for n in row if np.ndim(row[n])]:
            row[name] = row[name].copy()
            row[name][1] = np.nan if kind == "nan" else run.history.rows[half][name][1]
    return run


def embedded_data(page: str) -> dict:
    """What a browser finds in the page's data element."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


# ---- Statistics


def rows_of(**columns) -> History:
    names = list(columns)
    return History([dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def test_statistics_over_lanes():
    history = rows_of(
        round=[0, 1], exchanges=[np.zeros(3), np.ones(3)], loss=[np.array([1.0, 2, 6]), np.array([4.0, 4, 4])]
    )
    over = summary(history, "loss")
    np.testing.assert_allclose(over.mean, [3, 4])
    np.testing.assert_allclose(over.deviation, [math.sqrt(7), 0])  # n − 1
    np.testing.assert_array_equal([over.low, over.high, over.count], [[1, 4], [6, 4], [3, 3]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_left_out(bad):
    values = [np.array([1.0, 3, bad]), np.array([bad, 5, bad]), np.full(3, bad)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        over = summary(rows_of(round=[0, 1, 2], exchanges=[np.zeros(3)] * 3, loss=values), "loss")
    np.testing.assert_array_equal(over.count, [2, 1, 0])
    np.testing.assert_array_equal(over.mean, [2, 5, np.nan])
    np.testing.assert_array_equal(over.deviation, [math.sqrt(2), np.nan, np.nan])
    np.testing.assert_array_equal(over.high, [3, 5, np.nan])


def test_a_run_without_lanes_has_no_deviation():
    over = summary(rows_of(round=[0, 1], exchanges=[0, 1], loss=[2.0, 1.0]), "loss")
    np.testing.assert_array_equal(over.mean, [2, 1])
    assert np.isnan(over.deviation).all()


def test_a_frozen_lane_is_left_out_from_where_it_stands_still():
    run = with_bad_seed(sample_run("FedBiO"), "frozen")
    still = stopped(run.history)
    assert not still[:, [0, 2]].any()
    assert still[:, 1].tolist() == [False] * 16 + [True] * 15
    accuracy = run.history["accuracy"]
    np.testing.assert_allclose(summary(run.history, "accuracy").mean[-1], accuracy[-1][[0, 2]].mean())
    np.testing.assert_allclose(spent(run.history, "exchanges")[-1], 300)  # what the others paid


def test_algorithms_without_exchanges_are_not_frozen():
    history = rows_of(round=[0, 1, 2], exchanges=[np.zeros(2)] * 3, loss=[np.ones(2)] * 3)
    assert not stopped(history).any()
    assert not stopped(sample_run("FedBiO").history).any()


def test_costs_add_columns():
    history = sample_run("FedNest").history
    last = history.last
    assert spent(history, "megabytes")[-1] == (last["bytes_up"][0] + last["bytes_down"][0]) / 1e6
    assert spent(history, "oracle_calls")[-1] == sum(last[unit][0] for unit in UNITS)
    assert spent(history, "seconds")[-1] == last["seconds"]
    with pytest.raises(ValueError, match=r"one of round, .*got 'miles'"):
        spent(history, "miles")


def test_metrics_are_what_is_one_number_a_lane():
    history = rows_of(
        round=[0, 1], exchanges=[np.zeros(2)] * 2, seconds=[0, 1], loss=[np.ones(2)] * 2, weights=[np.ones(5)] * 2,
        word=["a", "b"], shared=[1, 2],
    )  # fmt: skip
    assert metrics(history) == ["loss", "shared"]
    with pytest.raises(ValueError, match=r"one of loss, shared, got 'accuracy'"):
        summary(history, "accuracy")


def test_a_metric_may_come_in_some_rows_only():
    history = sample_run("FedBiO").history
    for number, row in enumerate(history):
        if number % 10 == 0:
            row["hypergradient"] = np.full(3, 1 / (1 + number))
    np.testing.assert_array_equal(np.isfinite(summary(history, "hypergradient").mean), np.arange(31) % 10 == 0)


@pytest.mark.parametrize(
    ("name", "scale", "percent"),
    [("accuracy", 1, True), ("test_accuracy", 1, True), ("auroc", 1, True), ("validation_error", 1, True),
     ("accuracy", 100, False), ("error", 3, False), ("loss", 1, False)],
)  # fmt: skip
def test_percent_only_for_fractions(name, scale, percent):
    history = rows_of(round=[0, 1], exchanges=[0, 1], **{name: [0.2 * scale, 0.9 * scale]})
    assert is_fraction(name, [history]) is percent


# ---- Names and configurations


def test_names_tell_runs_apart():
    same = [sample_run("FedBiO", folder="a"), sample_run("FedBiO", folder="b")]
    assert distinct_names(same) == ["FedBiO (a/fedbio)", "FedBiO (b/fedbio)"]
    rates = [sample_run("FedBiO", algorithm={"eta_x": eta}) for eta in (0.1, 0.3)]
    assert distinct_names([*rates, sample_run("MeFBO")]) == ["FedBiO (eta_x=0.1)", "FedBiO (eta_x=0.3)", "MeFBO"]
    assert distinct_names([same[0], same[0]]) == ["FedBiO (fedbio) (#1)", "FedBiO (fedbio) (#2)"]
    assert len(set(distinct_names([*same, *rates, *same]))) == 6


def test_configurations_side_by_side():
    runs = [sample_run("FedBiO"), sample_run("SimFBO", batch_size=64), sample_run("FedNest")]
    rows = {(row["table"], row["key"]): row for row in configurations([run.config for run in runs])}
    assert rows["run", "batch_size"]["values"] == ["32", "64", "32"]
    assert rows["run", "batch_size"]["marks"] == [False, True, False]
    assert rows["algorithm", "eta_x"]["values"] == ["0.3", None, None]
    assert rows["algorithm", "eta_x"]["differs"]
    assert not any(rows["algorithm", "eta_x"]["marks"])
    assert rows["algorithm", "alpha"]["values"][2] == "{kind = power, start = 0.5, power = 0.5}"
    assert rows["task", "iid"]["values"] == ["true"] * 3
    assert not rows["task", "iid"]["differs"]
    assert ("run", "command") not in rows  # it has its own place


def test_the_date_is_no_difference():
    runs = [sample_run("FedBiO"), sample_run("FedBiO")]
    for day, run in enumerate(runs, 1):
        run.config["environment"] |= {"date": f"2025-01-0{day}", "git": f"{day}"}
    differing = [row["key"] for row in configurations([run.config for run in runs]) if row["differs"]]
    assert differing == ["git"]


def test_values_without_a_most_common_one_are_all_marked():
    runs = [sample_run("FedBiO", batch_size=size) for size in (16, 32, 64)]
    marks = [row["marks"] for row in configurations([run.config for run in runs]) if row["key"] == "batch_size"]
    assert marks == [[True] * 3]


# ---- The page


def test_page_embeds_the_numbers(tmp_path):
    runs = sample_runs()
    write_page(runs, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = embedded_data(text)
    assert data["title"] == "Hyper-representation on digits"
    assert "<title>Hyper-representation on digits</title>" in text
    (section,) = data["sections"]
    assert [run["name"] for run in section["runs"]] == list(ALGORITHMS)
    for run, shown in zip(runs, section["runs"], strict=True):
        values = shown["metrics"]["accuracy"]
        np.testing.assert_allclose(values["mean"], run.history["accuracy"].mean(1), rtol=1e-7)
        np.testing.assert_allclose(values["deviation"], run.history["accuracy"].std(1, ddof=1), rtol=1e-6)
        np.testing.assert_allclose(values["low"], run.history["accuracy"].min(1), rtol=1e-7)
        assert shown["costs"]["round"] == list(range(0, 301, 10))
        assert shown["command"] == run.config["run"]["command"]
    finals = [run.history["accuracy"][-1].mean() for run in runs]
    accuracy, loss = section["metrics"]
    assert (accuracy["percent"], accuracy["higher"], accuracy["best"]) == (True, True, [int(np.argmax(finals))])
    losses = [run.history["loss"][-1].mean() for run in runs]
    assert (loss["percent"], loss["higher"], loss["best"]) == (False, False, [int(np.argmin(losses))])
    assert section["metric"] == "accuracy"
    assert "server_grad_f" not in section["costs"]  # nobody called it


def test_page_is_one_file_without_network(tmp_path):
    write_page(sample_runs(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG elements, never fetched
    assert not re.search(r"@import|\bsrc=|url\((?!#)", text)
    assert "default-src 'none'" in text
    assert "{{" not in text
    assert len(text) < 100_000


def test_nothing_from_a_configuration_is_html(tmp_path):
    write_page([hostile_run(), sample_run("FedBiO")], tmp_path / "page.html", title=HOSTILE)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = embedded_data(text)
    assert data["title"] == HOSTILE
    assert data["sections"][0]["runs"][0]["name"] == HOSTILE
    assert "<img" not in text
    assert text.count("<script") == 2
    assert text.count("</script>") == 2


def test_embedded_json_is_safe_and_the_same():
    value = {"<!--<script>": ["</script>", "&amp;", "\u2028", "'\"\\", "é"]}
    assert json.loads(embedded(value)) == value
    assert not set("<>&\u2028") & set(embedded(value))
    with pytest.raises(ValueError):
        embedded(float("nan"))


@pytest.mark.parametrize("kind", ["nan", "frozen"])
def test_a_diverged_seed_is_left_out_and_said(kind, tmp_path):
    run = with_bad_seed(sample_run("FedBiO"), kind)
    (note,) = notes(run)
    assert note.startswith("1 of 3 seeds left out of the mean")
    assert "round 160" in note
    shown = page_data([run])["sections"][0]["runs"][0]
    values = shown["metrics"]["accuracy"]
    assert values["count"] == [3] * 16 + [2] * 15
    assert shown["notes"] == [note]
    np.testing.assert_allclose(values["mean"][-1], run.history["accuracy"][-1][[0, 2]].mean(), rtol=1e-7)
    write_page([run], tmp_path / "page.html")
    assert "NaN" not in (tmp_path / "page.html").read_text(encoding="utf-8").split('id="data"')[1].split("</script>")[0]


def test_notes_of_runs_that_are_not_complete():
    assert notes(sample_run("FedBiO")) == []
    early = sample_run("FedBiO", rounds=100)
    early.config["run"]["rounds"] = 300
    assert notes(early) == ["Ended at round 100 of 300."]
    empty = StoredRun(Path("empty"), early.config, History())
    assert notes(empty) == ["No evaluation yet."]
    section = page_data([empty, early])["sections"][0]
    assert section["runs"][0]["metrics"] == {}
    assert section["metrics"][0]["best"] == []  # one run is not the best of anything


def test_a_section_for_each_task_and_dataset():
    runs = [sample_run("FedBiO"), sample_run("FedBiO", dataset="mnist"), sample_run("MeFBO", every=30)]
    data = page_data(runs)
    assert [section["title"] for section in data["sections"]] == [
        "Hyper-representation on digits",
        "Hyper-representation on mnist",
    ]
    first, second = data["sections"]
    assert [len(run["costs"]["round"]) for run in first["runs"]] == [31, 11]
    assert second["runs"][0]["style"] == first["runs"][0]["style"]  # FedBiO looks the same everywhere
    assert data["title"] == "Comparison of runs"


def test_no_runs():
    with pytest.raises(ValueError, match="at least one run"):
        page_data([])


def test_the_template_is_part_of_the_package():
    assert importlib.resources.files("rookery.report").joinpath("page.html").is_file()


# ---- Figures and tables


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures(suffix, start, tmp_path):
    runs = {run.name: run.history for run in [*sample_runs()[:5], with_bad_seed(sample_run("FedNest"), "nan")]}
    path = tmp_path / f"curves.{suffix}"
    plot_curves(runs, "loss", "A title", path, against=("oracle_calls", "seconds", "round"))
    content = path.read_bytes()
    assert content.startswith(start)
    if suffix == "pdf":
        assert b"/Type3" not in content
        assert b"/Subtype /Image" not in content  # all vector


def test_figures_draw_means_and_bands(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *a, **k: drawn.append(figure))
    history = sample_run("FedBiO").history
    plot_curves({"FedBiO": history}, "accuracy", "", tmp_path / "x.pdf", against=("round",))
    (axis,) = drawn[0].axes
    (line,) = axis.lines
    np.testing.assert_allclose(line.get_ydata(), 100 * history["accuracy"].mean(1))
    np.testing.assert_array_equal(line.get_xdata(), history["round"])
    edge = axis.collections[0].get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose(edge, 100 * (history["accuracy"].mean(1) + history["accuracy"].std(1, ddof=1)).max())
    assert axis.get_ylabel() == "accuracy (%)"
    assert axis.get_legend() is None  # it stands below the axes, where it covers nothing


@pytest.mark.parametrize(
    ("change", "message"),
    [({"runs": {}}, "runs must"), ({"metric": "speed"}, "metric must be one of accuracy, loss, got 'speed'"),
     ({"against": ("miles",)}, "got 'miles'"), ({"against": ()}, "against must")],
)  # fmt: skip
def test_figures_refuse(change, message, tmp_path):
    arguments = {
        "runs": {"FedBiO": sample_run("FedBiO", rounds=20).history},
        "metric": "accuracy",
        "against": ("round",),
    }
    with pytest.raises(ValueError, match=message):
        plot_curves(**{**arguments, **change}, title="", path=tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def shown_table(*arguments, **options) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(final_table(*arguments, **options))
    return console.export_text()


def test_final_table():
    good, bad = sample_run("FedBiO").history, with_bad_seed(sample_run("MeFBO"), "nan").history
    text = shown_table({"[red]FedBiO[/]": good, "MeFBO": bad}, "accuracy", "[b]Title[/b]")
    accuracy = 100 * good["accuracy"][-1]
    assert f"{accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}" in text
    assert "(2 of 3)" in text
    assert "[red]FedBiO[/]" in text  # a name is no markup
    assert "accuracy %" in text
    loss = shown_table({"FedBiO": good}, "loss", "Title", higher_is_better=False)
    assert f"{good['loss'][-1].mean():.4g} ± " in loss
    assert "%" not in loss


def test_what_was_better_before_the_end():
    history = sample_run("FedBiO").history
    rounds, values = peaks(history, "accuracy", True)
    np.testing.assert_array_equal(values, history["accuracy"].max(0))
    np.testing.assert_array_equal(rounds, history["round"][history["accuracy"].argmax(0)])
    text = shown_table({"FedBiO": history}, "accuracy", "")
    assert f"best {100 * values.mean():.2f}" in text
    assert f"({rounds.min():.0f}–{rounds.max():.0f})" in text
    counters = ("exchanges", "bytes_up", "bytes_down", *UNITS, "seconds")
    rising = rows_of(round=[0, 1], **{name: [0, 1] for name in counters}, loss=[1.0, 2.0])
    assert "best" not in shown_table({"a": rising}, "loss", "")
    told = shown_table({"a": rising}, "loss", "", higher_is_better=False)
    assert "best 1" in told
    assert "(0)" in told
    bad = with_bad_seed(sample_run("FedBiO"), "frozen").history
    assert np.isnan(peaks(bad, "accuracy", True)[1]).tolist() == [False, True, False]


@pytest.mark.parametrize(("higher", "winner"), [(True, "b"), (False, "a")])
def test_the_best_mean_is_bold(higher, winner):
    runs = {name: sample_run("FedBiO", rounds=20, seeds=1).history for name in "abc"}
    for name, value in zip("abc", (1.0, 2.0, np.nan), strict=True):
        runs[name].last["loss"] = value
    table = final_table(runs, "loss", "", higher_is_better=higher)
    cells = dict(zip("abc", table.columns[1].cells, strict=True))
    assert [name for name, cell in cells.items() if cell.style == "bold"] == [winner]
    assert cells["c"].plain.startswith("not finite\nbest ")  # it had values before
    assert "±" not in cells["a"].plain  # one seed has no deviation
