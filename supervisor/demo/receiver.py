"""A webhook receiver on the loopback interface that passes on each request and answers 204."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGEST_BYTES = 1 << 16


class Receiver:
    """Listens on a free port of 127.0.0.1 while it is entered."""

    def __init__(self, receive: Callable[[dict[str, Any]], None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length") or 0), LARGEST_BYTES)
                try:
                    receive(json.loads(self.rfile.read(length)))
                finally:
                    self.send_response(204)
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
