"""The report's page in a real browser: Chromium without a window, driven over its DevTools pipe (no other package)."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rookery.experiment.folder import StoredRun
from rookery.report import write_page
from rookery.solving.history import History
from tests.report.test_report import hostile_run, sample_run, sample_runs, with_bad_seed

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LAPTOP, PHONE = (1280, 800), (390, 844)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome is installed"),
]


class Browser:
    """A Chromium process; commands go in at its descriptor 3, answers and events come out of 4, split by zero bytes."""

    def __init__(self, profile: Path):
        (command, send), (receive, answer) = os.pipe(), os.pipe()
        # Away from 3 and 4, which the child's ends are moved to.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (command, answer)]
        self.send, self.receive = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (send, receive))
        for fd in (command, send, receive, answer):
            os.close(fd)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
                 "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}"]  # fmt: skip
        quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, theirs[0], 3), (os.POSIX_SPAWN_DUP2, theirs[1], 4)]
        assert CHROMIUM is not None
        self.process = os.posix_spawn(CHROMIUM, [CHROMIUM, *flags], os.environ, file_actions=quiet + pipes, setpgroup=0)
        for fd in theirs:
            os.close(fd)
        self.number, self.buffer, self.events = 0, b"", []

    def message(self, seconds: float = 60.0) -> dict[str, Any]:
        """The next answer or event."""
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.receive], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium said nothing for {seconds} s"
            read = os.read(self.receive, 1 << 20)
            assert read, "Chromium has ended"
            self.buffer += read
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; events on the way are kept."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        text = json.dumps(command if session is None else {**command, "sessionId": session}).encode() + b"\0"
        while text:
            text = text[os.write(self.send, text) :]
        while True:
            message = self.message()
            if message.get("id") == self.number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def close(self) -> None:
        """Ends the process, and its helpers if they do not go by themselves."""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.send)
        os.close(self.receive)


class Page:
    """A tab."""

    def __init__(self, browser: Browser):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def events(self, *methods: str) -> list[dict[str, Any]]:
        return [
            e["params"] for e in self.browser.events if e.get("sessionId") == self.session and e["method"] in methods
        ]

    def size(self, width: int, height: int) -> None:
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def theme(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path) -> None:
        loaded = len(self.events("Page.loadEventFired"))
        self.call("Page.navigate", url=path.as_uri())
        while len(self.events("Page.loadEventFired")) == loaded:
            self.browser.events.append(self.browser.message())
        self("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def __call__(self, script: str) -> Any:
        """The value of an expression (awaited)."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        return self(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element is on the screen, scrolled there."""
        return self(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name: str, code: int) -> None:
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text)

    def choose(self, label: str, value: str) -> None:
        """Picks an option of the select in the label that starts so."""
        self(
            "((label, value) => { const all = [...document.querySelectorAll('.controls label')];"
            "const select = all.find(each => each.textContent.startsWith(label)).querySelector('select');"
            f"select.value = value; select.dispatchEvent(new Event('change')); }})({json.dumps(label)}, {json.dumps(value)})"
        )

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG, to look at."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def lines(self) -> list[list[float]]:
        """The coordinates of every curve of the first chart, x and y in turn."""
        paths = self(
            "[...document.querySelector('.chart').querySelectorAll('path.line')].map(e => e.getAttribute('d'))"
        )
        return [list(map(float, path.replace("M", " ").replace("L", " ").split())) for path in paths]

    def complaints(self) -> list[Any]:
        """Exceptions, errors on the console, and whatever the policy had to block."""
        logged = [e["entry"] for e in self.events("Log.entryAdded") if e["entry"]["level"] == "error"]
        said = [e for e in self.events("Runtime.consoleAPICalled") if e["type"] in ("error", "warning", "assert")]
        return self.events("Runtime.exceptionThrown") + logged + said

    def requests(self) -> list[str]:
        return [e["request"]["url"] for e in self.events("Network.requestWillBeSent")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page of runs; at the end no test may leave an error or have asked for anything but the file."""
    pages: list[tuple[Page, Path]] = []

    def show(runs, size=LAPTOP, scheme="light"):
        path = tmp_path / f"page{len(pages)}.html"
        write_page(runs, path)
        page = Page(browser)
        pages.append((page, path))
        page.size(*size)
        page.theme(scheme)
        page.open(path)
        return page

    yield show
    for page, path in pages:
        assert page.complaints() == []
        assert page.requests() == [path.as_uri()]
        browser.call("Target.closeTarget", targetId=page.target)


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
