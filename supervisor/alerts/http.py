"""One HTTP request to the checked address of a receiver: no redirect, no proxy, nothing without a limit, no retry."""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from supervisor.alerts.addresses import RefusedAddressError, permitted
from supervisor.alerts.channel import Answer
from supervisor.alerts.confidential import quote_text
from supervisor.alerts.conversation_limits import BoundedLines, cut_after
from supervisor.alerts.endpoint import Endpoint

if TYPE_CHECKING:
    from urllib3.response import HTTPResponse as ReadResponse

ADDRESSES_TRIED = 3
READ_OF_ANSWER_BYTES = 2048
READ_OF_ACCEPTANCE_BYTES = 262_144
"""Where the service answers with the message that it made, which may be all of it."""
LINES_BYTES_MAX = 131_072
"""Of an answer's headers, and of the lines before its chunks, all together; servers refuse requests with half of it."""
SLOW_DOWN = (429, 502, 503, 504)
GONE = 410

# Of a header that cannot be parsed it logs the URL, and with that the path, which may be the password.
logging.getLogger("urllib3.connection").addFilter(lambda _: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent; `target` is that of the endpoint where it is None."""

    body: bytes
    method: str = "POST"
    target: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    content_type: str = "application/json"
    retry_after: Callable[[bytes], float | None] = lambda _: None
    """Reads the seconds to wait from the body of a refusal, for services that have no `Retry-After` header."""
    message: Callable[[bytes], str | None] | None = None
    """Reads the name of the message that was made from the body of an acceptance."""


def exchange(endpoint: Endpoint, request: Request, unix_s: float) -> Answer:
    """Send a request once; what goes wrong is in the answer, nothing is raised for it.

    Takes at most the connect time-out for each of three addresses, the read time-out, and however long the system's
    resolver takes.
    """
    host = endpoint.host
    try:
        addresses = permitted(host, endpoint.port, allow_private=endpoint.allow_private, resolve=endpoint.resolve)
    except RefusedAddressError as error:
        return Answer(delivered=False, error=f"{host}: {error}")
    except (OSError, UnicodeError, ValueError) as error:
        return Answer(
            delivered=False, error=f"{host} does not resolve: {quote_safely(endpoint, _shorten_error(error))}"
        )
    answer = Answer(delivered=False, error="no address")
    for address in addresses[:ADDRESSES_TRIED]:
        connection = _make_connection(endpoint, address)
        try:
            # TCP has the limit for itself, TLS as much again.
            with cut_after(2 * endpoint.connect_timeout_s) as cut:
                connection.watch = cut.watch
                connection.connect()
        except (HTTPError, OSError, ValueError) as error:  # a certificate of another name is a ValueError
            why = quote_safely(endpoint, _shorten_error(error))
            answer = Answer(delivered=False, error=f"no connection to {host} ({address}): {why}")
            connection.close()
            continue
        return _send_request(connection, endpoint, request, unix_s)
    return answer


class _BoundedResponse(HTTPResponse):
    """An answer of which headers, and answers of status 100 before it, are read up to a limit for all of them."""

    def begin(self) -> None:
        """Read the headers."""
        if not isinstance(self.fp, BoundedLines):
            self.fp = BoundedLines(self.fp, LINES_BYTES_MAX, _explain_long_headers)  # type: ignore[assignment]  # it has what is read
        super().begin()


def _explain_long_headers() -> HTTPException:
    return HTTPException(f"more than {LINES_BYTES_MAX} bytes of headers")


class _Plain(HTTPConnection):
    """A connection that is watched from its first byte on, so that a handshake is cut off as well."""

    response_class = _BoundedResponse
    watch: Callable[[socket.socket], None] = staticmethod(lambda _: None)

    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        self.watch(connected)
        return connected


class _Secure(HTTPSConnection, _Plain):
    """The same with TLS."""


def _make_connection(endpoint: Endpoint, address: str) -> _Plain:
    """Return a connection to the address itself; the certificate has to be that of the name."""
    if endpoint.scheme == "http":
        return _Plain(address, port=endpoint.port, timeout=endpoint.connect_timeout_s)
    return _Secure(
        address,
        port=endpoint.port,
        timeout=endpoint.connect_timeout_s,
        cert_reqs="CERT_REQUIRED",
        server_hostname=endpoint.host,
        assert_hostname=endpoint.host,
        ssl_minimum_version=ssl.TLSVersion.TLSv1_2,
    )


def _send_request(connection: _Plain, endpoint: Endpoint, request: Request, unix_s: float) -> Answer:
    sent = {
        "Host": endpoint.authority,
        "Content-Type": request.content_type,
        "User-Agent": "rocm-supervisor",
        "Connection": "close",
        **request.headers,
    }
    target = endpoint.target if request.target is None else request.target
    with cut_after(endpoint.read_timeout_s, connection.sock) as cut:
        try:
            connection.request(request.method, target, body=request.body, headers=sent, preload_content=False)
            return _read_answer(endpoint, request, connection.getresponse(), unix_s)
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            late = cut.ended.is_set() or isinstance(error, TimeoutError)
            if late:
                return Answer(delivered=False, error=f"no answer within {endpoint.read_timeout_s:g} s")
            return Answer(delivered=False, error=f"no answer: {quote_safely(endpoint, _shorten_error(error))}")
        finally:
            connection.close()


def _read_answer(endpoint: Endpoint, request: Request, response: ReadResponse, unix_s: float) -> Answer:
    status = response.status
    if 200 <= status < 300:
        made = None if request.message is None else request.message(_read_beginning(response, READ_OF_ACCEPTANCE_BYTES))
        return Answer(delivered=True, message=made)
    if 300 <= status < 400:
        return Answer(delivered=False, error=f"status {status}: redirects are not followed; set the new address")
    beginning = _read_beginning(response)
    quoted = quote_safely(endpoint, " ".join(beginning.decode("utf-8", "replace").split()))
    error = f"status {status}" + (f": {quoted}" if quoted else "")
    if status == GONE:
        return Answer(delivered=False, error=f"{error} (the receiver no longer exists)", final=True, status=status)
    if status not in SLOW_DOWN:
        return Answer(delivered=False, error=error, status=status)
    asked_s = _retry_after_s(response.headers.get("Retry-After"), unix_s)
    wait_s = request.retry_after(beginning) if asked_s is None else asked_s
    return Answer(delivered=False, error=error, retry_after_s=wait_s, status=status)


def read_field(body: bytes, *names: str) -> object:
    """Return a field of the JSON that a service answered with, by the names that lead to it; None where it has none."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):  # JSON may be nested as deep as the answer is long
        return None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def quote_safely(endpoint: Endpoint, text: str) -> str:
    """Return a text of the receiver, unless it repeats the address: many a receiver names the path that it lacks."""
    return quote_text(text, (endpoint.target, *endpoint.confidential), "the address")


def _read_beginning(response: ReadResponse, limit_bytes: int = READ_OF_ANSWER_BYTES) -> bytes:
    """Return the beginning of the response's body; it may be compressed, endless or no text."""
    try:
        return response.read(limit_bytes, decode_content=False)
    except (HTTPError, HTTPException, OSError, ValueError):
        return b""


def _retry_after_s(value: str | None, unix_s: float) -> float | None:
    """Return the seconds of a Retry-After header, None where it has none.

    RFC 9110 (10.2.3) has whole seconds or a date; Discord sends fractions of a second.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix_s)
    except (TypeError, ValueError, OverflowError):
        return None


def _shorten_error(error: Exception) -> str:
    """Return an error in few words; urllib3's own begin with the repr of the connection."""
    return str(error).rpartition(">: ")[2] or type(error).__name__
