"""A real Chromium, driven over a pipe by the DevTools protocol: what a test needs of it and no more."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
LIMIT_S = 60.0
Message = dict[str, Any]


class Browser:
    """One Chromium with one page; `events` are those that came of that page, `said` its console and exceptions."""

    def __init__(self, profile: Path, rules: str = "", *options: str) -> None:
        assert CHROMIUM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        words = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={profile}", "--remote-debugging-pipe", *options,
            *([f"--host-resolver-rules={rules}"] if rules else []), "about:blank",
        ]  # fmt: skip

        self._log = (profile.parent / f"{profile.name}.log").open("wb")
        place = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", place, "bash", *words],
            stdout=self._log, stderr=self._log, pass_fds=(to_browser, from_browser), start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.events: list[Message] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        for descriptor in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._log.close()

    def send(self, method: str, **given: object) -> Message:
        """Return the answer to one command; raise AssertionError where it is an error."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": given}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._number:
                assert "error" not in got, (method, got["error"])
                result: Message = got["result"]
                return result
            self.events.append(got)

    def open(self, url: str) -> None:
        """Have the page show an address, and wait until it was loaded."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.wait_event("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        got = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.perf_counter() + LIMIT_S
        while not self.evaluate(f"Boolean({script})"):
            shown = "" if time.perf_counter() < end else self.evaluate("document.body.innerText")
            assert time.perf_counter() < end, (script, shown, self.output())
            self.collect(0.05)

    def wait_event(self, method: str) -> Message:
        """Return the next event of a kind, or one that has come since the last `open`."""
        end = time.perf_counter() + LIMIT_S
        while True:
            for event in self.events:
                if event.get("method") == method:
                    self.events.remove(event)
                    return event
            assert time.perf_counter() < end, f"{method} did not come"
            self.events.append(self._receive())

    def collect(self, seconds: float) -> None:
        """Take the events that come within a time."""
        end = time.perf_counter() + seconds
        while (rest := end - time.perf_counter()) > 0:
            if b"\0" in self._buffer or select.select([self._read], [], [], rest)[0]:
                self.events.append(self._receive())

    def output(self) -> list[str]:
        """Return what the page reported: exceptions, console errors, and violations of its policy."""
        found = []
        for event in self.events:
            given = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(json.dumps(given["exceptionDetails"])[:600])
                case "Log.entryAdded":
                    found.append(f"{given['entry']['level']}: {given['entry']['text']} {given['entry'].get('url', '')}")
                case "Runtime.consoleAPICalled":
                    found.append(json.dumps(given["args"])[:600])
        return found

    def requested(self) -> list[str]:
        """Return the addresses that the page has requested."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def scheme(self, name: str) -> None:
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def _receive(self) -> Message:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], LIMIT_S)
            assert ready, "the browser does not answer"
            got = os.read(self._read, 1 << 20)
            assert got, "the browser ended"
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: Message = json.loads(message)
        return decoded


@contextmanager
def browser(profile: Path, rules: str = "", *options: str) -> Iterator[Browser]:
    """Start a Chromium, and end it."""
    started = Browser(profile, rules, *options)
    try:
        yield started
    finally:
        started.close()
