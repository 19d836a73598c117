"""A real Firefox, driven by its remote protocol Marionette: what a test needs of it and no more."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
LIMIT_S = 120.0
PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}


class Firefox:
    """One Firefox with one page; `log` is what it prints."""

    def __init__(self, profile: Path) -> None:
        assert FIREFOX is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        profile.mkdir()
        given = {**PREFERENCES, "marionette.port": port}
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in given.items()]
        (profile / "user.js").write_text("\n".join(lines))
        self.log = profile.parent / f"{profile.name}.log"
        command = [
            FIREFOX,
            "--headless",
            "--no-remote",
            "--marionette",
            "--remote-allow-system-access",
            "--profile",
            str(profile),
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={"HOME": str(profile), "MOZ_HEADLESS": "1"}
            )
        self._number = 0
        self._buffer = b""
        self._socket = self._connect(port)
        self._receive()
        answer = self.send("WebDriver:NewSession", capabilities={})
        self.version = str(answer["capabilities"]["browserVersion"])

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.send("Marionette:Quit", flags=["eForceQuit"])
        self._socket.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def send(self, method: str, **given: object) -> Any:
        """Return the answer to one command; raise AssertionError where it is an error."""
        self._number += 1
        message = json.dumps([0, self._number, method, given])
        self._socket.sendall(f"{len(message.encode())}:{message}".encode())
        _, number, error, result = self._receive()
        assert (number, error) == (self._number, None), (method, error)
        return result

    def open(self, url: str) -> None:
        """Have the page show an address, and wait until it was loaded."""
        self.send("WebDriver:Navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return self.send("WebDriver:ExecuteScript", script=f"return {expression}", args=[])["value"]

    def run(self, statement: str) -> None:
        """Run a statement in the page."""
        self.send("WebDriver:ExecuteScript", script=statement, args=[])

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true."""
        self.wait_until(lambda: bool(self.evaluate(f"Boolean({expression})")))

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        end = time.perf_counter() + LIMIT_S
        while not holds():
            assert time.perf_counter() < end, (self.evaluate("document.body.innerText"), self.complaints())
            time.sleep(0.05)

    def press(self, text: str) -> None:
        """Press keys, each of one character of WebDriver's."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        keys = {"type": "key", "id": "keyboard", "actions": actions}
        self.send("WebDriver:PerformActions", actions=[keys])

    def resize(self, width: int, height: int) -> None:
        self.send("WebDriver:SetWindowRect", width=width, height=height)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("WebDriver:TakeScreenshot", full=True)["value"]))

    def complaints(self) -> list[str]:
        """Return what its console has of the page: exceptions, errors, and violations of its policy."""
        self.send("Marionette:SetContext", value="chrome")
        script = (
            "return Services.console.getMessageArray().map(m => `${m.sourceName || ''} ${m.errorMessage || m.message}`)"
        )
        found = self.send("WebDriver:ExecuteScript", script=script, args=[])["value"]
        self.send("Marionette:SetContext", value="content")
        return [line for line in found if "127.0.0.1" in line or "Content-Security-Policy" in line]

    def _connect(self, port: int) -> socket.socket:
        end = time.perf_counter() + LIMIT_S
        while True:
            assert self._process.poll() is None, self.log.read_text(errors="replace")
            try:
                return socket.create_connection(("127.0.0.1", port), LIMIT_S)
            except OSError:
                assert time.perf_counter() < end, self.log.read_text(errors="replace")
                time.sleep(0.1)

    def _receive(self) -> Any:
        while b":" not in self._buffer:
            self._read()
        length, _, self._buffer = self._buffer.partition(b":")
        while len(self._buffer) < int(length):
            self._read()
        message, self._buffer = self._buffer[: int(length)], self._buffer[int(length) :]
        return json.loads(message)

    def _read(self) -> None:
        got = self._socket.recv(1 << 20)
        assert got, "Firefox ended"
        self._buffer += got


@contextmanager
def firefox(profile: Path) -> Iterator[Firefox]:
    """Start a Firefox, and end it."""
    started = Firefox(profile)
    try:
        yield started
    finally:
        started.close()
