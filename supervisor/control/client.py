"""Asks the daemon over its socket; it knows no answer's meaning, prints nothing, and imports next to nothing.

The standard `http.client` costs 24 ms to import, half of a `supervisorctl status`. What is spoken here is HTTP/1.0:
one request, one answer that ends with the connection, which leaves nothing of the protocol to get wrong.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

TIMEOUT_S = 15.0
ANSWER_LIMIT_BYTES = 64 << 20
UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


class ControlError(Exception):
    """No good answer; `code` is for programs, the text and `remedy` for people."""

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.remedy = remedy


class UnreachableError(ControlError):
    """Nobody answers at the socket."""


class Client:
    """One daemon, by the path of its socket. Every method raises UnreachableError or ControlError."""

    def __init__(self, path: Path | str, timeout_s: float = TIMEOUT_S) -> None:
        self.path = str(path)
        self.timeout_s = timeout_s

    def get(self, route: str, **query: str | int | None) -> dict[str, Any]:
        """Return the answer to GET `route`; parameters that are None are left out."""
        given = "&".join(f"{name}={quoted(str(value))}" for name, value in query.items() if value is not None)
        return self._ask("GET", f"{route}?{given}" if given else route, b"")

    def post(self, route: str, **body: object) -> dict[str, Any]:
        """Return the answer to POST `route`."""
        return self._ask("POST", route, json.dumps(body).encode())

    def _ask(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        head = f"{method} {target} HTTP/1.0\r\nHost: daemon\r\nContent-Length: {len(body)}\r\n\r\n"
        raw = self._exchange(head.encode("ascii") + body)
        head_back, _, content = raw.partition(b"\r\n\r\n")
        try:
            status = int(head_back.split()[1])
            answer = json.loads(content)
            if not isinstance(answer, dict):
                raise TypeError
        except (IndexError, ValueError, TypeError, RecursionError):
            raise ControlError(
                "bad_answer", f"{self.path} gave no answer of this protocol", "is it the daemon's socket?"
            ) from None
        if status >= 400:
            error = answer.get("error")
            said = error if isinstance(error, dict) else {}
            raise ControlError(
                str(said.get("code", status)), str(said.get("message", f"status {status}")), str(said.get("remedy", ""))
            )
        return answer

    def _exchange(self, request: bytes) -> bytes:
        """Send and return all that comes back."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self.timeout_s)
            try:
                connection.connect(self.path)
                connection.sendall(request)
                answer = bytearray()
                while chunk := connection.recv(65536):
                    answer += chunk
                    if len(answer) > ANSWER_LIMIT_BYTES:
                        raise ControlError("bad_answer", f"{self.path} answers without end")
            except OSError as error:
                raise self._explained(error) from error
        return bytes(answer)

    def _explained(self, error: OSError) -> ControlError:
        match error:
            case FileNotFoundError():
                return UnreachableError(
                    "not_running",
                    f"no daemon: there is no socket {self.path}",
                    "systemctl start rocm-supervisor, or name the socket with --socket",
                )
            case ConnectionRefusedError():
                return UnreachableError(
                    "not_running", f"no daemon listens at {self.path}", "systemctl start rocm-supervisor"
                )
            case PermissionError():
                return UnreachableError("permission", f"{self.path}: permission denied", self._who_may())
            case TimeoutError():
                return UnreachableError(
                    "timeout", f"no answer from {self.path} within {self.timeout_s:.0f} s", "see its log"
                )
            case _:
                return UnreachableError(
                    "unreachable", f"{self.path}: {error.strerror or error}", "see supervisorctl doctor"
                )

    def _who_may(self) -> str:
        try:
            gid = Path(self.path).stat().st_gid
        except OSError:
            return f"only root, or who may enter {Path(self.path).parent}"
        import grp  # noqa: PLC0415  # only this answer needs it

        try:
            group = grp.getgrgid(gid).gr_name
        except KeyError:
            group = str(gid)
        return f"join the group: sudo usermod -aG {group} $USER, then log in again; or use sudo"


def quoted(text: str) -> str:
    """Return `text` as one part of a path or query; urllib.parse costs 4 ms to import."""
    return "".join(chr(byte) if byte in UNRESERVED else f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))
