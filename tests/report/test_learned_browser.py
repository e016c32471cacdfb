"""What was learned, and the simple rivals, in a real browser."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.browser import IN_A_BROWSER, LAPTOP, PHONE
from tests.report.lessons import exhibits, lesson, lessons, rivals
from tests.report.test_report import HOSTILE

pytestmark = IN_A_BROWSER


def keep(page, name: str) -> None:
    """A picture to look at, where ``SCREENSHOTS`` names a folder."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(Path(folder) / f"{name}.png")


def test_every_kind_of_exhibit_is_drawn(show, tmp_path):
    page = show(lessons(tmp_path))
    keep(page, "laptop")
    kinds = ["samples", "samples", "history", "table", "groups", "bars", "bars", "lines"]
    assert page("[...document.querySelectorAll('.exhibit')].map(e => e.className.split(' ')[1])") == kinds
    assert page("document.querySelectorAll('.card canvas').length") == 24
    ink = "(c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data])(document.querySelector('.card canvas'))"
    pixels = page(ink)
    assert len(pixels) == 4 * 64
    assert min(pixels[::4]) < 60 < 200 < max(pixels[::4])  # dark strokes on a light ground
    assert page("document.querySelectorAll('.exhibit.history path.series').length") == 12
    assert page("document.querySelectorAll('.exhibit.lines path.series').length") == 3
    assert page("document.querySelectorAll('.exhibit.bars')[0].querySelectorAll('rect.bar').length") == 10 * 4
    assert page("document.querySelectorAll('.shot.wrong').length") == 2
    assert page.texts(".exhibit.table td") == ["weight decay", "0.01", "0.00213", "temperature", "1", "1.73"]
    assert "NaN" not in page("document.querySelector('.learned').outerHTML")


def test_the_best_run_comes_first_and_others_on_demand(show, tmp_path):
    page = show(lessons(tmp_path))
    assert page.texts("[name=whose] option") == ["FedBiOAcc", "FedNest", "ASFBO"]
    before = page("document.querySelector('.history .series').getAttribute('d')")
    page("(s => { s.value = '2'; s.dispatchEvent(new Event('change')); })(document.querySelector('[name=whose]'))")
    assert page("document.querySelectorAll('.card canvas').length") == 24
    assert page("document.querySelector('.history .series').getAttribute('d')") == before  # all three learned the same
    page.click(".exhibit.bars .entry")
    assert page("document.querySelector('.exhibit.bars').querySelectorAll('rect.bar').length") == 10 * 3
    page.click(".exhibit.bars .entry")
    assert page("document.querySelector('.exhibit.bars').querySelectorAll('rect.bar').length") == 10 * 4


def test_rivals_are_lines_and_rows(show, tmp_path):
    page = show(lessons(tmp_path))
    assert page("document.querySelectorAll('.reference').length") == 3
    assert page.texts(".entry.rival .name")[-1] == "oracle (ceiling)"
    page.click(".entry.rival")
    assert page("document.querySelectorAll('.reference').length") == 2
    page.choose("Curve", "loss")
    assert page("[...document.querySelectorAll('.entry.rival')].filter(e => e.offsetParent).length") == 1
    rows = page.texts(".rivals tr")
    assert rows[0] == "simple rivals"
    assert "88.13 ± 0.32" in rows[2]
    page.click(".final thead th:nth-child(2) button")
    assert page.texts(".final tbody.rivals th")[1].startswith("plain federated averaging")  # below the runs, unsorted


def test_conclusion_first_and_costs_in_sight(show, tmp_path):
    page = show(lessons(tmp_path))
    assert page("document.querySelector('section').firstElementChild.className") == "conclusion"
    assert "nesting gains" in page.texts(".conclusion")[0]
    places = page(
        "Object.fromEntries([...document.querySelectorAll('.final thead th')]"
        ".map(e => [e.textContent, e.getBoundingClientRect().right]))"
    )
    edge = page("document.querySelector('.scroll').getBoundingClientRect().right")
    assert max(places["MB"], places["seconds"]) < edge
    assert "weight 0" not in places  # drawn among what was learned


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "light"), (PHONE, "dark"), (LAPTOP, "dark")])
def test_themes_and_sizes(size, scheme, show, tmp_path):
    page = show(lessons(tmp_path), size, scheme)
    keep(page, f"{size[0]}-{scheme}")
    assert page("document.documentElement.scrollWidth") == size[0]
    assert page("document.querySelectorAll('.card canvas').length") == 24


def test_one_run_without_rivals(show, tmp_path):
    page = show([lesson(tmp_path, "FedBiO")])
    keep(page, "one")
    assert page("document.querySelectorAll('[name=whose], .reference, .rivals').length") == 0
    assert page("document.querySelectorAll('.exhibit').length") == 8


def test_hostile_and_damaged_files(show, tmp_path):
    hostile = json.loads(json.dumps(exhibits()).replace("hospital", json.dumps(HOSTILE)[1:-1]))
    for each in hostile:
        each["title"] = each["text"] = HOSTILE
    damaged = [{**each, "title": None} for each in exhibits()]
    runs = [
        lesson(tmp_path, "FedBiO", hostile),
        lesson(tmp_path, "MeFBO", damaged),
        lesson(tmp_path, "ASFBO"),
    ]
    (tmp_path / "ASFBO" / "learned.json").write_text('{"exhibits": [')
    bad = rivals()
    bad["rivals"][0].update(name=HOSTILE, what=HOSTILE)
    (tmp_path / "rivals.json").write_text(json.dumps(bad))
    page = show([replace(run, config={**run.config}) for run in runs], PHONE)
    assert page("window.hacked") is None
    assert page("document.querySelectorAll('img, iframe').length") == 0
    assert page("document.documentElement.scrollWidth") == PHONE[0]
    problems = page.texts(".problems li")
    assert len(problems) == 9
    assert problems[-1].startswith("learned.json of ASFBO is damaged: it is not JSON")
    assert page("document.querySelectorAll('.exhibit').length") == 8
