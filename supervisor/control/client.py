"""The client of the control socket, with as few imports as possible.

The standard `http.client` costs 24 ms to import, half of a `supervisorctl status`. This client uses HTTP/1.0:
one request, and one answer that ends with the connection.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

HOST = "daemon"
"""The one `Host` that the server answers to. It is no name of this machine, so no address that a browser uses for
a forwarded port is equal to it."""
TIMEOUT_S = 15.0
ANSWER_LIMIT_BYTES = 64 << 20
WHOLE_ANSWER = 4
"""How many times the limit of one read the whole answer may take: a peer may send a byte now and then for ever."""
UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


class ControlError(Exception):
    """The request failed; `code` is for programs, the text and `remedy` for people."""

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.remedy = remedy


class UnreachableError(ControlError):
    """No process answers at the socket."""


class ForbiddenError(ControlError):
    """The user has no access to the socket."""


class Client:
    """One daemon, by the path of its socket. Every method raises UnreachableError or ControlError."""

    def __init__(self, path: Path | str, timeout_s: float = TIMEOUT_S) -> None:
        self.path = str(path)
        self.timeout_s = timeout_s

    def get(self, route: str, **query: str | int | None) -> dict[str, Any]:
        """Return the answer to GET `route`; parameters that are None are left out."""
        given = "&".join(f"{name}={quoted(str(value))}" for name, value in query.items() if value is not None)
        return self._send_request("GET", f"{route}?{given}" if given else route, b"")

    def get_text(self, route: str, accept: str) -> str:
        """Return the answer to GET `route` as text; `accept` names the formats that are wanted."""
        status, content = self._exchange_http("GET", route, b"", f"Accept: {accept}\r\n")
        if status >= 400:
            self._decode_answer(status, content)
        return content.decode("utf-8", "replace")

    def post(self, route: str, **body: object) -> dict[str, Any]:
        """Return the answer to POST `route`."""
        return self._send_request("POST", route, json.dumps(body).encode())

    def _send_request(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        return self._decode_answer(*self._exchange_http(method, target, body))

    def _exchange_http(self, method: str, target: str, body: bytes, more: str = "") -> tuple[int, bytes]:
        """Return status and body of the answer; `more` are further header lines."""
        head = f"{method} {target} HTTP/1.0\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        raw = self._exchange(head.encode("ascii") + body)
        head_back, _, content = raw.partition(b"\r\n\r\n")
        try:
            return int(head_back.split()[1]), content
        except (IndexError, ValueError):
            raise self._explain_bad_answer() from None

    def _decode_answer(self, status: int, content: bytes) -> dict[str, Any]:
        """Return the JSON object of an answer; raise ControlError for one that reports a failure."""
        try:
            answer = json.loads(content)
            if not isinstance(answer, dict):
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            raise self._explain_bad_answer() from None
        if status >= 400:
            error = answer.get("error")
            details = error if isinstance(error, dict) else {}
            raise ControlError(
                str(details.get("code", status)),
                str(details.get("message", f"status {status}")),
                str(details.get("remedy", "")),
            )
        return answer

    def _explain_bad_answer(self) -> ControlError:
        return ControlError(
            "bad_answer",
            f"the answer from {self.path} is not an HTTP response with a JSON object",
            "check that it is the daemon's socket",
        )

    def _exchange(self, request: bytes) -> bytes:
        """Send a request and return the answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                self._connect(connection)
                with suppress(BrokenPipeError):  # a refused connection is answered before the request is read
                    connection.sendall(request)
                return self._receive_all(connection)
            except OSError as error:
                raise self._explain_failure(error) from error

    def _connect(self, connection: socket.socket) -> None:
        """Connect, and wait for a place in the daemon's queue where a crowd has filled it.

        A socket that does not block fails there at once; for one that does, SO_SNDTIMEO is the limit (socket(7)).
        """
        limit = struct.pack("ll", int(self.timeout_s), int(self.timeout_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            connection.connect(self.path)
        except BlockingIOError as error:
            raise TimeoutError from error
        connection.settimeout(self.timeout_s)

    def _receive_all(self, connection: socket.socket) -> bytes:
        """Return all bytes received until the connection ends."""
        limit_s = WHOLE_ANSWER * self.timeout_s
        answer, until_s = bytearray(), time.perf_counter() + limit_s
        while len(answer) <= ANSWER_LIMIT_BYTES:
            if time.perf_counter() >= until_s:
                late = f"no whole answer from {self.path} within {limit_s:.0f} s"
                raise UnreachableError("timeout", late, "see the daemon's log")
            try:
                chunk = connection.recv(65536)
            except ConnectionResetError:
                if not answer:
                    raise
                chunk = b""  # the end of an answer to a request that was not read
            if not chunk:
                return bytes(answer)
            answer += chunk
        raise ControlError("bad_answer", f"the answer from {self.path} is longer than {ANSWER_LIMIT_BYTES} bytes")

    def _explain_failure(self, error: OSError) -> ControlError:
        match error:
            case FileNotFoundError():
                return UnreachableError(
                    "not_running",
                    f"no daemon is running: there is no socket {self.path}",
                    "systemctl start rocm-supervisor, or name the socket with --socket",
                )
            case ConnectionRefusedError():
                return UnreachableError(
                    "not_running", f"no daemon listens at {self.path}", "systemctl start rocm-supervisor"
                )
            case PermissionError():
                return ForbiddenError("permission", f"{self.path}: permission denied", describe_access(Path(self.path)))
            case TimeoutError():
                return UnreachableError(
                    "timeout", f"no answer from {self.path} within {self.timeout_s:.0f} s", "see the daemon's log"
                )
            case _:
                return UnreachableError(
                    "unreachable", f"{self.path}: {error.strerror or error}", "run supervisorctl doctor"
                )


def describe_access(path: Path) -> str:
    """Return what this user has to do to get access to a file of the daemon; its folder may be closed to them too."""
    import grp  # noqa: PLC0415  # only this answer needs it
    import pwd  # noqa: PLC0415  # likewise

    gid = _group_of(path)
    try:
        group, user = grp.getgrgid(-1 if gid is None else gid), pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, OverflowError, OSError):
        return f"needed: root, or a user with access to {path.parent}"
    if user in group.gr_mem and gid not in os.getgroups():
        name = group.gr_name
        return f"{user} joined group {name} after this login began: log in again, or run newgrp {name}"
    return f"join the group: sudo usermod -aG {group.gr_name} {user}, then log in again; or use sudo"


def _group_of(path: Path) -> int | None:
    """Return the group of the socket, or of the nearest folder above it that this user can stat."""
    for candidate in (path, *path.parents):
        try:
            return candidate.stat().st_gid
        except OSError:
            continue
    return None


def quoted(text: str) -> str:
    """Return `text` as one part of a path or query; urllib.parse costs 4 ms to import."""
    return "".join(chr(byte) if byte in UNRESERVED else f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))
