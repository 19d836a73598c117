"""Serves `GET /metrics`, and nothing else, at the addresses that the configuration names, in a thread of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from supervisor.children.worker_threads import WorkerThreads
from supervisor.control import listen
from supervisor.control.connection import TimedProtocol
from supervisor.control.limits import LimitedListener
from supervisor.control.woken_server import WokenServer, build_config
from supervisor.metrics.exposition import text_of
from supervisor.metrics.formats import CLASSIC, OPENMETRICS, prefers_openmetrics
from supervisor.metrics.known import Known

log = logging.getLogger(__name__)

CONNECTIONS, CONNECTIONS_PER_USER = 32, 16
"""At each address that is listened at, and of one address of those that ask there."""
ANSWERED_AT_ONCE = 4
"""Each answer reads the record, in a thread."""
KEEP_ALIVE_S = 5
STOP_LIMIT_S = 5.0
BACKLOG = 16
PATH = "/metrics"
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")


class MetricsServer:
    """Serves what is known at each address; one that cannot be listened at is a problem, and no reason to end."""

    def __init__(self, known: Callable[[], Known], addresses: Sequence[str], hosts: Iterable[str] = ()) -> None:
        """`addresses` are `HOST:PORT` or paths of unix sockets; `hosts` further names that requests may use."""
        self._known = known
        self._hosts = frozenset(name.lower() for name in hosts) | {"localhost", "daemon"}
        self._bound: list[socket.socket] = []
        problems = []
        for address in addresses:
            try:
                self._bound.append(_open(address))
            except OSError as error:
                problems.append(f"metrics.listen {address}: {error.strerror or error}")
        self.addresses: list[Any] = [listening.getsockname() for listening in self._bound]
        """Where it listens, as the sockets say."""
        self.problem = "; ".join(problems) or None
        """Why an address is not listened at."""
        if self.problem:
            log.warning("metrics.not_listening", extra={"fields": {"error": self.problem}})
        self._answering = WorkerThreads("metrics of now", ANSWERED_AT_ONCE)
        # Beyond the listeners' own limits, so that one address cannot use up the connections of another.
        connections = 2 * CONNECTIONS * max(1, len(self._bound))
        self._server = WokenServer(
            build_config(self._answer, TimedProtocol, connections=connections, keep_alive_s=KEEP_ALIVE_S)
        )
        waiting = self._server.list_waiting
        self._listening = [LimitedListener(item, CONNECTIONS, CONNECTIONS_PER_USER, waiting) for item in self._bound]
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin to serve, where there is an address."""
        if self._listening:
            self._thread.start()

    def stop(self) -> None:
        """Close the sockets and remove those with a path; harmless when called again."""
        if self._thread.ident is not None:
            self._server.end()
            self._thread.join(STOP_LIMIT_S)
        for listening, bound, name in zip(self._listening, self._bound, self.addresses, strict=True):
            if not self._thread.is_alive():  # otherwise its loop still uses it, and closes it when it ends
                listening.close()
            bound.close()
            if isinstance(name, str):
                Path(name).unlink(missing_ok=True)

    def _serve(self) -> None:
        self._server.run(sockets=list(self._listening))

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        await (await self._respond(Request(scope)))(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        why = why_foreign(request.headers.raw, self._hosts)
        if why is not None:
            return PlainTextResponse(why + "\n", status_code=403)
        if request.url.path != PATH:
            return PlainTextResponse(f"only {PATH} is served here\n", status_code=404)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("GET only\n", status_code=405, headers={"Allow": "GET, HEAD"})
        openmetrics = prefers_openmetrics(request.headers.get("accept", ""))
        try:
            known = await asyncio.wrap_future(self._answering.do(self._known))
            text = text_of(known, openmetrics=openmetrics)
        except Exception:  # the deciding thread did not answer, or a defect: one scrape fails
            log.exception("metrics.failed")
            return PlainTextResponse("the daemon does not answer\n", status_code=503)
        return Response(text, headers={"Content-Type": OPENMETRICS if openmetrics else CLASSIC})


def why_foreign(headers: Iterable[tuple[bytes, bytes]], hosts: frozenset[str]) -> str | None:
    """Return why a request (header names in lower case) was sent by a page of a browser, or None.

    Under a name that its owner points to this machine (DNS rebinding) a page could read the answer. An address in
    digits is no name of a site, so scrapers may use it; names are `hosts` alone.
    """
    given = []
    for name, value in headers:
        if name == b"origin" or name.startswith(b"sec-fetch-"):
            return "a web browser sent this request for a page; metrics are for scrapers"
        if name == b"host":
            given.append(value.decode("latin-1").lower())
    found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
    if found is None or not (found[1] in hosts or _is_address(found[1])):
        return "this name is not one of metrics.hosts; use an address in digits, or name it there"
    return None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _open(address: str) -> socket.socket:
    """Return a socket that listens; raise OSError where it cannot."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        return listen.bind(Path(address).expanduser())
    host, port = found[1].strip("[]"), int(found[2])
    if port > 65_535:
        raise OSError("a port is at most 65535")
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
