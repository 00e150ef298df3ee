"""Chromium driven through its debugging pipe: what a page drew, logged, and asked the network for.

The DevTools protocol over two pipes needs nothing beyond the standard library:
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 60.0


def find_browser() -> str:
    """Chromium's path; a test without one is skipped, in CI it fails."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = "Chromium is not here: apt-get install chromium"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Browser:
    """One tab.

    Attributes:
        requests: addresses the page asked for.
        messages: what it logged as a warning or an error, exceptions and policy violations
            included.
    """

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.messages: list[str] = []
        self._number = 0
        self._loaded = False
        self._rest = b""
        ours, theirs = os.pipe(), os.pipe()  # to the browser, from the browser
        # dup2 leaves the copies inheritable: the browser reads from 3 and writes to 4.
        script = f'exec 3<&{ours[0]} 4>&{theirs[1]}; exec "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, "browser", find_browser(), *OPTIONS,
             f"--user-data-dir={folder}"],
            pass_fds=(ours[0], theirs[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from = ours[1], theirs[0]
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._session = None
            self.call("Browser.close")
        with contextlib.suppress(OSError):
            os.close(self._to)
            os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command; events that come before it are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page and wait until its charts are drawn."""
        self.requests.clear()
        self.messages.clear()
        self.resize(width, height)
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._read()
        self.wait("document.documentElement.dataset.charts === 'drawn'")

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < end, f"{condition} never came true: {self.messages}"
            time.sleep(0.05)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def picture(self, path: Path, *, whole: bool = False, height: int | None = None) -> None:
        """A PNG of the window, or of the whole page down to a height."""
        options: dict[str, Any] = {}
        if whole:
            size = self.run("[document.documentElement.clientWidth,"
                            " document.documentElement.scrollHeight]")  # fmt: skip
            end = size[1] if height is None else min(height, size[1])
            options = {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": size[0], "height": end, "scale": 1},
            }
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def pdf(self) -> bytes:
        """The page as it prints."""
        answer = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    def _read(self) -> dict[str, Any]:
        """The next message; events are noted."""
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready = select.select([self._from], [], [], max(end - time.monotonic(), 0))[0]
            assert ready, "Chromium does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, values: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif event == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.messages.append(" ".join(str(a.get("value", a)) for a in values["args"]))
        elif event == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(values["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.messages.append(values["entry"]["text"])
        elif event == "Page.loadEventFired":
            self._loaded = True
