"""Who may come in: the listening sockets, the names that each answers to, and the headers of every answer.

A page of another site can send requests to any port of this machine, and under a name that its owner points to this
machine (DNS rebinding) it can read the answers. So a request is answered under the names of its socket only, and one
that a browser sent for another site is refused. See Fetch Metadata Request Headers (W3C) and the Fetch standard.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
SAME_SITE = frozenset({b"same-origin", b"none"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Sent with every answer, refusals included."""


@dataclass(frozen=True, slots=True)
class Door:
    """One listening socket: the names that it answers to besides those of the loopback, and how it is reached."""

    listening: socket.socket
    hosts: frozenset[str] = frozenset()
    """Names as in `Host`, in lower case; without a port any port is meant."""
    tls: bool = False

    @property
    def is_unix(self) -> bool:
        """Whether it is a unix socket, which the modes of its file protect."""
        return self.listening.family == socket.AF_UNIX

    @property
    def port(self) -> int | None:
        """The TCP port; None of a unix socket, which any port may be forwarded to."""
        return None if self.is_unix else int(self.listening.getsockname()[1])

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        if self.is_unix:
            return True
        address = str(self.listening.getsockname()[0])
        return address == "::1" or address.startswith("127.")

    def why_foreign(self, headers: Iterable[tuple[bytes, bytes]], path: str) -> str | None:
        """Return why a request (header names in lower case) was sent by a page of another site, or None.

        A link on another site may lead to the page itself, which says nothing before its own requests are answered.
        """
        given = list(headers)
        is_link = path == "/" and {(b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")} <= set(given)
        hosts = [value for name, value in given if name == b"host"]
        if len(hosts) != 1 or not self._answers_to(hosts[0].decode("latin-1").lower()):
            return "the request names another host than this page has"
        for name, value in given:
            if name == b"sec-fetch-site" and value not in SAME_SITE and not is_link:
                return "a page of another site sent this request"
            if name == b"origin" and value.lower() not in (
                b"http://" + hosts[0].lower(),
                b"https://" + hosts[0].lower(),
            ):
                return "a page of another origin sent this request"
        return None

    def _answers_to(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        if host in self.hosts or found[1] in self.hosts:
            return True
        return found[1] in LOOPBACK_NAMES and self.is_loopback and self.port in (None, int(found[2] or 80))


class Guard:
    """Passes the requests for this page on to `served`, puts HEADERS on each answer, and refuses the rest."""

    def __init__(self, door: Door, served: Application, refuse: Callable[[str], Application]) -> None:
        self._door, self._served, self._refuse = door, served, refuse

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        scope["door"] = self._door
        why = self._door.why_foreign(scope["headers"], scope["path"])
        chosen = self._served if why is None else self._refuse(why)

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await chosen(scope, receive, send_guarded)
