"""A headless Chromium by its debugging pipe: load a page, ask it, click, take pictures. No driver is needed.

chromedevtools.github.io/devtools-protocol; --remote-debugging-pipe: JSON with a zero byte behind, in on 3, out on 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """The browser's program; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. ``errors`` are what its console complained of, and what it asked of a network but its own address."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        program = find()
        assert program
        argv = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        argv += ["--disable-dev-shm-usage", f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        argv += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "about:blank"]
        # 3 and 4 are the pipe's ends in the browser
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{to_read} 4>&{to_write}; exec "$@"', "browser", *argv],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session, self._address = 0, b"", "", ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol; returns its result. Raises `AssertionError`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 120
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], max(end - time.monotonic(), 0))[0], "the browser does not answer"
            block = os.read(self._in, 1 << 20)
            assert block, "the browser has ended"
            self._rest += block
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        self._note(answer.get("method", ""), answer.get("params", {}))
        return answer

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])
        elif event == "Network.requestWillBeSent" and not self._is_own(told["request"]["url"]):
            self.errors.append(f"asks the network for {told['request']['url']}")

    def _is_own(self, url: str) -> bool:
        served = self._address.startswith("http") and url.startswith(self._address)
        return served or not url.startswith(("http", "ws", "ftp"))

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def dark(self, on: bool) -> None:
        value = "dark" if on else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def load(self, page: Path | str) -> None:
        """Load a file, or an address."""
        self._address = page if isinstance(page, str) else page.absolute().as_uri()
        self.call("Page.navigate", url=self._address)

    def ask(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def await_true(self, script: str, timeout: float = 120) -> Any:
        end = time.monotonic() + timeout
        while not (value := self.ask(script)):
            assert time.monotonic() < end, f"still not true: {script}"
            time.sleep(0.1)
        return value

    def picture(self, file: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))
