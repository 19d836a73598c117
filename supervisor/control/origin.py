"""Refuses requests that a web browser sent, and requests for another host, before any route sees them.

The socket may be forwarded to a TCP port (ssh -L, socat). Every page that a browser there has open can then post to
that port: a `no-cors` request needs no permission of the daemon to be carried out, only to be read, and the peer that
the kernel names is the forwarder. Two facts tell such requests apart. A browser names the page that sent a request
(`Origin` on every POST; `Sec-Fetch-*`, which no script can remove) and the host that the page was loaded from, never
the fixed name that the client of this package sends. See the Fetch standard, and Fetch Metadata Request Headers (W3C).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from supervisor.control.client import HOST
from supervisor.control.refusals import NotAllowed, Refusal

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0
"""A page may post thousands of times a second: one log line in this time counts them."""
REMEDY = f"use supervisorctl, or a program that sends 'Host: {HOST}', neither Origin nor Sec-*"

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]
Refuse = Callable[[Refusal], Application]


class ForeignRequest(NotAllowed):
    """A page of a browser sent it, or it was meant for another host."""

    code = "foreign_request"


def why_foreign(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return why a request with these headers (names in lower case) did not come from a client of ours, or None."""
    hosts = []
    for name, value in headers:
        if name == b"origin" or name.startswith(b"sec-"):
            header = name.decode("latin-1").title()
            return f"a web browser sent this request (header {header}); pages have no access to this socket"
        if name == b"host":
            hosts.append(value)
    if hosts != [HOST.encode()]:
        return f"the request names another host, or none; this socket answers to Host '{HOST}' only"
    return None


class OriginGuard:
    """Passes requests of our own clients on to `served`, and answers the rest with `refuse`."""

    def __init__(self, served: Application, refuse: Refuse) -> None:
        self._served, self._refuse = served, refuse
        self._refused, self._quiet_until_s = 0, 0.0

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer one request."""
        why = why_foreign(scope["headers"]) if scope["type"] == "http" else None
        if why is None:
            await self._served(scope, receive, send)
            return
        self._log_refusal(scope, why)
        await self._refuse(ForeignRequest(why, REMEDY))(scope, receive, send)

    def _log_refusal(self, scope: Scope, why: str) -> None:
        self._refused += 1
        now_s = asyncio.get_running_loop().time()
        if now_s < self._quiet_until_s:
            return
        self._quiet_until_s = now_s + LOG_INTERVAL_S
        peer = scope["peer"]
        fields = {"uid": peer.uid, "pid": peer.pid, "path": scope["path"], "why": why, "count": self._refused}
        log.warning("control.foreign_request", extra={"fields": fields})
