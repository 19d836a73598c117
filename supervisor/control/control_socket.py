"""The daemon's control socket from its start to its end: served again where its file was cleared away."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

from supervisor.control import listen
from supervisor.control.server import ControlServer
from supervisor.control.view import Tuning, View
from supervisor.core.moments import Moment
from supervisor.core.stats.log_limit import LogLimit

log = logging.getLogger(__name__)

RESTART_BOTH = "systemctl restart rocm-supervisor.socket rocm-supervisor.service"
"""Makes a socket of systemd's again; trainings outlive it."""
LOG_AGAIN_S = 600.0
"""How long the same reason why the socket cannot be bound again is not logged again."""


class ControlSocket:
    """Serves `view` at one path; `keep_served` is called again and again, by one thread."""

    def __init__(
        self, view: View, path: Path, passed: socket.socket | None, *, tuning: Tuning | None, now: Callable[[], Moment]
    ) -> None:
        """`passed`: the listening socket that systemd hands over; None: one is bound at `path`. Raises ListenError."""
        self._view, self._tuning, self._now = view, tuning, now
        self._is_passed = passed is not None
        self.problem: str | None = None
        """Why its file, which is gone, could not be bound a second time; None where it serves."""
        self._server = self._build_server(passed or listen.bind(path), is_ours=passed is None)
        self._log_limit = LogLimit(LOG_AGAIN_S)

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self) -> None:
        """End what is being answered within seconds, and remove the socket if it is not systemd's."""
        self._server.stop()

    def keep_served(self) -> None:
        """Serve at a new socket where the file of the present one is gone, as after old files were cleared away."""
        lost = self._server
        if not lost.is_lost:
            return
        try:
            bound = listen.bind(lost.path)
        except listen.ListenError as error:
            again = f"`{RESTART_BOTH}` makes it again, and trainings go on" if self._is_passed else str(error)
            self.problem = f"the control socket {lost.path} was removed: {again}"
            if self._log_limit.allows(str(error), self._now().monotonic_s):
                log.error("control.not_bound_again", extra={"fields": {"error": self.problem}})
            return
        server = self._build_server(bound, is_ours=True)
        try:
            server.start()
        except (RuntimeError, MemoryError):  # without its file it is tried again
            server.stop()
            raise
        self.problem, self._server = None, server
        lost.stop(unlink=False)
        log.warning("control.bound_again", extra={"fields": {"socket": str(lost.path)}})

    def _build_server(self, listening: socket.socket, *, is_ours: bool) -> ControlServer:
        return ControlServer(self._view, listening, unlink=is_ours, tuning=self._tuning)
