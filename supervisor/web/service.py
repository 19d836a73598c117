"""The page as a service: its sockets come from systemd, and it ends after some idle time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path

from supervisor.web.clock import now_unix_s
from supervisor.web.configured import IDLE_S, PageSettings
from supervisor.web.door import Door
from supervisor.web.page_data import PageData
from supervisor.web.serve import serve
from supervisor.web.sessions import Sessions

log = logging.getLogger(__name__)

EX_CONFIG = 78
"""The configuration does not become right by starting again, sysexits.h."""
FIRST_PASSED_FD = 3
"""SD_LISTEN_FDS_START, sd_listen_fds(3)."""
LOGIN = "login.sock"
"""The socket that gives out tokens. No proxy is to lead to it: who reaches it is of the group."""
SESSIONS_FILE = "sessions.json"


class NotServableError(ValueError):
    """The sockets that were passed cannot be served; the text says what to do."""


def sockets_from_systemd(environment: Mapping[str, str]) -> list[socket.socket]:
    """Return the sockets that systemd passed to this process."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environment.get("LISTEN_FDS", "")
    passed = range(FIRST_PASSED_FD, FIRST_PASSED_FD + (int(count) if count.isdecimal() else 0))
    found = [socket.socket(fileno=fd) for fd in passed]
    for item in found:
        item.set_inheritable(False)
    return found


def open_doors(passed: Iterable[socket.socket], settings: PageSettings) -> tuple[list[Door], socket.socket | None]:
    """Return the doors, and the socket that gives out tokens; raise NotServableError for one that needs TLS."""
    tls = settings.tls is not None
    doors, login = [], None
    for item in passed:
        if item.family == socket.AF_UNIX and Path(os.fsdecode(item.getsockname())).name == LOGIN:
            login = item
            continue
        door = Door(item, frozenset(name.lower() for name in settings.hosts), tls and item.family != socket.AF_UNIX)
        if not door.is_loopback and not door.tls:
            raise NotServableError(
                f"without TLS the page can be read on the way to {item.getsockname()[0]}: set web.tls_certificate and "
                "web.tls_key, or listen on the loopback or a unix socket only"
            )
        doors.append(door)
    if not doors:
        raise NotServableError("no socket was passed: start rocm-supervisor-web.socket, or use `supervisorctl web`")
    return doors, login


def run(data: PageData, settings: PageSettings, environment: Mapping[str, str], idle_s: float = IDLE_S) -> int:
    """Serve until idle; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        if settings.tls is not None:
            check_tls(*settings.tls)
        doors, login = open_doors(sockets_from_systemd(environment), settings)
    except NotServableError as error:
        log.error("%s", error)
        return EX_CONFIG
    folder = environment.get("STATE_DIRECTORY")
    sessions = Sessions(now_unix_s, Path(folder) / SESSIONS_FILE if folder else None)
    asyncio.run(serve(doors, data, sessions, idle_s=idle_s, tls=settings.tls, login=login))
    return 0


def check_tls(certificate: Path, key: Path) -> None:
    """Raise NotServableError where these two files cannot be used for TLS."""
    for file in (certificate, key):
        try:
            file.open("rb").close()
        except OSError as error:
            raise NotServableError(
                f"{file}: {error.strerror}; the user that serves the page must be able to read it"
            ) from error
    try:
        # A key with a password would be asked for at a terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise NotServableError(
            f"{key} does not belong to the certificate {certificate}, has a password, or one of them is not a PEM file"
        ) from error
