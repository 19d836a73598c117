"""Clients over TCP that keep to no rule of HTTP, and a thousand of them at once, beside somebody who looks honestly."""

from __future__ import annotations

import http.client
import resource
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest
from served_page import ServedPage, serving_page

from supervisor.control.client import Client
from supervisor.web.assets import load_assets
from tests.rigs.core_waits import OwnTime
from tests.view_by_hand import FakeView, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.waits,
    pytest.mark.xdist_group("hostile clients"),  # the page is started once
]

CROWD = 1000
ANSWERED_S = 2.0
UNDISTURBED_S = 0.1
"""What an answer takes at most where nobody disturbs the page; where it takes longer now, all limits are as longer."""
ASKED_EVERY_S = 0.1
"""How often somebody honest asks page and daemon: to be asked without a pause takes the page more than the crowd."""
STATUS_S = 1.0
HELD_S = 6.0
"""For how long a crowd stays: longer than a silent connection may."""
ASKED = 5
LIMIT_S = 20.0
GIVEN_UP_S = 120.0
COME_AGAIN, COME_AGAIN_S = 30, 0.1
SILENCE_S = 1.0
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = next(path for path in load_assets() if "uPlot" in path and path.endswith(".js"))


@pytest.fixture(scope="module")
def daemon() -> Iterator[Client]:
    with serving(FakeView()) as path:
        yield Client(path)


@pytest.fixture(scope="module")
def page(state: Path, daemon: Client) -> Iterator[ServedPage]:
    with serving_page(state, socket=Path(daemon.path)) as served:
        assert served.sign_in().status == 200
        yield served


@pytest.fixture(scope="module")
def undisturbed(state: Path, daemon: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """A page of the same record to which no crowd comes: what it takes to answer is this machine's, at this moment."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(state / "supervisor.db", folder)
    with serving_page(folder, socket=Path(daemon.path)) as served:
        assert served.sign_in().status == 200
        yield served


def head(page: ServedPage, *lines: str, method: str = "GET", path: str = "/") -> bytes:
    given = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{page.port}", *lines]
    return "\r\n".join(given).encode("latin-1") + b"\r\n\r\n"


def talk(page: ServedPage, request: bytes) -> tuple[list[int], bool]:
    """Return the status of each answer to what is sent, and whether the server hung up."""
    with socket.create_connection(("127.0.0.1", page.port), SILENCE_S) as connection:
        got, closed = b"", False
        try:
            connection.sendall(request)
            while part := connection.recv(1 << 20):
                got += part
            closed = True
        except TimeoutError:
            pass
        except OSError:
            closed = True
    return [int(rest[:3]) for rest in got.split(b"HTTP/1.1 ")[1:]], closed


def test_two_requests_that_follow_each_other_have_two_answers(page: ServedPage) -> None:
    assert talk(page, head(page) + head(page, "Connection: close", path="/nothing")) == ([200, 404], True)


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: {length}", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: {length}"],
        ["Content-Length: 0", "Content-Length: {length}"],
        ["Content-Length: 0, {length}"],
        ["Content-Length: +{length}"],
        ["Content-Length: 0x10"],
        ["Content-Length: 1_0"],
        ["Content-Length: " + "9" * 400],
        ["Content-Length: -1"],
        ["Content-Length:"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: x"],
        ["Transfer-Encoding : chunked"],
        ["Transfer-Encoding\r\n : chunked"],
        ["Transfer-Encoding: \x0bchunked"],
        ["X: y\rTransfer-Encoding: chunked"],
        ["X: \x00"],
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_a_proxy_may_end_elsewhere_is_refused_and_hung_up_on(
    page: ServedPage, method: str, lines: list[str]
) -> None:
    body = b"0\r\n\r\n" + SMUGGLED
    given = [line.format(length=len(body)) for line in lines]
    answers, closed = talk(page, head(page, *given, method=method, path="/session") + body)
    assert (answers, closed) == ([400], True)


def test_a_body_that_breaks_off_is_no_defect_of_the_page(page: ServedPage) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as connection:
        connection.sendall(head(page, "Content-Length: 900", method="POST", path="/session") + b"{")
    assert page.get("/api/overview").status == 200
    assert "Traceback" not in (page.state / "page.log").read_text()


@pytest.mark.parametrize(
    "chunk", [b"-1", b"0x5", b" 5", b"g", b"5\n", b"", b"5;" + b"a" * 20_000, b"F" * 21, b"0" * 100 + b"5"]
)
def test_chunks_without_a_length_are_refused(page: ServedPage, chunk: bytes) -> None:
    sent = head(page, "Transfer-Encoding: chunked", method="POST", path="/session")
    answers, _ = talk(page, sent + chunk + b"\r\nhello\r\n" + SMUGGLED)
    assert answers in ([400], [413], [])


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n" + SMUGGLED,
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(5000)) + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET http://127.0.0.1/api/overview HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
)
def test_what_is_no_request_to_this_page_is_refused(page: ServedPage, request_bytes: bytes) -> None:
    answers, _ = talk(page, request_bytes)
    assert all(400 <= status < 500 for status in answers), answers


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "\x80\xff"])
def test_a_connection_is_not_made_another_protocols(page: ServedPage, upgrade: str) -> None:
    lines = ("Connection: Upgrade", f"Upgrade: {upgrade}", "Sec-WebSocket-Key: AAAA", "Sec-WebSocket-Version: 13")
    answers, _ = talk(page, head(page, *lines, path="/api/overview") + b"\x81\xff" + bytes(200))
    assert answers[0] == 401
    assert set(answers[1:]) <= {400}


# --- a thousand at once ----------------------------------------------------------------------------------------------


def silent(_: ServedPage) -> bytes:
    return b""


def half_a_request(page: ServedPage) -> bytes:
    return head(page)[:-2]


def a_body_that_does_not_come(page: ServedPage) -> bytes:
    return head(page, "Content-Length: 900", method="POST", path="/session") + b"{"


def chunks_without_end(page: ServedPage) -> bytes:
    return head(page, "Transfer-Encoding: chunked", method="POST", path="/nothing") + b"5\r\nhello\r\n" * 200


def answers_that_are_not_read(page: ServedPage) -> bytes:
    return head(page, path=BIG) * 100


def last_answers_that_are_not_read(page: ServedPage) -> bytes:
    return head(page, path=BIG) * 30 + head(page, "Connection: close", path=BIG)


@contextmanager
def crowd_of(page: ServedPage, request: bytes) -> Iterator[None]:
    """A thousand connections that send this and read nothing; some of those that are ended come again."""
    over = threading.Event()

    def hold() -> None:
        with select.epoll() as ended, ExitStack() as held:
            places: dict[int, socket.socket] = {}

            def leave() -> None:
                for place in places.values():
                    place.close()

            held.callback(leave)

            def come() -> None:
                place = socket.socket()
                place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                place.setblocking(False)
                place.connect_ex(("127.0.0.1", page.port))
                with suppress(OSError):
                    place.send(request)
                places[place.fileno()] = place
                ended.register(place, select.EPOLLRDHUP)  # what is to be read stays there

            for _ in range(CROWD):
                come()
            while not over.is_set():
                for descriptor, _ in ended.poll(COME_AGAIN_S, COME_AGAIN):
                    places.pop(descriptor).close()
                    come()
                over.wait(COME_AGAIN_S)

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        yield
    finally:
        over.set()
        holding.join()


@pytest.fixture
def room_for_a_crowd() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CROWD:
        pytest.skip("too few descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CROWD), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_for_answer(page: ServedPage) -> float:
    """Return how long an honest client, which asks again when it is refused, waits for its answer.

    Waits for a core are left out: the crowd is a thread of this process, and all of it has two cores.
    """
    asked = OwnTime(page.pid)
    while (waited_s := asked.read_s()) < GIVEN_UP_S:
        with suppress(OSError, http.client.HTTPException):
            if page.get("/api/overview").status == 200:
                return asked.read_s()
    return waited_s


@pytest.mark.xdist_group("a thousand clients")  # several thousand at a time would hold up each other
@pytest.mark.usefixtures("room_for_a_crowd")
@pytest.mark.parametrize(
    "request_of",
    [
        silent,
        half_a_request,
        a_body_that_does_not_come,
        chunks_without_end,
        answers_that_are_not_read,
        last_answers_that_are_not_read,
    ],
)
def test_a_thousand_keep_an_honest_client_from_neither_page_nor_daemon(
    page: ServedPage, undisturbed: ServedPage, daemon: Client, request_of: Callable[[ServedPage], bytes]
) -> None:
    waited_s: list[float] = []
    undisturbed_s: list[float] = []
    asked_s: list[float] = []
    over = threading.Event()

    def ask_status() -> None:
        while not over.wait(ASKED_EVERY_S):
            began_s = time.perf_counter()
            daemon.get("/v1/status")
            asked_s.append(time.perf_counter() - began_s)

    asking = threading.Thread(target=ask_status)
    with crowd_of(page, request_of(page)):
        asking.start()
        end_s = time.perf_counter() + HELD_S
        while time.perf_counter() < end_s or len(waited_s) < ASKED:
            waited_s.append(wait_for_answer(page))
            assert waited_s[-1] < GIVEN_UP_S
            began_s = time.perf_counter()
            assert undisturbed.get("/api/overview").status == 200
            undisturbed_s.append(time.perf_counter() - began_s)
            over.wait(ASKED_EVERY_S)
        over.set()
        asking.join()
    slower = max(1.0, median(undisturbed_s) / UNDISTURBED_S)
    assert median(waited_s) < ANSWERED_S * slower
    assert max(waited_s) < LIMIT_S * slower
    assert median(asked_s) < STATUS_S * slower
    assert "Traceback" not in (page.state / "page.log").read_text()
