"""The socket that gives out tokens, and its client: one line is asked, one answered."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from pathlib import Path

from supervisor.web.sessions import Sessions

log = logging.getLogger(__name__)

LINE_LIMIT_S = 5.0
ANSWER_LIMIT_S = 60.0
"""How long a client waits: systemd starts the service for it, and trainings may keep every core busy."""
ANSWER_BYTES_MAX = 4096
TOKEN = "token"  # noqa: S105  # what is asked
REVOKE = "revoke"


async def answer_login(sessions: Sessions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one connection: a new token, or the number of sessions that were ended."""
    with suppress(OSError, ValueError, asyncio.TimeoutError):
        asked = (await asyncio.wait_for(reader.readline(), LINE_LIMIT_S)).decode("ascii", "replace").strip()
        if asked == TOKEN:
            writer.write(f"{sessions.make_token()}\n".encode())
        elif asked == REVOKE:
            ended = sessions.revoke_all()
            log.info("web.sessions_revoked %d", ended)
            writer.write(f"{ended}\n".encode())
        await writer.drain()
    writer.close()


def ask_login(path: Path, what: str, limit_s: float = ANSWER_LIMIT_S) -> str:
    """Return the answer to one line at a login socket; raise OSError where no whole line comes within `limit_s`."""
    answer, until_s = b"", time.perf_counter() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_s)
        connection.connect(str(path))
        connection.sendall(f"{what}\n".encode())
        while not answer.endswith(b"\n") and len(answer) < ANSWER_BYTES_MAX:
            connection.settimeout(max(0.001, until_s - time.perf_counter()))
            part = connection.recv(ANSWER_BYTES_MAX)
            if not part:
                break
            answer += part
    if not answer.endswith(b"\n"):
        raise ConnectionAbortedError(f"{path} did not answer")
    return answer.decode("ascii", "replace").strip()
