"""One connection: uvicorn's protocol with the peer's identity and time limits."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.control.peers import peer_of

REQUEST_LIMIT_S = 5.0
"""From the connection to the end of the first request's headers; supervisorctl needs a millisecond. Of a later request
from the time at which a connection without one is closed."""
EXCHANGE_LIMIT_S = 60.0
"""From a request's headers to the end of its answer: its body may drip, and its answer may never be read."""
CONNECTION_LIMIT_S = 60.0
"""From the start of the connection to its end, even in the middle of an answer."""
READING = frozenset({"GET", "HEAD"})
"""Requests that change nothing, so that they may end with their client."""


class _WholeBodies(h11.Connection):
    """Takes a body by its length alone, since each chunk of one in chunks is an event that takes as long as a request.

    2 kB in chunks of five bytes take 5 ms, and a thousand clients that send them keep an honest one waiting as long as
    that takes. A proxy may take a request for two that says both ways how long it is (RFC 9112, 6.1).
    """

    refusal: str | None = None
    """Why the request was refused whose headers were read; None where it was not."""

    def next_event(self) -> Any:
        """Return the next event, as h11 does; raise RemoteProtocolError for a request with a body in chunks."""
        event = super().next_event()
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            self.refusal = "Transfer-Encoding is not supported: send the body whole, with Content-Length."
            raise h11.RemoteProtocolError(self.refusal)
        return event


class TimedProtocol(H11Protocol):
    """Ends connections that take too long."""

    request_limit_s: ClassVar[float] = REQUEST_LIMIT_S
    exchange_limit_s: ClassVar[float] = EXCHANGE_LIMIT_S
    connection_limit_s: ClassVar[float | None] = CONNECTION_LIMIT_S
    """None: only each request has a limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Set the limits."""
        super().connection_made(transport)
        self.conn = self._bodies = _WholeBodies(h11.SERVER)
        self._waited_since_s = time.perf_counter()
        known = self.describe(transport)
        self._awaits = self.loop.call_later(self.request_limit_s, transport.abort)
        self._limits: list[asyncio.TimerHandle] = []
        self._answering: asyncio.Task[Any] | None = None
        if self.connection_limit_s is not None:
            self._limits.append(self.loop.call_later(self.connection_limit_s, transport.abort))
        served = self.app

        async def application(scope: Any, receive: Any, send: Any) -> None:
            self._awaits.cancel()
            self._awaits = self.loop.call_later(self.exchange_limit_s, transport.abort)
            self._waited_since_s = time.perf_counter()
            scope.update(known)
            self._answering = asyncio.current_task() if scope["method"] in READING else None
            try:
                await served(scope, receive, send)
            except asyncio.CancelledError:
                if not self.cycle.disconnected:
                    raise
            finally:
                self._answering = None

        self.app = application

    @property
    def waits_since_s(self) -> float | None:
        """Since when it waits for its client to send a request or to read an answer (`time.perf_counter`), or None."""
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.transport.get_write_buffer_size():
            return self._waited_since_s
        return None

    def describe(self, _transport: asyncio.Transport) -> dict[str, Any]:
        """Return what the scope of each request says of the connection."""
        return {}

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time limits, and what would be read for a client that is gone.

        Clients that ask and leave would else have more answered at once than there may be connections.
        """
        for limit in (self._awaits, *self._limits):
            limit.cancel()
        super().connection_lost(exc)
        if self._answering is not None:
            self._answering.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request for a limited time, also where it has begun."""
        super().on_response_complete()
        self._waited_since_s = time.perf_counter()
        if not self.transport.is_closing():
            self._awaits.cancel()
            limit_s = self.timeout_keep_alive + self.request_limit_s
            self._awaits = self.loop.call_later(limit_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer garbage with 400, or, in the middle of an answer, by hanging up."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            try:
                super().send_400_response(self._bodies.refusal or msg)
            except h11.LocalProtocolError:  # the answer to a HEAD has no body: its headers are sent
                self.transport.close()
            if self.cycle is not None:
                self.cycle.disconnected = True  # the request whose body it is has its answer
        else:
            self.transport.abort()


class PeerProtocol(TimedProtocol):
    """Puts the peer into the scope as `peer`."""

    def describe(self, transport: asyncio.Transport) -> dict[str, Any]:
        """Learn who connected."""
        return {"peer": peer_of(transport.get_extra_info("socket"))}
