"""A real HTTP receiver that answers as it is told, and keeps what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

from supervisor.alerts.channel import Answer, Channel, KeptNotice, read_notice
from supervisor.alerts.channels.webhook import Webhook
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.signing import Secret

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Handler(BaseHTTPRequestHandler):
    """Keeps the request and leaves the answer to the receiver."""

    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(
            Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        )
        self.server.answers.pop(0)(self) if self.server.answers else status(204)(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Stay silent."""


class Receiver(ThreadingHTTPServer):
    """Listens on the loopback; `answers` are used up one a request, then it says 204."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[Received] = []
        self.answers: list[Answering] = []
        self.released = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """The other side going away is what these tests are about."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


Answering = Callable[[Handler], None]


def status(code: int, body: bytes = b"", **headers: str) -> Answering:
    """Answer with a status."""

    def answer(handler: Handler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(content: bytes) -> Answering:
    """Answer with these bytes, whatever they are, and hang up."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(content)
        handler.close_connection = True

    return answer


def hang(handler: Handler) -> None:
    """Never answer."""
    handler.server.released.wait(120)


def drip(handler: Handler) -> None:
    """Answer a byte at a time, each soon enough to be no time-out."""
    while not handler.server.released.wait(0.05):
        handler.wfile.write(b"H")
        handler.wfile.flush()


def endless(handler: Handler) -> None:
    """Say no with a body that has no end."""
    handler.send_response(500)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while not handler.server.released.is_set():
        handler.wfile.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def large(code: int, size_bytes: int, sent: SimpleQueue[int]) -> Answering:
    """Answer with a body of that many bytes; what was written of it when the other side left is put into `sent`."""

    def answer(handler: Handler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", str(size_bytes))
        handler.end_headers()
        written = 0
        try:
            while written < size_bytes:
                written += handler.wfile.write(b"x" * min(65_536, size_bytes - written))
        finally:
            sent.put(written)

    return answer


def garbage(handler: Handler) -> None:
    """Speak no HTTP."""
    handler.wfile.write(b"\x16\x03\x01 no http at all \r\n\r\n\x00\xff" * 20)
    handler.close_connection = True


def hang_up(handler: Handler) -> None:
    """Close without a word."""
    handler.close_connection = True


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver."""
    server = Receiver()
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def endpoint(port: int, **changes: object) -> Endpoint:
    """The address of a receiver on the loopback."""
    settings: dict[str, object] = {
        "scheme": "http",
        "host": "127.0.0.1",
        "port": port,
        "target": "/hook?token=s3cret",
        "connect_timeout_s": 60.0,
        "read_timeout_s": 60.0,
        "allow_private": True,
    }
    return Endpoint(**{**settings, **changes})  # type: ignore[arg-type]  # the changes are those of a test


SECRETS = (Secret(SECRET),)


def webhook(port: int, secrets: tuple[Secret, ...] = SECRETS, **changes: object) -> Webhook:
    """A webhook to a receiver on the loopback."""
    return Webhook(endpoint=endpoint(port, **changes), secrets=secrets)


def post(channel: Channel, content: bytes, unix_s: float, notice_id: str = "msg_1") -> Answer:
    """Render a notice and send it, as the sender does."""
    notice: KeptNotice = read_notice(notice_id, content)
    return channel.send(notice, channel.render(notice), unix_s)
