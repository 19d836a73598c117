"""The page as a service: sockets passed as systemd passes them, tokens at a socket of their own, an end by itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.config.settings import WebSettings
from supervisor.control.client import Client
from supervisor.web.login import REVOKE, TOKEN, ask_login
from supervisor.web.service import EX_CONFIG, NotServableError, open_doors
from tests.view_by_hand import FakeView, serving

LIMIT_S = 60.0
PASS = 'fd=3; for given in $FDS; do eval "exec $fd<&$given"; fd=$((fd+1)); done; export LISTEN_PID=$$; exec "$@"'


def unix_socket(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


@contextmanager
def service(
    state: Path, *passed: socket.socket, idle_s: float = 600.0, daemon: Path = Path("/nonexistent")
) -> Iterator[subprocess.Popen[str]]:
    """Start the page with these sockets, until it ends or is ended."""
    config = state / "service.toml"
    config.write_text(f'[supervisor]\nstate_dir = "{state}"\n')
    given = ["--config", str(config), "--socket", str(daemon), "web", "--activated", "--idle-s", str(idle_s)]
    argv = [sys.executable, "-m", "supervisor.cli", *given]
    high = [socket.fromfd(item.fileno(), item.family, item.type) for item in passed]
    fds = [item.fileno() for item in high]
    environment = {"LISTEN_FDS": str(len(fds)), "FDS": " ".join(map(str, fds)), "STATE_DIRECTORY": str(state)}
    environment["PATH"] = "/usr/bin:/bin"
    with subprocess.Popen(
        ["bash", "-c", PASS, "bash", *argv], env=environment, pass_fds=fds, stderr=subprocess.PIPE, text=True
    ) as started:
        for item in (*high, *passed):
            item.close()
        try:
            yield started
        finally:
            if started.poll() is None:
                started.terminate()
            started.wait(LIMIT_S)


def ask(path: Path, request: str) -> tuple[int, dict[str, str], bytes]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(str(path))
        connection.sendall(request.replace("\n", "\r\n").encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, body


def get(path: Path, target: str, more: str = "", host: str = "localhost:9000") -> int:
    return ask(path, f"GET {target} HTTP/1.1\nHost: {host}\nConnection: close\n{more}\n")[0]


def sign_in(path: Path, token: str) -> str:
    """Return the headers of a session."""
    body = json.dumps({"token": token})
    head = f"POST /session HTTP/1.1\nHost: localhost:9000\nConnection: close\nContent-Length: {len(body)}\n\n{body}"
    status, headers, answer = ask(path, head)
    assert status == 200, answer
    cookie = headers["set-cookie"].partition(";")[0]
    return f"Cookie: {cookie}\nX-Page-Key: {json.loads(answer)['key']}\n"


def test_a_token_of_the_login_socket_opens_a_session_that_outlives_the_service(state: Path, tmp_path: Path) -> None:
    web, login = tmp_path / "web.sock", tmp_path / "login.sock"
    with service(state, unix_socket(web), unix_socket(login)):
        session = sign_in(web, ask_login(login, TOKEN))
        assert get(web, "/api/overview", session) == 200
    web.unlink()
    login.unlink()
    with service(state, unix_socket(web), unix_socket(login)):
        assert get(web, "/api/overview", session) == 200
        assert get(web, "/api/overview", session, host="evil.example") == 403
        assert ask_login(login, REVOKE) == "1"
        assert get(web, "/api/overview", session) == 401


def test_the_metrics_on_its_socket_are_those_of_the_daemon(state: Path, tmp_path: Path) -> None:
    web = tmp_path / "web.sock"
    with serving(FakeView()) as daemon, service(state, unix_socket(web), daemon=daemon):
        for accept in ("text/plain", "application/openmetrics-text"):
            asked = f"GET /metrics HTTP/1.1\nHost: localhost\nConnection: close\nAccept: {accept}\n\n"
            status, headers, body = ask(web, asked)
            assert (status, body.decode()) == (200, Client(daemon).get_text("/metrics", accept))
            assert headers["content-type"].startswith(accept)


def test_it_ends_when_nobody_looks(state: Path, tmp_path: Path) -> None:
    with service(state, unix_socket(tmp_path / "web.sock"), idle_s=0.5) as started:
        assert started.wait(LIMIT_S) == 0


def test_the_login_socket_serves_no_page(state: Path, tmp_path: Path) -> None:
    web, login = tmp_path / "web.sock", tmp_path / "login.sock"
    with service(state, unix_socket(web), unix_socket(login)):
        with pytest.raises(ConnectionAbortedError):
            ask_login(login, "GET / HTTP/1.1")
        assert get(web, "/") == 200


def test_an_address_beyond_the_loopback_is_refused_without_tls(state: Path) -> None:
    with service(state, socket.create_server(("0.0.0.0", 0))) as started:
        assert started.wait(LIMIT_S) == EX_CONFIG
        assert started.stderr is not None
        assert "web.tls_certificate" in started.stderr.read()


def test_started_by_hand_it_says_what_to_use() -> None:
    with pytest.raises(NotServableError, match="supervisorctl web"):
        open_doors([], WebSettings())
