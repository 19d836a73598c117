"""The control server: a thread with its own event loop, so that no client delays the daemon."""

from __future__ import annotations

import logging
import os
import socket
import threading
from pathlib import Path

from supervisor.control.connection import PeerProtocol
from supervisor.control.limits import LimitedListener
from supervisor.control.routes import application
from supervisor.control.view import Tuning, View
from supervisor.control.woken_server import WokenServer, build_config

log = logging.getLogger(__name__)

CONNECTIONS = 64
KEEP_ALIVE_S = 2
STOP_LIMIT_S = 5.0


class ControlServer:
    """Serves `view` on a listening socket (see `listen.py`) from `start` to `stop`; it closes the socket then."""

    def __init__(self, view: View, listening: socket.socket, *, unlink: bool, tuning: Tuning | None = None) -> None:
        """With `unlink` the socket's file is removed at the end: right for one that we bound, not for systemd's."""
        self._bound = listening
        self._listening = LimitedListener(listening, CONNECTIONS)
        self._path = Path(os.fsdecode(listening.getsockname()))
        self._unlink = unlink
        found = _look_at(self._path)  # None where what systemd passed was cleared away before this start
        self._file = None if found is None else (found.st_dev, found.st_ino)
        served = application(view, os.getegid() if found is None else found.st_gid, tuning)
        # Beyond the listener's own limit, so that whoever is one too many gets the reason.
        connections = 2 * CONNECTIONS
        self._server = WokenServer(
            build_config(served, PeerProtocol, connections=connections, keep_alive_s=KEEP_ALIVE_S, dated=False)
        )
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    @property
    def path(self) -> Path:
        """Where the socket lies."""
        return self._path

    @property
    def is_lost(self) -> bool:
        """Whether no client finds the socket: its file is gone, or another is in its place."""
        found = _look_at(self._path)
        return found is None or (found.st_dev, found.st_ino) != self._file

    def start(self) -> None:
        """Begin to serve; connections that came since the socket was bound are answered too."""
        self._thread.start()

    def stop(self, *, unlink: bool = True, limit_s: float = STOP_LIMIT_S) -> None:
        """End what is being answered within `limit_s`, close and remove the socket; harmless when called again.

        Without `unlink` its file is left: another socket's that was bound there.
        """
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join(limit_s)
        if self._thread.is_alive():  # its loop still uses the socket, and closes it when it ends
            log.warning("control.stuck", extra={"fields": {"limit_s": limit_s}})
        else:
            self._listening.close()
        self._bound.close()
        if self._unlink and unlink:
            self._path.unlink(missing_ok=True)

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def _serve(self) -> None:
        self._server.run(sockets=[self._listening])


def _look_at(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
