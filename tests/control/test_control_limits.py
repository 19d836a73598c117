"""One client that holds connections open over TCP, and others that ask: of the same address, and of another."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from supervisor.control.connection import TimedProtocol
from supervisor.control.limits import ENDED_PER_TURN, STAYS_S, LimitedListener
from supervisor.control.woken_server import WokenServer, build_config

CONNECTIONS, OF_ONE = 8, 4
ANSWER = b"HTTP/1.1 200 OK\r\n"
GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
NEVER = b"GET /never HTTP/1.1\r\nHost: here\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n"
HALF = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{"
LIMIT_S = 30.0


class Served:
    """A server on a port of all loopback addresses; `/slow` is answered once `released` is set."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("0.0.0.0", 0))
        self.port: int = self.listening.getsockname()[1]
        self.released = threading.Event()
        self.slow = 0
        config = build_config(self._answer, TimedProtocol, connections=2 * CONNECTIONS, keep_alive_s=600)
        self.server = WokenServer(config)
        listener = LimitedListener(self.listening, CONNECTIONS, OF_ONE, self.server.list_waiting)
        self.thread = threading.Thread(target=lambda: self.server.run(sockets=[listener]), daemon=True)
        self.thread.start()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        import anyio.to_thread  # noqa: PLC0415 - with the server

        if scope["method"] == "POST":
            await receive()
            await receive()  # the rest of a body that does not come
        if scope["path"] == "/never":
            await asyncio.Event().wait()
        if scope["path"] == "/slow":
            self.slow += 1
            await anyio.to_thread.run_sync(self.released.wait)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def connect(self, held: ExitStack, source: str = "127.0.0.1") -> socket.socket:
        return held.enter_context(
            socket.create_connection(("127.0.0.1", self.port), LIMIT_S, source_address=(source, 0))
        )

    def ask(self, source: str = "127.0.0.1") -> bytes:
        """Return what is answered to a client that connects and asks once."""
        with ExitStack() as held:
            client = self.connect(held, source)
            client.sendall(GET)
            return read_answer(client)


def read_answer(client: socket.socket) -> bytes:
    """Return the first line that is answered; nothing where the connection was ended."""
    read = b""
    with suppress(ConnectionResetError):
        while not read.endswith(b"\r\nok") and (piece := client.recv(65536)):
            read += piece
    return read.partition(b"\n")[0] + b"\n" if read else b""


@pytest.fixture
def served() -> Iterator[Served]:
    item = Served()
    yield item
    item.released.set()
    item.server.end()
    item.thread.join(LIMIT_S)
    item.listening.close()


def silent(client: socket.socket) -> None:
    """Send nothing."""


def idle(client: socket.socket) -> None:
    client.sendall(GET)
    assert read_answer(client) == ANSWER


def half(client: socket.socket) -> None:
    client.sendall(b"GET / HTTP/1.1\r\nHo")


def half_body(client: socket.socket) -> None:
    client.sendall(HALF)


def until(question: Callable[[], bool]) -> None:
    end_s = time.perf_counter() + LIMIT_S
    while not question():
        assert time.perf_counter() < end_s
        time.sleep(0.01)


@contextmanager
def greedy(served: Served, hold: Callable[[socket.socket], None]) -> Iterator[list[socket.socket]]:
    """Hold all connections that an address may have, and as many more as it asks for."""
    with ExitStack() as held:
        clients = []
        for _ in range(OF_ONE):
            clients.append(served.connect(held))
            hold(clients[-1])
        until(lambda: len(served.server.server_state.connections) >= OF_ONE)
        yield clients


@pytest.mark.parametrize("hold", [silent, idle, half, half_body])
def test_a_greedy_client_keeps_nobody_of_its_address_out(served: Served, hold: Callable[[socket.socket], None]) -> None:
    """As behind a proxy, whose users all have its address; the place is that of whoever has waited longest."""
    with greedy(served, hold) as clients:
        until(lambda: served.ask() == ANSWER)
        assert read_answer(clients[0]) == b"", "the one that had waited longest still has its connection"


def test_what_is_being_answered_is_not_ended_for_another(served: Served) -> None:
    with ExitStack() as held:
        busy = [served.connect(held) for _ in range(OF_ONE)]
        for client in busy:
            client.sendall(SLOW)
        until(lambda: served.slow == OF_ONE)
        assert b" 503 " in served.ask()
        assert served.ask("127.0.0.2") == ANSWER
        served.released.set()
        assert [read_answer(client) for client in busy] == [ANSWER] * OF_ONE


def test_many_addresses_together_keep_nobody_out(served: Served) -> None:
    with ExitStack() as held:
        crowd = [served.connect(held, f"127.0.0.{number}") for number in (2, 2, 2, 2, 3, 3, 3, 3)]
        for client in crowd:
            idle(client)
        until(lambda: served.ask("127.0.0.4") == ANSWER)


def test_a_few_addresses_that_fill_every_place_with_requests_keep_no_other_out(served: Served) -> None:
    """None of what is being answered is ended for it."""
    with ExitStack() as held:
        crowd = [served.connect(held, f"127.0.0.{number}") for number in (2, 2, 2, 2, 3, 3, 3, 3)]
        for client in crowd:
            client.sendall(SLOW)
        until(lambda: served.slow == CONNECTIONS)
        assert served.ask("127.0.0.4") == ANSWER
        served.released.set()
        assert [read_answer(client) for client in crowd] == [ANSWER] * CONNECTIONS


def test_clients_that_ask_and_leave_keep_nobody_out(served: Served) -> None:
    """What is read for them ends with them: the server answers 503 to all where too much is being answered."""
    tasks = served.server.server_state.tasks
    for _ in range(3 * CONNECTIONS):
        with ExitStack() as held:
            served.connect(held, "127.0.0.2").sendall(NEVER)
            until(lambda: len(tasks) >= 1)
        until(lambda: not served.server.server_state.connections)
    assert served.ask() == ANSWER
    until(lambda: not tasks)


def test_a_client_that_goes_on_asking_keeps_its_connection(served: Served) -> None:
    """Also while those that wait longer are too young to be ended, which it is not."""
    with ExitStack() as held:
        steady = served.connect(held)
        idle(steady)
        begun_s = time.perf_counter()
        until(lambda: time.perf_counter() > begun_s + STAYS_S)
        crowd = [served.connect(held) for _ in range(OF_ONE - 1)]
        for client in crowd:
            idle(client)
        idle(steady)
        until(lambda: served.ask() == ANSWER)
        idle(steady)


def test_a_crowd_that_comes_again_at_once_leaves_the_event_loop_its_turns() -> None:
    """What is in the queue beyond is accepted once the loop can have closed what was ended."""
    many = ENDED_PER_TURN + 8

    async def accept_crowds(listening: socket.socket, held: ExitStack) -> list[int]:
        listener = held.enter_context(LimitedListener(listening, 2 * many, many, dict))
        listener.setblocking(False)

        def accept_turn() -> int:
            for accepted in count():
                try:
                    held.enter_context(listener.accept()[0])
                except BlockingIOError:
                    return accepted
            raise AssertionError

        def come() -> None:
            for _ in range(many):
                held.enter_context(socket.create_connection(listening.getsockname()))

        come()
        accepted = [accept_turn()]
        begun_s = time.perf_counter()
        until(lambda: time.perf_counter() > begun_s + STAYS_S)
        come()
        accepted.append(accept_turn())
        await asyncio.sleep(0)
        return [*accepted, accept_turn()]

    with ExitStack() as held, socket.create_server(("127.0.0.1", 0), backlog=2 * many) as listening:
        assert asyncio.run(accept_crowds(listening, held)) == [many, ENDED_PER_TURN, many - ENDED_PER_TURN]
