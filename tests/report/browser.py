"""Chromium without a window, driven over its DevTools pipe (no other package)."""

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

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LAPTOP, PHONE = (1280, 800), (390, 844)

IN_A_BROWSER = [
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
