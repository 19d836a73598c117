"""A real `supervisorctl web` over a record of its own, and a plain HTTP client for it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

LIMIT_S = 60.0


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        decoded: dict[str, object] = json.loads(self.body)
        return decoded


@dataclass
class ServedPage:
    """Where a page is served, and the token of its address."""

    address: str
    state: Path
    pid: int = 0
    secrets: dict[str, str] = field(default_factory=dict)
    """The headers of a session, once one was opened."""

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return urlsplit(self.address).fragment

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return the answer to a request that is sent as it is given: nothing is normalized."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        given = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        found = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def sign_in(self, token: str | None = None) -> Answer:
        """Exchange a token, by default that of the address, for a session."""
        body = json.dumps({"token": self.token if token is None else token}).encode()
        answer = self.ask("/session", "POST", body)
        if answer.status == 200:
            cookie = answer.headers["set-cookie"].partition(";")[0]
            self.secrets = {"Cookie": cookie, "X-Page-Key": str(answer.json["key"])}
        return answer

    def get(self, path: str) -> Answer:
        """Return the answer to GET with the session's secrets."""
        return self.ask(path, headers=self.secrets)


@contextmanager
def serving_page(state: Path, *options: str, socket: Path | None = None) -> Iterator[ServedPage]:
    """Serve the record of a state directory, and what a daemon at `socket` answers, until the end."""
    config = state / "page.toml"
    config.write_text(f'[supervisor]\nstate_dir = "{state}"\n')
    daemon = [] if socket is None else ["--socket", str(socket)]
    given = ["--config", str(config), *daemon, "web", "--no-browser", *options]
    command = [sys.executable, "-m", "supervisor.cli", *given]
    with (
        (state / "page.log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as served,
    ):
        try:
            assert served.stdout is not None
            address = served.stdout.readline().strip()
            assert address, (state / "page.log").read_text()
            yield ServedPage(address, state, served.pid)
        finally:
            served.terminate()
            assert served.wait(LIMIT_S) == 0, (state / "page.log").read_text()
