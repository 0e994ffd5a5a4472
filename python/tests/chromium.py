"""Drives a headless Chromium over a pipe (the DevTools protocol), for tests of the page. Needs no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60  # until an answer


def program() -> str | None:
    """The Chromium of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser. `complaints` gathers uncaught exceptions, console errors and refused resources."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900):
        inward, ours_out = os.pipe()
        ours_in, outward = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--disable-dev-shm-usage", "--disable-background-networking", f"--user-data-dir={profile}"]
        # The protocol speaks on descriptors 3 and 4 of the browser; copies above them first, lest one covers the other.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (inward, outward)]

        def place() -> None:
            for number, end in zip((3, 4), high, strict=True):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [program(), *flags, f"--window-size={width},{height}", "about:blank"],
            preexec_fn=place,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in high:
            os.close(end)
        os.close(inward)
        os.close(outward)
        self._in, self._out, self._held, self._count, self._session = ours_in, ours_out, b"", 0, None
        self._heard: set[str] = set()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str, medium: str = "") -> None:
        """`scheme`: light or dark. `medium`: print, or the screen."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def open(self, path: Path) -> float:
        """Opens a page, its script run and two frames drawn. Returns the seconds that took."""
        begin = time.monotonic()
        self._heard.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + SECONDS
        while "Page.loadEventFired" not in self._heard:
            self._note(self._read(deadline, "Page.navigate"))
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - begin

    def ask(self, expression: str):
        """The value of a JavaScript expression, or of the promise that it gives."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, path: Path, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters) -> dict:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            heard = self._read(deadline, method)
            if heard.get("id") == self._count:
                assert "error" not in heard, f"{method}: {heard['error']['message']}"
                return heard["result"]
            self._note(heard)

    def _read(self, deadline: float, method: str) -> dict:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self._in, 1 << 16) if ready else b""
            assert more, f"Chromium did not answer {method}"
            self._held += more
        text, self._held = self._held.split(b"\0", 1)
        return json.loads(text)

    def _note(self, event: dict) -> None:
        method, held = event.get("method", ""), event.get("params", {})
        self._heard.add(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(held["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Runtime.consoleAPICalled" and held["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([argument.get("value") for argument in held["args"]]))
        elif method == "Log.entryAdded" and held["entry"]["level"] in ("error", "warning"):
            self.complaints.append(held["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(held["request"]["url"])
