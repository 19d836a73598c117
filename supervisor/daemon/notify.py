"""What the daemon says to systemd (sd_notify): ready, alive, a line of status; without systemd it says nothing."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """Sends datagrams to the socket that systemd named; a lost one is logged and never an error of the daemon."""

    def __init__(self, address: str | None, watchdog_interval_s: float | None = None) -> None:
        """`address` is a path, or an abstract name after "@"; None: nobody listens."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.watchdog_interval_s = watchdog_interval_s
        """Seconds between two `watchdog()` calls, half of what systemd waits; None: it does not wait."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """Return a notifier as NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say (sd_notify(3))."""
        usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        interval_s = int(usec) / 2e6 if ours and usec.isdecimal() and int(usec) > 0 else None
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            log.warning("notify.address_unknown", extra={"fields": {"address": address}})
            address = None
        return cls(address, interval_s)

    def ready(self) -> None:
        """Say that the start, or a reload, is complete."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`."""
        self._send("STATUS=" + " ".join(text.split()))

    def watchdog(self) -> None:
        """Say that the daemon works; systemd restarts one that stops saying so."""
        self._send("WATCHDOG=1")

    def watchdog_limit(self, seconds: float) -> None:
        """Have systemd wait `seconds` for the watchdog from now on, around work that is known to take long."""
        self._send(f"WATCHDOG_USEC={int(seconds * 1e6)}")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for `seconds` more, from now, to start or to stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def reloading(self, now_monotonic_us: int) -> None:
        """Say that the settings are being read again; `ready()` ends it. Microseconds of CLOCK_MONOTONIC."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_monotonic_us}")

    def stopping(self) -> None:
        """Say that the daemon is on its way out."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(1.0)  # a manager that hangs must not hang the daemon
                out.connect(self._address)
                out.sendall(message.encode(errors="replace"))
        except OSError as error:
            log.warning("notify.lost", extra={"fields": {"message": message.partition("=")[0], "error": str(error)}})
