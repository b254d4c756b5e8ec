"""A headless Chromium that a test asks questions: DevTools protocol over a pipe, in a namespace with no network at all."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..timing import in_time

PATIENCE_S = 120.0
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--hide-scrollbars", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page in one process."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read, self._write = read_fd, write_fd
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        """URLs the page has asked for, its own first."""
        self.complaints: list[str] = []
        """What the console says, violations of the content security policy among it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask, and wait for the answer; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                in_time(False, f"Chromium does not answer in {PATIENCE_S:g} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                pytest.fail("Chromium has ended")
            self._rest += part
        raw, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        what, told = message.get("method"), message.get("params", {})
        if what == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif what == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif what == "Runtime.consoleAPICalled":
            self.complaints.append(str(told["args"]))
        elif what == "Page.loadEventFired":
            self.loaded = True

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Load a file at a width, in CSS pixels, for readers who prefer light or dark."""
        self.loaded = False
        self.requests.clear()
        self.complaints.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not self.loaded:
            self._next()
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """Value of an expression of JavaScript, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12_000), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


def _high(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return high


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own. Fails if there is no Chromium: the tests need it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("the tests of the report need Chromium: install the package chromium")
    # High numbers, so that none of them is 3 or 4 itself.
    (to_read, to_write), (from_read, from_write) = ([_high(fd) for fd in os.pipe()] for _ in range(2))
    # Descriptors 3 and 4 by their numbers: they are what Chromium talks on. The shell puts them there and is replaced.
    shell = f'exec "$@" 3<&{to_read} 4>&{from_write} {to_read}<&- {from_write}>&-'
    namespace = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    # The browser leaves its processes behind when it is killed hard: it is asked to go.
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *namespace, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        browser = Browser(from_read, to_write)
        yield browser
        browser._session = None
        with contextlib.suppress(BaseException):
            browser.call("Browser.close")
        process.wait(PATIENCE_S)
    finally:
        os.close(to_write)
        os.close(from_read)
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE_S)
