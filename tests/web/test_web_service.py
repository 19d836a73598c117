"""The page as a service: sockets passed as systemd passes them, tokens at a socket of their own, an end by itself."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path

import pytest

from supervisor.control.client import Client
from supervisor.web.configured import PageSettings
from supervisor.web.login import REVOKE, TOKEN, ask_login
from supervisor.web.serve import CONNECTIONS_PER_USER, Visits, end_when_idle
from supervisor.web.service import EX_CONFIG, NotServableError, open_doors
from supervisor.web.sessions import Sessions
from tests.alerts.certificate_by_hand import make_certificate
from tests.view_by_hand import FakeView, serving

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
PASS = 'fd=3; for given in $FDS; do eval "exec $fd<&$given"; fd=$((fd+1)); done; export LISTEN_PID=$$; exec "$@"'


def unix_socket(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


@contextmanager
def service(
    state: Path,
    *passed: socket.socket,
    idle_s: float = 600.0,
    daemon: Path = Path("/nonexistent"),
    settings: str = "",
) -> Iterator[subprocess.Popen[str]]:
    """Start the page with these sockets, until it ends or is ended."""
    config = state / "service.toml"
    config.write_text(f'[supervisor]\nstate_dir = "{state}"\n{settings}')
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


def test_it_does_not_end_while_a_request_is_answered() -> None:
    """On a busy machine an answer takes longer than the service is idle before it ends."""
    sessions, ended = Sessions(lambda: 0.0), []

    async def answer(*_: object) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(end_when_idle([other, visits], sessions, 0.01, lambda: ended.append("early")), 0.2)

    visits, other = Visits(answer), Visits(answer)

    async def visit() -> None:
        await visits({}, None, None)
        await asyncio.wait_for(end_when_idle([other, visits], sessions, 0.01, lambda: ended.append("idle")), LIMIT_S)

    asyncio.run(visit())
    assert ended == ["idle"]


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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of hooks.example, with its key in the same file."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def ask_by_tls(port: int, certificate: Path, path: str, body: str | None = None, **headers: str) -> HTTPResponse:
    """Ask as a browser that trusts this certificate alone."""
    trusting = ssl.create_default_context(cafile=str(certificate))
    connection = HTTPSConnection("hooks.example", port, context=trusting, timeout=LIMIT_S)
    connection._create_connection = lambda *_: socket.create_connection(("127.0.0.1", port), LIMIT_S)  # type: ignore[attr-defined]
    connection.request("GET" if body is None else "POST", path, body, headers)
    return connection.getresponse()


def test_beyond_the_loopback_it_is_served_by_tls_and_for_a_token_alone(
    state: Path, tmp_path: Path, certificate: Path
) -> None:
    login = tmp_path / "login.sock"
    listening = socket.create_server(("0.0.0.0", 0))
    port = listening.getsockname()[1]
    settings = f'[web]\nhosts = ["hooks.example"]\ntls_certificate = "{certificate}"\ntls_key = "{certificate}"\n'
    with service(state, listening, unix_socket(login), settings=settings):
        assert ask_by_tls(port, certificate, "/").status == 200
        assert ask_by_tls(port, certificate, "/api/overview").status == 401
        assert ask_by_tls(port, certificate, "/metrics").status == 401
        opened = ask_by_tls(port, certificate, "/session", json.dumps({"token": ask_login(login, TOKEN)}))
        cookie, _, attributes = opened.headers["Set-Cookie"].partition("; ")
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(attributes.split("; "))
        secrets = {"Cookie": cookie, "X-Page-Key": json.load(opened)["key"]}
        assert ask_by_tls(port, certificate, "/api/overview", **secrets).status == 200
        for name in (f"127.0.0.1:{port}", "localhost", "evil.example"):
            assert ask_by_tls(port, certificate, "/api/overview", **secrets, Host=name).status == 403
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: hooks.example\r\n\r\n")
            with suppress(ConnectionResetError):
                assert b"HTTP/" not in plain.recv(4096)


def test_connections_that_begin_no_tls_keep_nobody_out_for_long(state: Path, certificate: Path) -> None:
    listening = socket.create_server(("0.0.0.0", 0))
    port = listening.getsockname()[1]
    settings = f'[web]\nhosts = ["hooks.example"]\ntls_certificate = "{certificate}"\ntls_key = "{certificate}"\n'
    with service(state, listening, settings=settings), ExitStack() as silent:
        assert ask_by_tls(port, certificate, "/").status == 200
        for _ in range(CONNECTIONS_PER_USER):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S))
        end_s = time.perf_counter() + 40  # asyncio's own limit is a minute
        while not is_served(port, certificate):
            assert time.perf_counter() < end_s
            time.sleep(0.1)


def is_served(port: int, certificate: Path) -> bool:
    try:
        return ask_by_tls(port, certificate, "/").status == 200
    except OSError:
        return False


def test_a_certificate_that_cannot_be_used_is_named(state: Path, tmp_path: Path, certificate: Path) -> None:
    locked = tmp_path / "locked.pem"
    made = ["openssl", "genpkey", "-algorithm", "RSA", "-aes128", "-pass", "pass:x", "-out", str(locked)]
    subprocess.run(made, check=True, capture_output=True)
    for key, words in ((tmp_path / "none.pem", "No such file or directory"), (locked, "has a password")):
        settings = f'[web]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
        with service(state, socket.create_server(("0.0.0.0", 0)), settings=settings) as started:
            assert started.wait(LIMIT_S) == EX_CONFIG
            assert started.stderr is not None
            printed = started.stderr.read()
            assert (words in printed, str(key) in printed, "Traceback" in printed) == (True, True, False)


def test_started_by_hand_it_says_what_to_use() -> None:
    with pytest.raises(NotServableError, match="supervisorctl web"):
        open_doors([], PageSettings())


def test_the_settings_are_read_while_the_server_is_imported() -> None:
    """Both take a second or more where the machine is busy, and somebody waits for the page."""
    asked = "import sys, supervisor.cli.web; print('uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.strip() == "False", "the command begins with the settings, whatever it imports comes after"
