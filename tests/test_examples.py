"""The stories under examples/ come out as they are told, and code blocks of the tasks' pages run."""

import csv
import importlib.util
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_wine

from benchmarks.own_data import CASES, DOCS, MARKS, Case, Row, run, table
from benchmarks.own_files import breast_cancer
from rookery.experiment.settings import settings_from
from rookery.tasks import RECIPES, Task

EXAMPLES = Path(__file__).parent.parent / "examples"
STORIES = ("noisy_labels_in_hospitals", "which_clients_to_trust", "rare_disease", "worst_class")
PAGES = sorted((DOCS / "tasks").glob("*.md"))


def told(name, folder, **how):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    story = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(story)
    found = story.main(folder, **how)
    with Image.open(folder / f"{name}.png") as drawn:
        assert min(drawn.size) > 400
    return found


@pytest.mark.slow
def test_noisy_labels_in_hospitals(tmp_path, capsys):
    found = told("noisy_labels_in_hospitals", tmp_path, rounds=150)
    assert found["area"] > 90
    assert found["cleaning (MeFBO)"] > found["plain federated averaging"]
    assert "records are wrong" in capsys.readouterr().out


@pytest.mark.slow
def test_which_clients_to_trust(tmp_path):
    weights = list(told("which_clients_to_trust", tmp_path, rounds=150).values())
    assert max(weights[-3:]) < min(weights[:-3])


@pytest.mark.slow
def test_rare_disease(tmp_path):
    areas = told("rare_disease", tmp_path, rounds=60)
    assert len(areas) == 3
    assert min(areas.values()) > 80


@pytest.mark.slow
def test_worst_class(tmp_path):
    worst = told("worst_class", tmp_path, rounds=60)
    assert worst["worst class (FedSGDA+)"] > worst["plain federated averaging"] + 10


def test_stories_are_short_and_have_their_picture():
    page = (DOCS / "stories.md").read_text()
    for name in STORIES:
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
        assert f"images/{name}.png" in page
        assert (DOCS / "images" / f"{name}.png").exists()


def test_every_task_that_takes_data_of_ones_own_has_a_page_with_figures():
    of_task = {case.task for case in CASES}
    assert of_task == {name for name, recipe in RECIPES.items() if recipe.own is not None}
    assert {page.stem for page in PAGES} == of_task
    for page in (DOCS / "tasks.md", *PAGES):
        first, last = (page.read_text().index(mark) for mark in MARKS)
        assert "±" in page.read_text()[first:last], page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_of_a_page_is_understood(page, tmp_path, monkeypatch):
    """All but the computing: the options, the file, and the task on it."""
    monkeypatch.chdir(tmp_path)
    (line,) = re.findall(r"^    rookery run (.*)$", page.read_text(), re.M)
    task, *options = shlex.split(line)
    named = dict(zip(options[::2], options[1::2], strict=True))
    rng = np.random.default_rng(0)
    if page.stem == "few-shot":
        for number in range(15):
            folder = tmp_path / named["--data"] / str(number)
            folder.mkdir(parents=True)
            for place in range(40):
                Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(folder / f"{place}.png")
    else:
        columns = [named["--label"], *(named[key] for key in ("--client-column", "--checked-column") if key in named)]
        rows = [["ill" if i % 3 else "well", "ABC"[i % 5 % 3], "yes" if i % 4 else "no"] for i in range(200)]
        with Path(named["--data"]).open("w", newline="") as opened:
            csv.writer(opened).writerows([[*columns, "n"], *([*row[: len(columns)], i] for i, row in enumerate(rows))])
    given = {key.strip("-").replace("-", "_"): value for key, value in named.items() if key != "--set"}
    chosen = settings_from(task, given, [named["--set"]] if "--set" in named else [])
    assert chosen.make_tasks()[0].metric


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_of_a_page_runs(page, monkeypatch, capsys):
    solve, rivals = Task.solve, Task.rivals
    monkeypatch.setattr(Task, "solve", lambda task: solve(task, rounds=4, progress=False))
    monkeypatch.setattr(Task, "rivals", lambda task: rivals(task, rounds=2))
    wine, digits = load_wine(), load_digits()
    names = {"features": wine.data, "labels": wine.target, "images": digits.images, "kinds": digits.target}
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    exec(compile(block, page.name, "exec"), names)
    assert "[(" in capsys.readouterr().out  # what rivals reach


def test_a_row_says_whether_nesting_pays():
    rivals = [{"name": "plain", "ceiling": False, "area": None}, {"name": "other", "ceiling": False, "area": None},
              {"name": "knows", "ceiling": True, "area": None}]  # fmt: skip
    seeds = [
        {"algorithm": "A", "metric": "accuracy", "nested": nested, "area": None, "seconds": seconds,
         "rivals": [{**each, "value": value} for each, value in zip(rivals, (0.5, other, 0.99), strict=True)]}
        for nested, other, seconds in ((0.80, 0.70, 9.0), (0.82, 0.72, 2.0))
    ]  # fmt: skip
    case = Case("auroc", "data", breast_cancer, "nothing")
    row = Row.of(case, seeds)
    assert row.other[0] == "other"
    assert replace(row, ahead=(1.0, 2.0)).pays == "no clear difference (+1.0 ± 2.0)"
    assert replace(row, ahead=(-3.0, 2.0)).pays == "no (-3.0 ± 2.0)"
    told = "| **81.0 ± 1.4** | 50.0 ± 0.0 | 71.0 ± 1.4 (other) | 99.0 ± 0.0 | yes (+10.0 ± 0.0) | 9 |"
    assert told in table([row])


@pytest.mark.slow
def test_a_case_of_the_benchmark(monkeypatch):
    case = CASES[0]
    recipe = RECIPES[case.task]
    monkeypatch.setitem(RECIPES, case.task, replace(recipe, own=replace(recipe.own, rounds=40)))
    found = run(case, 1)
    assert found["nested"] > 0.8
    assert found["area"] > 0.7
    assert [each["name"] for each in found["rivals"] if each["ceiling"]] == ["without the wrong labels"]
