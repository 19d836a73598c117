"""One delivery over HTTP to the checked address: no redirect, no proxy, nothing without a limit; it retries nothing."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import TYPE_CHECKING

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from supervisor.alerts.addresses import RefusedAddressError, Resolve, permitted
from supervisor.alerts.payload import clean
from supervisor.alerts.signing import headers
from supervisor.alerts.sink import Sink

if TYPE_CHECKING:
    from urllib3.response import HTTPResponse

ADDRESSES_TRIED = 3
READ_OF_ANSWER_BYTES = 2048
QUOTED_CHARACTERS = 200
SLOW_DOWN = (429, 502, 503, 504)
GONE = 410

# Of a header that cannot be parsed it logs the URL, and with that the path, which may be the password.
logging.getLogger("urllib3.connection").addFilter(lambda _: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one delivery attempt."""

    delivered: bool
    error: str | None = None
    retry_after_s: float | None = None
    final: bool = False


def post(sink: Sink, alert_id: str, body: bytes, unix_s: float, resolve: Resolve = socket.getaddrinfo) -> Answer:
    """Deliver a body to a sink once; what goes wrong is in the answer, nothing is raised for it.

    Takes at most the connect time-out for each of three addresses, the read time-out, and however long the system's
    resolver takes.
    """
    try:
        addresses = permitted(sink.host, sink.port, allow_private=sink.allow_private, resolve=resolve)
    except RefusedAddressError as error:
        return Answer(delivered=False, error=f"{sink.host}: {error}")
    except (OSError, UnicodeError, ValueError) as error:
        return Answer(
            delivered=False, error=f"{sink.host} does not resolve: {_quote_safely(sink, _shorten_error(error))}"
        )
    answer = Answer(delivered=False, error="no address")
    for address in addresses[:ADDRESSES_TRIED]:
        connection = _make_connection(sink, address)
        try:
            connection.connect()
        except (HTTPError, OSError, ValueError) as error:  # a certificate of another name is a ValueError
            answer = Answer(
                delivered=False,
                error=f"no connection to {sink.host} ({address}): {_quote_safely(sink, _shorten_error(error))}",
            )
            connection.close()
            continue
        return _send_request(connection, sink, alert_id, body, unix_s)
    return answer


def _make_connection(sink: Sink, address: str) -> HTTPConnection:
    """Return a connection to the address itself; the certificate has to be that of the name."""
    if sink.scheme == "http":
        return HTTPConnection(address, port=sink.port, timeout=sink.connect_timeout_s)
    return HTTPSConnection(
        address,
        port=sink.port,
        timeout=sink.connect_timeout_s,
        cert_reqs="CERT_REQUIRED",
        server_hostname=sink.host,
        assert_hostname=sink.host,
        ssl_minimum_version=ssl.TLSVersion.TLSv1_2,
    )


def _send_request(connection: HTTPConnection, sink: Sink, alert_id: str, body: bytes, unix_s: float) -> Answer:
    sent = {
        "Host": sink.authority,
        "Content-Type": "application/json",
        "User-Agent": "rocm-supervisor",
        "Connection": "close",
        **headers(sink.secrets, alert_id, int(unix_s), body),
    }
    with _ended_after(connection, sink.read_timeout_s) as ended:
        try:
            connection.request("POST", sink.target, body=body, headers=sent, preload_content=False)
            response = connection.getresponse()
            return _read_answer(sink, response, unix_s)
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            late = ended.is_set() or isinstance(error, TimeoutError)
            why = (
                f"no answer within {sink.read_timeout_s:g} s"
                if late
                else f"no answer: {_quote_safely(sink, _shorten_error(error))}"
            )
            return Answer(delivered=False, error=why)
        finally:
            connection.close()


@contextmanager
def _ended_after(connection: HTTPConnection, limit_s: float) -> Iterator[threading.Event]:
    """Cut the connection after a time, however busily the other side drips: a socket's limit begins anew each read."""
    ended = threading.Event()
    raw = connection.sock

    def end() -> None:
        ended.set()
        if raw is not None:
            with suppress(OSError):
                # The plain shutdown: that of a TLS socket takes its state away under the thread that reads.
                socket.socket.shutdown(raw, socket.SHUT_RDWR)

    if raw is not None:
        raw.settimeout(limit_s)
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield ended
    finally:
        timer.cancel()


def _read_answer(sink: Sink, response: HTTPResponse, unix_s: float) -> Answer:
    status = response.status
    if 200 <= status < 300:
        return Answer(delivered=True)
    if 300 <= status < 400:
        return Answer(delivered=False, error=f"status {status}: redirects are not followed; set the new address")
    quoted = _quote_safely(sink, _read_beginning(response))
    error = f"status {status}" + (f": {quoted}" if quoted else "")
    if status == GONE:
        return Answer(delivered=False, error=f"{error} (gone for good)", final=True)
    asked_s = _retry_after_s(response.headers.get("Retry-After"), unix_s) if status in SLOW_DOWN else None
    return Answer(delivered=False, error=error, retry_after_s=asked_s)


def _quote_safely(sink: Sink, text: str) -> str:
    """Return words of the other side, unless they repeat the address: many a receiver names the path that it lacks."""
    return "(what it says repeats the address)" if sink.repeated_in(text) else clean(text, QUOTED_CHARACTERS)


def _read_beginning(response: HTTPResponse) -> str:
    """Return the beginning of what the receiver says; it may be compressed, endless or no text."""
    try:
        told = response.read(READ_OF_ANSWER_BYTES, decode_content=False)
    except (HTTPError, HTTPException, OSError, ValueError):
        return ""
    return " ".join(told.decode("utf-8", "replace").split())


def _retry_after_s(value: str | None, unix_s: float) -> float | None:
    """Return the seconds of a Retry-After header: a number or a date (RFC 9110, 10.2.3); None for anything else."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix_s)
    except (TypeError, ValueError, OverflowError):
        return None


def _shorten_error(error: Exception) -> str:
    """Return an error in few words; urllib3's own begin with the repr of the connection."""
    return str(error).rpartition(">: ")[2] or type(error).__name__
