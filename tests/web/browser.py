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


class Chromium:
    """One Chromium, whose pages share its processes and nothing else: each has cookies and storage of its own."""

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
        self._events: dict[str | None, list[Message]] = {}
        """Those that no page has taken yet, by its session."""

    @contextmanager
    def page(self) -> Iterator[Browser]:
        """Open a page with a window of its own, and close it."""
        context = self.send(None, "Target.createBrowserContext")["browserContextId"]
        created = self.send(None, "Target.createTarget", url="about:blank", browserContextId=context, newWindow=True)
        attached = self.send(None, "Target.attachToTarget", targetId=created["targetId"], flatten=True)
        yield Browser(self, attached["sessionId"])
        self.send(None, "Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        for descriptor in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._log.close()

    def send(self, session: str | None, method: str, **given: object) -> Message:
        """Return the answer to one command of a page; raise AssertionError where it is an error."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._number:
                assert "error" not in got, (method, got["error"])
                result: Message = got["result"]
                return result
            self._events.setdefault(got.get("sessionId"), []).append(got)

    def take_events(self, session: str) -> list[Message]:
        """Return what has come of a page and was not taken yet."""
        return self._events.pop(session, [])

    def collect(self, seconds: float) -> None:
        """Receive what comes within a time."""
        end = time.perf_counter() + seconds
        while (rest := end - time.perf_counter()) > 0:
            if b"\0" in self._buffer or select.select([self._read], [], [], rest)[0]:
                got = self._receive()
                self._events.setdefault(got.get("sessionId"), []).append(got)

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


class Browser:
    """One page; `events` are those that came of it, `output` is its console and exceptions."""

    def __init__(self, chromium: Chromium, session: str) -> None:
        self._chromium, self._session = chromium, session
        self.events: list[Message] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **given: object) -> Message:
        """Return the answer to one command; raise AssertionError where it is an error."""
        answer = self._chromium.send(self._session, method, **given)
        self.events += self._chromium.take_events(self._session)
        return answer

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
            self.collect(0.05)

    def collect(self, seconds: float) -> None:
        """Take the events that come within a time."""
        self._chromium.collect(seconds)
        self.events += self._chromium.take_events(self._session)

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


@contextmanager
def chromium(profile: Path, rules: str = "", *options: str) -> Iterator[Chromium]:
    """Start a Chromium, and end it."""
    started = Chromium(profile, rules, *options)
    try:
        yield started
    finally:
        started.close()


@contextmanager
def browser(profile: Path, rules: str = "", *options: str) -> Iterator[Browser]:
    """Start a Chromium of one page, and end it."""
    with chromium(profile, rules, *options) as started, started.page() as page:
        yield page
