"""`[metrics] listen`: what scrapers get over TCP and over a socket, and who gets nothing."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from view_by_hand import KNOWN

from supervisor.control.metrics_server import CONNECTIONS, MetricsServer, why_foreign
from supervisor.metrics.exposition import text_of
from supervisor.metrics.formats import CLASSIC, OPENMETRICS
from supervisor.metrics.known import Known


@contextmanager
def serving(*addresses: str, hosts: tuple[str, ...] = ()) -> Iterator[MetricsServer]:
    server = MetricsServer(lambda: KNOWN, addresses, hosts)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(server: MetricsServer, method: str = "GET", path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    host, port = server.addresses[0][:2]
    connection = http.client.HTTPConnection(host, port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers.get("Content-Type", ""), text


def test_a_scraper_gets_the_same_over_tcp_as_on_the_control_socket() -> None:
    with serving("127.0.0.1:0") as server:
        assert ask(server) == (200, CLASSIC, text_of(KNOWN))
        status, kind, text = ask(server, Accept="application/openmetrics-text;version=1.0.0")
    assert (status, kind, text.endswith("# EOF\n")) == (200, OPENMETRICS, True)


def test_a_unix_socket_answers_and_goes_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with serving(str(path)), socket.socket(socket.AF_UNIX) as client:
        assert path.stat().st_mode & 0o777 == 0o660
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"rocm_supervisor_build_info" in answer
    assert not path.exists()


def test_a_crowd_at_one_address_takes_nothing_from_another(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with serving("127.0.0.1:0", str(path)) as server, ExitStack() as crowd:
        for _ in range(5 * CONNECTIONS):  # more than the server takes at both addresses
            peer = crowd.enter_context(socket.create_connection(server.addresses[0][:2]))
            with suppress(OSError):
                peer.send(b"GET /metrics HTTP/1.1\r\nHost:")
        client = crowd.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Mode": "no-cors"},
        {"Host": "evil.example:9400"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "gpubox.evil.example"},
    ],
)
def test_a_page_of_a_browser_gets_nothing(headers: dict[str, str]) -> None:
    with serving("127.0.0.1:0", hosts=("gpubox",)) as server:
        status, _, text = ask(server, **headers)
    assert status == 403
    assert "rocm_supervisor" not in text


def test_names_of_the_machine_are_configured_and_addresses_need_no_name() -> None:
    names = frozenset({"gpubox"})
    for host in (b"gpubox", b"GPUBOX:9400", b"127.0.0.1:9400", b"10.0.0.7:9400", b"[::1]:9400"):
        assert why_foreign([(b"host", host)], names) is None, host
    for hosts in ([], [b"gpubox", b"gpubox"], [b""], [b"999.0.0.1"], [b"[gpubox]"]):
        assert why_foreign([(b"host", host) for host in hosts], names) is not None, hosts


def test_nothing_else_is_served_and_nothing_can_be_changed() -> None:
    with serving("127.0.0.1:0") as server:
        assert [ask(server, path=path)[0] for path in ("/", "/v1/status", "/metrics/x")] == [404, 404, 404]
        assert [ask(server, method)[0] for method in ("POST", "PUT", "DELETE")] == [405, 405, 405]


def test_a_deciding_thread_that_does_not_answer_fails_one_scrape_and_not_the_next() -> None:
    answers: list[Known | Exception] = [KNOWN, TimeoutError("busy")]

    def known() -> Known:
        found = answers.pop()
        if isinstance(found, Exception):
            raise found
        return found

    server = MetricsServer(known, ["127.0.0.1:0"])
    server.start()
    try:
        assert [ask(server)[0], ask(server)[0]] == [503, 200]
    finally:
        server.stop()


def test_an_address_in_use_is_a_problem_with_its_name_and_the_others_are_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        with serving(busy, "127.0.0.1:99999", str(tmp_path / "m.sock")) as server:
            assert server.problem is not None
            assert f"metrics.listen {busy}: Address already in use" in server.problem
            assert "a port is at most 65535" in server.problem
            assert server.addresses == [str(tmp_path / "m.sock")]


def test_without_an_address_there_is_no_thread() -> None:
    with serving() as server:
        assert (server.addresses, server.problem) == ([], None)
        assert not server._thread.is_alive()
