"""The daemon's side of systemd: sd_notify messages, and whether a SIGTERM is a restart, a stop or a shutdown.

What systemd 252 has queued for the unit at the moment of SIGTERM (`systemctl list-jobs`, tried out and tested):

    systemctl restart, try-restart, reload-or-restart     job of type "restart"
    systemctl stop, isolate, reboot, poweroff             job of type "stop"
    systemctl kill, kill PID                              no job; Restart=always brings the daemon back at once

A restart that is turned into a stop afterwards is treated as a restart.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from supervisor import programs

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""How long the start and the end of a state wait to be sent; what is sent again and again does not wait."""


class Notifier:
    """Sends datagrams to the socket that systemd named; a lost one is logged and never an error of the daemon."""

    def __init__(self, address: str | None, watchdog_interval_s: float | None = None) -> None:
        """`address` is a path, or an abstract name after "@"; None: no manager listens."""
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

    @classmethod
    def take_from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """Return the same, and remove what it was read from: a systemctl that fails would speak to that socket."""
        notifier = cls.from_environment(environment)
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        return notifier

    def ready(self) -> None:
        """Say that the start, or a reload, is complete."""
        self._send_message("READY=1")

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`."""
        self._send_message("STATUS=" + " ".join(text.split()), wait_s=0.0)

    def watchdog(self) -> bool:
        """Say that the daemon works, and return whether that was sent; systemd restarts one that stops saying so."""
        return self._send_message("WATCHDOG=1", wait_s=0.0)

    def extend_timeout(self, seconds: float, *, again: bool = False) -> None:
        """Ask for `seconds` more, from now, to start or to stop; what is asked `again` and again does not wait."""
        self._send_message(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}", wait_s=0.0 if again else WAIT_S)

    def reloading(self, now_monotonic_us: int) -> None:
        """Say that the settings are being read again; `ready()` ends it. Microseconds of CLOCK_MONOTONIC."""
        self._send_message(f"RELOADING=1\nMONOTONIC_USEC={now_monotonic_us}")

    def stopping(self) -> None:
        """Say that the daemon is on its way out."""
        self._send_message("STOPPING=1")

    def _send_message(self, message: str, wait_s: float = WAIT_S) -> bool:
        """Send one datagram, waiting `wait_s` at most for room in the manager's queue; return whether it was sent."""
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(wait_s)
                out.connect(self._address)
                out.sendall(message.encode(errors="replace"))
        except OSError as error:
            log.warning("notify.lost", extra={"fields": {"message": message.partition("=")[0], "error": str(error)}})
            return False
        return True


ASK_LIMIT_S = 5.0


class CommandFailedError(OSError):
    """A command ended with an error, or not in time."""


Ask = Callable[[Sequence[str]], str]
"""Runs a command line and returns what it printed; raises OSError where it cannot be run, fails or takes too long."""


def stop_is_restart(
    environment: Mapping[str, str] = os.environ, cgroup: Path = Path("/proc/self/cgroup"), ask: Ask | None = None
) -> bool:
    """Return whether the daemon is started again at once, so that the trainings go on meanwhile.

    To be asked when SIGTERM came; takes some 10 ms, ASK_LIMIT_S at most. Outside of systemd, and where systemd does
    not answer, it is False: a training saved for nothing loses less than one that runs on unsupervised.
    """
    unit = own_unit(environment, cgroup)
    if unit is None:
        return False
    name, user = unit
    command = ["systemctl", *(["--user"] if user else []), "list-jobs", "--no-legend", "--plain", "--no-pager", name]
    try:
        listing = _run_twice(ask or _run_command, command)
    except OSError as error:
        log.warning("stop.cause_unknown", extra={"fields": {"unit": name, "error": str(error)}})
        return False
    types = [words[2] for words in map(str.split, listing.splitlines()) if len(words) >= 3 and words[1] == name]
    log.info("stop.cause", extra={"fields": {"unit": name, "job": types[0] if types else None}})
    return all(kind == "restart" for kind in types)


def own_unit(
    environment: Mapping[str, str] = os.environ, cgroup: Path = Path("/proc/self/cgroup")
) -> tuple[str, bool] | None:
    """Return the name of the service that this process is, and whether a user's systemd runs it; None: it is none."""
    if not environment.get("INVOCATION_ID"):
        return None
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    parts = own.split("/")
    # The last service on the way down: below it are only what the service made itself.
    at = max((n for n, part in enumerate(parts) if part.endswith(".service")), default=None)
    if at is None or parts[at].startswith("user@"):
        return None  # an interactive shell: INVOCATION_ID is its terminal's
    return parts[at], any(part.startswith("user@") for part in parts[:at])


def _run_twice(ask: Ask, command: Sequence[str]) -> str:
    try:
        return ask(command)
    except CommandFailedError:
        # Without KillMode=mixed the SIGTERM goes to every process of the unit, so to the one that asks, too.
        return ask(command)


def _run_command(command: Sequence[str]) -> str:
    done = programs.run(command, ASK_LIMIT_S, environment=os.environ)
    if done.status != 0:
        how = f"took more than {ASK_LIMIT_S:.0f} s" if done.status is None else f"ended with status {done.status}"
        raise CommandFailedError(f"{command[0]} {how}")
    return done.stdout.decode(errors="replace")
