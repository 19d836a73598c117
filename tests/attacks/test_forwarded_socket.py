"""A page of another origin cannot act or look through a port that is forwarded to the control socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from forwarded_port import ForwardedPort, forwarded_port
from hypothesis import given
from hypothesis import strategies as st
from view_by_hand import FakeView, serving

from supervisor.control.client import Client
from supervisor.control.origin import why_foreign
from supervisor.core.events import Ask


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
def path(view: FakeView) -> Iterator[Path]:
    with serving(view) as where:
        yield where


@pytest.fixture
def forwarded(path: Path) -> Iterator[ForwardedPort]:
    with forwarded_port(path) as port:
        yield port


def ask(port: int, request: str) -> tuple[int, dict[str, str]]:
    """Send a request to the forwarded port as a browser would; return the status and the error."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        client.sendall(request.encode("latin-1"))
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"access-control-allow" not in head.lower()
    return int(head.split()[1]), json.loads(body).get("error", {})


# What browsers send (recorded from Chromium 150, Firefox 128 and Safari 17) and what a page can add to it.
STOP = "POST /v1/jobs/yolo/stop HTTP/1.1\r\n"
FOREIGN = {
    "no-cors fetch": STOP + "Host: localhost:{port}\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\n\r\n",
    "no-cors fetch from a sandboxed frame": STOP + "Host: daemon\r\nOrigin: null\r\nContent-Length: 0\r\n\r\n",
    "form with text/plain": STOP
    + "Host: localhost:{port}\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n"
    "Content-Length: 2\r\n\r\n{{}}",
    "a host equal to ours": STOP + "Host: daemon\r\nOrigin: http://daemon\r\nContent-Length: 0\r\n\r\n",
    "an old browser, DNS rebinding": STOP + "Host: evil.example:{port}\r\nContent-Length: 0\r\n\r\n",
    "a browser that hides its origin": STOP
    + "Host: daemon\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nContent-Length: 0\r\n\r\n",
    "a header in capitals": STOP + "HOST: daemon\r\nSEC-FETCH-SITE: cross-site\r\nContent-Length: 0\r\n\r\n",
    "an address": STOP + "Host: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n",
    "our name with a port": STOP + "Host: daemon:{port}\r\nContent-Length: 0\r\n\r\n",
    "our name as a domain": STOP + "Host: daemon.\r\nContent-Length: 0\r\n\r\n",
    "no host": "POST /v1/jobs/yolo/stop HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    "an image": "GET /v1/status HTTP/1.1\r\nHost: localhost:{port}\r\nSec-Fetch-Dest: image\r\n\r\n",
    "a rebound page that reads": "GET /v1/status HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n",
    "a preflight": "OPTIONS /v1/jobs/yolo/stop HTTP/1.1\r\nHost: daemon\r\nOrigin: http://evil.example\r\n"
    "Access-Control-Request-Method: POST\r\n\r\n",
    "a path that is not served": "GET /x HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n",
}


@pytest.mark.parametrize("request_text", FOREIGN.values(), ids=FOREIGN)
def test_a_request_of_a_page_is_refused_before_any_route(
    forwarded: ForwardedPort, view: FakeView, request_text: str
) -> None:
    status, error = ask(forwarded.port, request_text.format(port=forwarded.port))
    assert (status, error["code"]) == (403, "foreign_request")
    assert "web browser" in error["message"] or "another host" in error["message"]
    assert "supervisorctl" in error["remedy"]
    assert view.asked == []


def test_a_second_host_is_not_served(forwarded: ForwardedPort, view: FakeView) -> None:
    request = STOP + "Host: daemon\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", forwarded.port), timeout=120) as client:
        client.sendall(request.encode())
        assert client.recv(65536).split()[1] in {b"400", b"403"}
    assert view.asked == []


def test_the_socket_itself_refuses_them_too(path: Path, view: FakeView) -> None:
    """The forwarder needs no TCP: a browser extension or a proxy may speak to the unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(FOREIGN["no-cors fetch"].format(port=80).encode())
        assert client.recv(65536).split()[1] == b"403"
    assert view.asked == []


def test_a_foreign_request_does_not_wait_for_the_daemon(forwarded: ForwardedPort, view: FakeView) -> None:
    view.defect = AssertionError("the view was asked")
    status, _ = ask(forwarded.port, FOREIGN["an image"].format(port=forwarded.port))
    assert status == 403


def test_our_own_client_is_served(path: Path, view: FakeView) -> None:
    Client(path).post("/v1/jobs/yolo/stop")
    assert [(job, request) for job, request, _, _ in view.asked] == [("yolo", Ask.STOP)]


def test_curl_as_documented_is_served(path: Path) -> None:
    """`curl --unix-socket control.sock http://daemon/v1/status` sends these headers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: daemon\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n")
        assert client.recv(65536).split()[1] == b"200"


def test_a_flood_of_foreign_requests_is_one_log_line(
    forwarded: ForwardedPort, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        ask(forwarded.port, FOREIGN["an address"].format(port=forwarded.port))
    assert [record.getMessage() for record in caplog.records].count("control.foreign_request") == 1


TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20)
HEADERS = st.lists(st.tuples(TOKENS.map(str.encode), st.binary(max_size=30)), max_size=8)


@given(HEADERS, st.sampled_from([b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-purpose"]), st.binary())
def test_whatever_else_is_sent_a_browsers_header_refuses_it(
    headers: list[tuple[bytes, bytes]], name: bytes, value: bytes
) -> None:
    for at in range(len(headers) + 1):
        assert why_foreign([(b"host", b"daemon"), *headers[:at], (name, value), *headers[at:]]) is not None


@given(HEADERS, st.binary(max_size=30))
def test_only_our_host_is_served(headers: list[tuple[bytes, bytes]], host: bytes) -> None:
    served = why_foreign([*headers, (b"host", host)]) is None
    assert not served or host == b"daemon"
