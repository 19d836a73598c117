"""A written API server: the endpoints of coordination.k8s.io/v1 that are used, with their conflicts."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Object = dict[str, object]


@dataclass
class ApiServer:
    """One Lease, and what it answers in its place where a story says so."""

    lease: Object | None = None
    version: int = 0
    answer: tuple[int, bytes] | None = None
    asked: list[str] = field(default_factory=list)
    before_write: Callable[[], object] = lambda: None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def handle(self, method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        self.asked.append(f"{method} {path} {token}")
        if self.answer is not None:
            return self.answer
        if method == "GET":
            return (404, b"{}") if self.lease is None else (200, json.dumps(self.lease).encode())
        before, self.before_write = self.before_write, lambda: None
        before()
        facts = json.loads(body)
        with self._lock:
            if method == "POST" and self.lease is not None:
                return 409, b"{}"
            if method == "PUT" and facts["metadata"].get("resourceVersion") != str(self.version):
                return 409, b"{}"
            self._write(facts)
            return 201 if method == "POST" else 200, json.dumps(self.lease).encode()

    def take_over(self, holder: str) -> None:
        """Have another process lead: a renewal that read the Lease before meets a conflict."""
        with self._lock:
            transitions = self.spec["leaseTransitions"]
            assert isinstance(transitions, int)
            spec = {**self.spec, "holderIdentity": holder, "leaseTransitions": transitions + 1}
            self._write({**(self.lease or {}), "spec": spec})

    def _write(self, facts: Object) -> None:
        metadata = facts["metadata"]
        assert isinstance(metadata, dict)
        self.version += 1
        self.lease = {**facts, "metadata": {**metadata, "resourceVersion": str(self.version)}}

    @property
    def spec(self) -> Object:
        assert self.lease is not None
        spec = self.lease["spec"]
        assert isinstance(spec, dict)
        return spec


@contextmanager
def serve(api: ApiServer, certificate: Path | None = None) -> Iterator[int]:
    """Answer on a port of this machine, over TLS where there is a certificate; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = api.handle(self.command, self.path, self.headers["Authorization"], body)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = _answer  # noqa: N815 - as http.server calls them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield listening.server_port
    finally:
        listening.shutdown()
        listening.server_close()
