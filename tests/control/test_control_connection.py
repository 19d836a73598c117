"""A connection over which nothing comes to its end is ended, whichever part of a request or of an answer it is."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from supervisor.control.connection import TimedProtocol
from supervisor.control.woken_server import WokenServer, build_config

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
WHOLE = HEAD + b"Content-Length: 2\r\n\r\nab"
ANSWER = b"x" * (1 << 20)
LIMIT_S = 60.0


class Hasty(TimedProtocol):
    """Waits a short while for each."""

    request_limit_s = exchange_limit_s = 0.3
    connection_limit_s = None


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    """Read all of a request, then say much."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


async def answer_at_once(_scope: Any, _receive: Any, send: Any) -> None:
    """Say something without reading the request's body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@pytest.fixture
def port() -> Iterator[int]:
    with served(answer) as where:
        yield where


@contextmanager
def served(application: Any) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = WokenServer(build_config(application, Hasty, connections=64, keep_alive_s=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    yield listening.getsockname()[1]
    server.end()
    thread.join()


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (HEAD, b"X: 1\r\n"),
        (HEAD + b"Content-Length: 1000000\r\n\r\n", b"a"),
        (WHOLE + HEAD, b"X: 1\r\n"),
    ],
    ids=["headers_drip", "a_body_drips", "a_second_request_drips"],
)
def test_what_never_comes_to_its_end_is_ended(port: int, begin: bytes, drip: bytes) -> None:
    ended = threading.Event()
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(LIMIT_S)
        peer.sendall(begin)

        def go_on() -> None:
            with suppress(OSError):
                while not ended.wait(0.05):
                    peer.sendall(drip)

        dripping = threading.Thread(target=go_on)
        dripping.start()
        with suppress(ConnectionResetError):
            while peer.recv(1 << 16):
                pass  # until it is closed: a read beyond the limit fails this test
        ended.set()
        dripping.join()


def test_who_never_reads_its_answers_is_left(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(WHOLE * 64)
        until(lambda: len(connections_of(port)) == 1)
        until(lambda: not connections_of(port))


def connections_of(port: int) -> list[str]:
    """Return the connections at the server's side that a process has open: of a closed one the inode is 0."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01" and row[9] != "0"]


def until(holds: Callable[[], bool]) -> None:
    end_s = time.perf_counter() + LIMIT_S
    while not holds():
        assert time.perf_counter() < end_s
        time.sleep(0.01)


def test_one_that_asks_again_and_again_is_kept(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as peer, peer.makefile("rb") as answers:
        for _ in range(20):
            peer.sendall(WHOLE)
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(len(ANSWER)) == ANSWER


@pytest.mark.parametrize(
    "lengths", [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"]
)
def test_a_body_in_chunks_is_refused_before_the_first_of_them_is_taken(
    caplog: pytest.LogCaptureFixture, lengths: bytes
) -> None:
    asked: list[object] = []

    async def note(scope: object, receive: object, send: object) -> None:
        asked.append(scope)
        await answer_at_once(scope, receive, send)

    caplog.set_level(logging.ERROR)
    with served(note) as where, socket.create_connection(("127.0.0.1", where)) as peer:
        peer.settimeout(LIMIT_S)
        peer.sendall(HEAD + lengths + b"\r\n" + b"5\r\nhello\r\n" * 200)
        with peer.makefile("rb") as answers:
            got = answers.read()
    assert got.split(b" ")[1] == b"400"
    assert b"send the body whole, with Content-Length." in got
    assert (asked, caplog.records) == ([], [])


def test_garbage_after_a_request_that_is_not_read_is_answered_once_and_is_no_error_of_the_daemon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The answer to a HEAD has no body, nor has a 400 to it."""
    caplog.set_level(logging.ERROR)
    with served(answer_at_once) as where, socket.create_connection(("127.0.0.1", where)) as peer:
        peer.settimeout(LIMIT_S)
        peer.sendall(HEAD.replace(b"POST", b"HEAD", 1) + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        with peer.makefile("rb") as answers:
            assert answers.read().split(b" ")[1] == b"400"
    assert caplog.records == []
