"""The report's page in a real browser."""

from pathlib import Path

import pytest

from rookery.experiment.folder import StoredRun
from rookery.solving.history import History
from tests.report.browser import IN_A_BROWSER, LAPTOP, PHONE
from tests.report.test_report import hostile_run, sample_run, sample_runs, with_bad_seed

pytestmark = IN_A_BROWSER


def test_curves_are_drawn(show):
    page = show(sample_runs())
    lines = page.lines()
    assert len(lines) == 6
    left, top, right, bottom = page(
        "(() => { const b = document.querySelector('.chart').viewBox.baseVal; return [b.x, b.y, b.width, b.height]; })()"
    )
    for line in lines:
        assert len(line) == 2 * 31
        x, y = line[::2], line[1::2]
        assert all(left <= each <= right for each in x)
        assert all(top <= each <= bottom for each in y)
        assert x == sorted(x)
        assert y[-1] < y[0] - 100  # accuracy rises
    assert page("document.querySelectorAll('path.band').length") == 6
    assert "NaN" not in page("document.querySelector('.chart').outerHTML")
    assert page.texts(".y-name") == ["accuracy (%)"]
    assert page.texts(".x-ticks text")[0] == "0"
    assert page.texts(".x-ticks text")[-1] == "300"


def test_metric_and_axis_switch(show):
    page = show(sample_runs())
    accuracy = page.lines()
    page.choose("Curve", "loss")
    assert page.texts(".y-name") == ["loss"]
    loss = page.lines()
    assert all(line[-1] > line[1] + 100 for line in loss)  # it falls
    for cost, name in [("exchanges", "exchanges"), ("megabytes", "megabytes communicated"),
                       ("oracle_calls", "oracle calls"), ("seconds", "seconds")]:  # fmt: skip
        page.choose("against", cost)
        assert page.texts(".x-name") == [name]
        ends = [line[-2] for line in page.lines()]
        assert len(page.lines()) == 6
        assert len({round(end) for end in ends}) > 1  # they cost different amounts
    page.choose("Curve", "accuracy")
    page.choose("against", "round")
    assert page.lines() == accuracy


def test_logarithmic_axes(show):
    page = show(sample_runs())
    assert page("document.querySelector('[name=log-y]').disabled")  # accuracy in percent
    page.choose("Curve", "loss")
    linear = page.lines()
    page.click("[name=log-y]")
    assert page.lines()[0][::2] == linear[0][::2]
    assert page.lines()[0][1::2] != linear[0][1::2]
    page.click("[name=log-x]")
    assert all(len(line) == 2 * 30 for line in page.lines())  # round 0 has no logarithm
    assert "logarithmic" in page.texts("figcaption")[0]
    ticks = page.texts(".x-ticks text")
    assert "10" in ticks
    assert "100" in ticks
    page.click("[name=log-x]")
    page.click("[name=log-y]")
    assert page.lines() == linear


def test_bands(show):
    page = show(sample_runs())

    def bands():
        return page("[...document.querySelectorAll('path.band')].map(e => e.getAttribute('d'))")

    deviation = bands()
    page.choose("Band", "range")
    assert len(bands()) == 6
    assert bands() != deviation
    page.choose("Band", "none")
    assert bands() == []


def test_zoom_to_final_values(show):
    page = show(sample_runs())
    before = page.texts(".y-ticks text")
    page.click("[name=late]")
    after = page.texts(".y-ticks text")
    assert min(map(float, after)) > min(map(float, before)) + 20


def test_legend_by_mouse_and_keyboard(show):
    page = show(sample_runs())
    page.click(".entry")
    assert page("document.querySelector('.entry').getAttribute('aria-pressed')") == "false"
    assert page("[...document.querySelectorAll('path.line')].map(e => e.dataset.run)") == list("12345")
    assert page("document.activeElement.className") == "entry"
    page.key("Enter", 13)
    assert page("document.querySelector('.entry').getAttribute('aria-pressed')") == "true"
    assert len(page.lines()) == 6
    page.click(".legend .head button")  # hides all
    assert page.lines() == []
    page.click(".legend .head button")
    assert len(page.lines()) == 6


def test_values_under_the_pointer(show):
    runs = [sample_run("FedBiO"), sample_run("MeFBO", every=60)]
    page = show(runs)
    x, y = page.middle(".chart")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    heading, *_ = page.texts(".legend .head span")
    number = int(heading.removeprefix("at round "))
    row = next(row for row in runs[0].history if row["round"] == number)
    shown = page.texts(".entry .value")
    accuracy = 100 * row["accuracy"]
    assert shown[0] == f"{accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}"
    before, after = (100 * runs[1].history["accuracy"].mean(1)[number // 60 + k] for k in (0, 1))
    between = before + (number % 60) / 60 * (after - before)
    assert float(shown[1].removeprefix("≈ ").split()[0]) == pytest.approx(between, abs=0.02)
    assert page("document.querySelectorAll('.cursor circle').length") == 2
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert page.texts(".legend .head span")[0] == "at the end"


def test_values_by_arrow_keys(show):
    page = show([sample_run("FedBiO")])
    page("document.querySelector('.chart').focus()")
    page.key("Home", 36)
    page.key("ArrowRight", 39)
    assert page("document.querySelector('.chart').getAttribute('aria-valuetext')") == "at round 10"


def test_values_by_touch(show):
    page = show(sample_runs(), PHONE)
    x, y = page.middle(".chart")
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert page.texts(".legend .head span")[0].startswith("at round ")


def test_table_sorts(show):
    runs = sample_runs()
    page = show(runs)

    def order():
        return page.texts(".final tbody th")

    by_accuracy = sorted(runs, key=lambda run: -run.history["accuracy"][-1].mean())
    assert order() == [run.name for run in runs]
    assert page.texts("td.best small")[0].startswith(" ± ")
    page.click(".final thead th:nth-child(2) button")
    assert order() == [run.name for run in by_accuracy]
    assert page("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"
    page.click(".final thead th:nth-child(2) button")
    assert order() == [run.name for run in reversed(by_accuracy)]
    page.click(".final thead th button")
    assert order() == sorted(run.name for run in runs)
    page("[...document.querySelectorAll('.final thead button')].find(b => b.textContent === 'MB').click()")
    assert order()[-1] == "FedNest"  # the dearest


def test_only_what_differs(show):
    page = show([sample_run("FedBiO"), sample_run("FedBiO", batch_size=64)])
    assert page.texts(".config tbody tr:not(.group) th") == ["batch_size"]
    assert page.texts(".config td.marked") == ["32", "64"]
    page.click("[name=only-differences]")
    keys = page.texts(".config tbody tr:not(.group) th")
    assert {"rounds", "hidden", "eta_x", "python"} <= set(keys)


def test_copy_a_command(show):
    runs = sample_runs()[:2]
    page = show(runs)
    page(
        "window.copies = []; Object.defineProperty(navigator, 'clipboard',"
        "{value: {writeText: async text => { window.copies.push(text); }}}); 0"
    )
    page.click(".commands li:nth-child(2) button")
    assert page("window.copies") == [runs[1].config["run"]["command"]]
    assert page.texts(".commands button") == ["Copy", "Copied"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(scheme, show):
    page = show(sample_runs(), scheme=scheme)

    def ground():
        return sum(page("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")[:3])

    first = ground()
    assert first > 600 if scheme == "light" else first < 150
    line = page("getComputedStyle(document.querySelector('path.line')).stroke")
    page.click("#theme")
    assert (ground() < 150) == (first > 600)
    assert page("getComputedStyle(document.querySelector('path.line')).stroke") != line
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert ground() > 600  # paper is white


@pytest.mark.parametrize("size", [PHONE, LAPTOP])
def test_no_horizontal_scrolling(size, show):
    many = [sample_run(run.name, algorithm={"rate": rate}) for run in sample_runs() for rate in (0.1, 0.25, 0.5)]
    page = show([*many, hostile_run()], size)
    assert page("document.documentElement.scrollWidth") == size[0]
    assert page("innerWidth") == size[0]
    assert page("document.querySelector('.config').scrollWidth") > size[0]  # it scrolls in its box


def test_the_chart_follows_the_window(show):
    page = show(sample_runs())
    wide = page("document.querySelector('.chart').viewBox.baseVal.width")
    page.size(*PHONE)
    page("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page("document.querySelector('.chart').viewBox.baseVal.width") < 400 < wide


def test_hostile_names_are_text(show):
    page = show([hostile_run(), sample_run("FedBiO")])
    assert page("window.hacked") is None
    assert page("document.querySelectorAll('img, iframe').length") == 0
    assert page.texts("h2")[0].lower().startswith("</script><script>window.hacked")
    assert page("document.scripts.length") == 2
    page.choose("Curve", page("document.querySelector('.controls select').options[2].value"))
    assert len(page.lines()) == 1


def test_more_than_eight_runs_are_told_apart_by_dashes(show):
    page = show([sample_run("FedBiO", algorithm={"eta_x": 0.1 * k}) for k in range(1, 11)])
    styles = page(
        "[...document.querySelectorAll('path.line')].map(e => e.getAttribute('stroke') + e.getAttribute('stroke-dasharray'))"
    )
    assert len(set(styles)) == 10


def test_sections_notes_and_odd_runs(show):
    short = sample_run("FedBiO", rounds=0, seeds=1, dataset="mnist")
    empty = StoredRun(Path("empty"), sample_run("MeFBO", dataset="mnist").config, History())
    runs = [with_bad_seed(sample_run("FedBiO"), "frozen"), sample_run("MeFBO", every=50), short, empty]
    page = show(runs)
    assert page.texts("h2") == ["Hyper-representation on digits", "Hyper-representation on mnist"]
    assert page.texts("nav a") == page.texts("h2")
    assert "2 of 3" in page.texts(".final td")
    notes = page.texts(".notes li")
    assert any("1 of 3 seeds left out of the mean: diverged" in note for note in notes)
    assert "MeFBO: No evaluation yet." in notes
    assert page("document.querySelectorAll('.chart')[1].querySelectorAll('circle').length") == 1  # one evaluation


def test_an_empty_run_alone(show):
    page = show([StoredRun(Path("empty"), sample_run("MeFBO").config, History())])
    assert page("document.querySelectorAll('.chart').length") == 0
    assert page.texts(".notes li") == ["MeFBO: No evaluation yet."]
