"""The client says what is wrong with the socket, and takes no answer on trust."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from supervisor.control.client import Client, ControlError, UnreachableError, quoted
from supervisor.web.login import TOKEN, ask_login


@contextmanager
def answering(path: Path, answer: bytes, *, hold: bool = False) -> Iterator[None]:
    """A server that takes one request and sends `answer`."""
    done = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(answer)
                if hold:
                    done.wait(120)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff garbage",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n[1]",
        b"HTTP/1.1 abc\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
        b"220 mail.example ESMTP\r\n",
    ],
)
def test_an_answer_that_is_none_is_shown_as_none(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer), pytest.raises(ControlError) as caught:
        Client(tmp_path / "s").get("/v1/status")
    assert caught.value.code == "bad_answer"


def test_a_daemon_that_is_silent_is_given_up(tmp_path: Path) -> None:
    with answering(tmp_path / "s", b"HTTP/1.1 200", hold=True), pytest.raises(UnreachableError) as caught:
        Client(tmp_path / "s", timeout_s=0.2).get("/v1/status")
    assert caught.value.code == "timeout"


@contextmanager
def dripping(path: Path) -> Iterator[None]:
    """A server that sends a byte now and then, for as long as it is listened to."""
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            peer, _ = listening.accept()
            with peer, suppress(OSError):
                while not ended.wait(0.02):
                    peer.sendall(b"1")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def test_an_answer_that_comes_byte_by_byte_for_ever_is_given_up(tmp_path: Path) -> None:
    with dripping(tmp_path / "s"), pytest.raises(UnreachableError, match="no whole answer") as caught:
        Client(tmp_path / "s", timeout_s=0.2).get("/v1/status")
    assert caught.value.code == "timeout"


def test_a_token_that_comes_byte_by_byte_for_ever_is_given_up(tmp_path: Path) -> None:
    with dripping(tmp_path / "s"), pytest.raises(TimeoutError):
        ask_login(tmp_path / "s", TOKEN, limit_s=0.3)


def test_a_queue_that_a_crowd_has_filled_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ExitStack() as held, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        with suppress(BlockingIOError):
            while True:
                stranger = held.enter_context(socket.socket(socket.AF_UNIX))
                stranger.setblocking(False)
                stranger.connect(str(path))
        with pytest.raises(UnreachableError) as caught:
            Client(path, timeout_s=0.2).get("/v1/status")
        assert caught.value.code == "timeout", "it has waited"


def test_no_socket_means_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        Client(tmp_path / "absent").get("/v1/status")
    assert caught.value.code == "not_running"
    assert "--socket" in caught.value.remedy


def test_a_socket_nobody_listens_on_means_no_daemon(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    with pytest.raises(UnreachableError, match="no daemon listens"):
        Client(tmp_path / "s").get("/v1/status")


def test_a_path_too_long_is_an_answer_too(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        Client(tmp_path / ("x" * 200)).get("/v1/status")


def test_an_error_without_a_body_of_ours_is_still_an_error(tmp_path: Path) -> None:
    with answering(tmp_path / "s", b'HTTP/1.1 502 Bad\r\n\r\n{"error": "x"}'), pytest.raises(ControlError, match="502"):
        Client(tmp_path / "s").get("/v1/status")


def test_names_are_quoted_into_the_path() -> None:
    assert quoted("yolo-1_a.b~") == "yolo-1_a.b~"
    assert quoted("a/b?c=ü \r\n") == "a%2Fb%3Fc%3D%C3%BC%20%0D%0A"
