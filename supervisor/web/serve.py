"""Serves the page at its sockets until it is ended, or until it has been idle for a while."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.control.connection import TimedProtocol
from supervisor.control.limits import LimitedListener
from supervisor.control.woken_server import WokenServer, build_config
from supervisor.web.door import Application, Door, Scope
from supervisor.web.login import answer_login
from supervisor.web.page_data import PageData
from supervisor.web.routes import application
from supervisor.web.sessions import Sessions

log = logging.getLogger(__name__)

CONNECTIONS, CONNECTIONS_PER_USER = 64, 32
"""Of each door, and of one address at it; a proxy in front of it has all its users' connections."""
KEEP_ALIVE_S = 15
HANDSHAKE_LIMIT_S = 5.0
"""Of TLS; asyncio waits a minute, in which a few silent connections keep everybody else out."""
EXCHANGE_LIMIT_S = 20.0
"""For the body of a request and for its answer to be read: the largest file of the page has 50 kB."""
LOOK_EVERY_S = 1.0


class _PageProtocol(TimedProtocol):
    """Ends a connection whose next request does not come; those of a browser last for as long as it looks."""

    connection_limit_s = None
    exchange_limit_s = EXCHANGE_LIMIT_S


class _PageServer(WokenServer):
    """One of several servers in one process: their signals are handled together."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, which has no setting for the time that a handshake may take."""
        loop: Any = asyncio.get_running_loop()
        if self.config.is_ssl:
            loop.create_server = partial(type(loop).create_server, loop, ssl_handshake_timeout=HANDSHAKE_LIMIT_S)
        try:
            await super().startup(sockets)
        finally:
            vars(loop).pop("create_server", None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Visits:
    """Passes requests on, and knows how many are under way and when there was one last."""

    def __init__(self, served: Application) -> None:
        self._served = served
        self._under_way = 0
        self._last_s = time.perf_counter()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on."""
        self._under_way += 1
        try:
            await self._served(scope, receive, send)
        finally:
            self._under_way -= 1
            self._last_s = time.perf_counter()

    @property
    def quiet_s(self) -> float:
        """For how long no request has been under way."""
        return 0.0 if self._under_way else time.perf_counter() - self._last_s


async def serve(  # noqa: PLR0913  # what is served, and how
    doors: Sequence[Door],
    data: PageData,
    sessions: Sessions,
    *,
    idle_s: float | None = None,
    tls: tuple[Path, Path] | None = None,
    login: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until no request was under way for `idle_s` and no token waits to be used.

    `tls` are the files of the certificate and of its key, for the doors that are to have it; `login` is the socket that
    gives out tokens.
    """
    visits = [Visits(application(data, sessions, door)) for door in doors]
    servers = [_build_server(visit, tls if door.tls else None) for door, visit in zip(doors, visits, strict=True)]
    loop = asyncio.get_running_loop()

    def end() -> None:
        for server in servers:
            server.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    serving = [
        asyncio.ensure_future(
            server.serve(
                sockets=[LimitedListener(door.listening, CONNECTIONS, CONNECTIONS_PER_USER, server.list_waiting)]
            )
        )
        for server, door in zip(servers, doors, strict=True)
    ]
    watching = asyncio.ensure_future(end_when_idle(visits, sessions, idle_s, end))
    if login is not None:
        await asyncio.start_unix_server(partial(answer_login, sessions), sock=login)
    await asyncio.gather(*serving)
    watching.cancel()


def _build_server(visit: Visits, tls: tuple[Path, Path] | None) -> _PageServer:
    return _PageServer(
        build_config(visit, _PageProtocol, connections=2 * CONNECTIONS, keep_alive_s=KEEP_ALIVE_S, tls=tls)
    )


async def end_when_idle(visits: Sequence[Visits], sessions: Sessions, idle_s: float | None, end: Any) -> None:
    """Call `end` once no request has been under way for `idle_s` and no token waits to be used; never for None."""
    while idle_s is not None:
        await asyncio.sleep(min(LOOK_EVERY_S, idle_s))
        quiet_s = min(visit.quiet_s for visit in visits)
        if quiet_s >= idle_s and not sessions.awaits_token:
            log.info("web.idle: no request for %.0f s", quiet_s)
            end()
            return
