"""Uvicorn as every server here runs it: bounded, silent, and woken at its end instead of polling for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from supervisor.control.connection import TimedProtocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

DATE_EVERY_S = 1.0
"""The `Date` header is that of the second."""

HEADERS_LIMIT_BYTES = 16 * 1024
GRACE_S = 2
"""How long what is being answered may take once the server ends."""


def build_config(  # noqa: PLR0913 - what the servers differ in
    application: Any,
    protocol: type[H11Protocol],
    *,
    connections: int,
    keep_alive_s: int,
    dated: bool = True,
    tls: tuple[Path, Path] | None = None,
) -> uvicorn.Config:
    """Return uvicorn's settings for an ASGI application: HTTP/1.1 alone, no word of the software, logs only of errors.

    Of more than `connections` at once each is answered 503; `dated` answers have a `Date` header, for which the server
    wakes up once a second; `tls` are the files of the certificate and of its key.
    """
    return uvicorn.Config(
        application,
        loop="asyncio",
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=dated,
        proxy_headers=False,
        limit_concurrency=connections,
        h11_max_incomplete_event_size=HEADERS_LIMIT_BYTES,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=None if tls is None else str(tls[0]),
        ssl_keyfile=None if tls is None else str(tls[1]),
    )


class WokenServer(uvicorn.Server):
    """Uvicorn's server, woken at its end; uvicorn's own loop polls ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._woken: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        """Serve until the end."""
        end = asyncio.Event()
        self._woken = (asyncio.get_running_loop(), end)
        every_s = DATE_EVERY_S if self.config.date_header else None
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(end.wait(), every_s)

    def list_waiting(self) -> dict[int, float | None]:
        """Return `TimedProtocol.waits_since_s` of each connection by its descriptor; in the thread that serves."""
        return {
            protocol.transport.get_extra_info("socket").fileno(): protocol.waits_since_s
            for protocol in self.server_state.connections
            if isinstance(protocol, TimedProtocol)
        }

    def end(self) -> None:
        """Have it end; for any thread."""
        self.should_exit = True
        if self._woken is not None:
            loop, end = self._woken
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(end.set)
