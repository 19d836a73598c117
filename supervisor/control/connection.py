"""One connection: uvicorn's protocol with the peer's identity and time limits."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.control.peers import peer_of

REQUEST_LIMIT_S = 5.0
"""From the connection to the end of the first request's headers; supervisorctl needs a millisecond."""
CONNECTION_LIMIT_S = 60.0
"""From the start of the connection to its end, even in the middle of an answer."""


class TimedProtocol(H11Protocol):
    """Ends connections that take too long."""

    connection_limit_s: ClassVar[float | None] = CONNECTION_LIMIT_S
    """None: only the first request has a limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Set the time limits."""
        super().connection_made(transport)
        known = self.describe(transport)
        silent = self.loop.call_later(REQUEST_LIMIT_S, transport.abort)
        self._limits = [silent]
        if self.connection_limit_s is not None:
            self._limits.append(self.loop.call_later(self.connection_limit_s, transport.abort))
        served = self.app

        async def application(scope: Any, receive: Any, send: Any) -> None:
            silent.cancel()
            scope.update(known)
            await served(scope, receive, send)

        self.app = application

    def describe(self, _transport: asyncio.Transport) -> dict[str, Any]:
        """Return what the scope of each request says of the connection."""
        return {}

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time limits."""
        for limit in self._limits:
            limit.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer garbage with 400, or, in the middle of an answer, by hanging up."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()


class PeerProtocol(TimedProtocol):
    """Puts the peer into the scope as `peer`."""

    def describe(self, transport: asyncio.Transport) -> dict[str, Any]:
        """Learn who connected."""
        return {"peer": peer_of(transport.get_extra_info("socket"))}
