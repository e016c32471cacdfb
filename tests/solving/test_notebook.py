"""What a notebook shows: figures without pyplot, tables without anybody's markup, one line of progress."""

import html.parser
import subprocess
import sys
import types
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.base import Stopped
from rookery.solving import notebook
from rookery.solving.history import History
from rookery.solving.progress import progress_bar
from rookery.solving.solution import Solution
from rookery.tuning.result import Found, Tuning

HOSTILE = "<script>alert('$x_{$')</script>&\"</td>"


def history(lanes=None, rows=10):
    def row(k):
        value = 1.0 / (k + 1) if lanes is None else np.arange(1, lanes + 1) / (k + 1)
        return {
            "round": 5 * k,
            "exchanges": k if lanes is None else np.full(lanes, k),
            "seconds": 0.1 * k,
            HOSTILE: value,
        }

    return History([row(k) for k in range(rows)])


def solution(lanes=None, **more):
    state = types.SimpleNamespace(round=45)
    return Solution(jnp.zeros((lanes or 1, 3)), None, history(lanes), state, lanes, **more)


def tuning():
    found = {}
    for name, score in (("good" + HOSTILE, 0.1), ("bad", 0.2)):
        how = {"start": 1.0, "frozen": None, "edges": {}, "trials": (), "spent": {"rounds": 1200}, "seconds": 2.5}
        found[name] = Found(name, rk.FedBiO(eta_x=0.5), score, solution(), remarks=(HOSTILE,), **how)
    return Tuning(HOSTILE, False, 45, {"runs": 10}, found)


class Reader(html.parser.HTMLParser):
    """The elements of a page and the text between them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def shown(thing):
    page = Reader(thing._repr_html_())
    assert not {"script", "img", "iframe"} & set(page.tags)
    assert any(HOSTILE in text for text in page.text), "it is there, as text"
    return page


def test_a_history_shows_its_ends_and_where_it_was_best():
    page = shown(history(lanes=3, rows=100))
    assert page.tags.count("tr") == 1 + 3 + 1 + 3 + 2
    assert "History: 100 rows, means over 3 lanes" in page.text
    assert "0.02 (round 495)" in page.text
    assert "2 (round 0)" in page.text
    assert "no rows" in History()._repr_html_()
    assert Reader(history(rows=2)._repr_html_()).tags.count("tr") == 1 + 2 + 2


def test_a_solution_shows_what_was_solved():
    told = solution(lanes=3, remarks=(HOSTILE,), diverged=(Stopped(20, 1),))
    page = shown(told)
    assert page.tags.count("polyline") == 4
    assert any("means over 3 lanes; x has 3 and y 0 numbers" in text for text in page.text)
    assert "0.2" in page.text, "the mean without the lane that diverged: (0.1 + 0.3)/2"
    assert any("eta_x 0.5" in text for text in shown(solution(algorithm=rk.FedBiO(eta_x=0.5))).text)
    assert "polyline" not in replace(told, history=History())._repr_html_()


def test_a_tuning_marks_the_winner():
    page = shown(tuning())
    assert [text for text in page.text if text.startswith("★")] == ["★ good" + HOSTILE]
    assert "1,200" in page.text
    assert notebook.short({"schedule": "Power", "scale": 153.78733, "offset": 1.0}) == "Power(scale 153.8, offset 1)"


def test_a_figure_has_a_panel_for_each_metric():
    told = solution(lanes=3, diverged=(Stopped(20, 1),))
    (panel,) = told.plot().axes
    assert panel.get_title() == HOSTILE
    *lanes, mean = (np.asarray(line.get_ydata()) for line in panel.lines)
    assert np.isnan(lanes[1][5:]).all()
    np.testing.assert_allclose(mean, [2 / (k + 1) for k in range(10)])
    assert told.plot()._repr_png_().startswith(b"\x89PNG"), "a name that is no formula is drawn as it is"
    assert len(solution().plot("exchanges").axes[0].lines) == 1
    with pytest.raises(ValueError, match=r"metric must be one of exchanges, seconds, .*, got 'accuracy'"):
        told.plot("accuracy")


@pytest.mark.slow
def test_plotting_needs_no_display_and_leaves_pyplot_alone():
    program = (
        "import sys; from tests.solving.test_notebook import solution\n"
        "figure = solution(lanes=2).plot(); figure._repr_png_()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "import matplotlib; matplotlib.use('svg'); solution().plot()._repr_png_()\n"
        "import matplotlib.pyplot as plt; assert not plt.get_fignums(); assert plt.get_backend() == 'svg'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PATH": "", "MPLBACKEND": "TkAgg"})


def test_progress_in_a_notebook_is_one_line(monkeypatch):
    drawn = []

    class Handle:
        def update(self, content, raw):
            drawn.append(("update", content["text/html"]))

    def display(content, raw, display_id):
        drawn.append(("new", content["text/html"]))
        return Handle()

    kernel = types.SimpleNamespace(kernel=object())
    there = types.SimpleNamespace(get_ipython=lambda: kernel, display=types.SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", there)
    run = types.SimpleNamespace(lanes=2, setting=types.SimpleNamespace(algorithm=rk.FedBiO()), is_first=True)
    with progress_bar(run, 300, None) as show:
        for _ in range(300):
            show(1, 50.0, {"<b>": np.array([1.0, 3.0])})
    assert [kind for kind, _ in drawn] == ["new", *["update"] * (len(drawn) - 1)]
    assert len(drawn) < 30
    assert "FedBiO ×2" in drawn[-1][1]
    assert "300/300  50 rounds/s  &lt;b&gt; 2" in drawn[-1][1]
    drawn.clear()
    with progress_bar(run, 3, False) as show:
        show(3, 1.0, None)
    assert not drawn
    kernel.kernel = None
    assert not notebook.in_notebook()
