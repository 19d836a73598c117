"""Starts shims as systemd units of the template rocm-run@.service.

The system's units are controlled over the bus, which polkit permits to the daemon's user only for rocm-run@
(systemd/50-rocm-supervisor.rules). Every call has a deadline, so a manager that hangs delays the daemon by seconds.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import stat
import time
from pathlib import Path

from supervisor import programs
from supervisor.children.running_limit import RunningLimit
from supervisor.core import attempt_files as names
from supervisor.runner import process_table, standby
from supervisor.runner.attempt_folder import (
    has_shim_command,
    is_shim_hidden,
    living_shim,
    make_folder,
    names_another,
    point,
    read_shim,
    read_start_error,
)
from supervisor.runner.code_copy import SHIM_PROGRAM
from supervisor.runner.launcher import LAUNCH_LIMIT_S, LaunchError, SilentShimError
from supervisor.runner.process_table import Process

log = logging.getLogger(__name__)

CALL_LIMIT_S = 5.0
POLL_S = 0.05
ASK_EVERY = 10
"""Polls of the folder between two queries of systemd."""
BOOTED = Path("/run/systemd/system")
"""sd_booted(3)"""
PROBE = "Permission.probe"
"""A slot that no job can have: requesting a try-restart of its unit, which does not run, has no effect."""
SLOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")
"""The slots that the polkit rule permits; they contain no character that is escaped in a unit name."""
NOT_LOADED = "not loaded"
"""systemd's message for a unit that has ended meanwhile."""
GONE = frozenset({"inactive", "failed"})

REMEDIES = (
    ("polkit.service", "polkit does not run: install it, or run `systemctl unmask --now polkit.service`"),
    ("PolicyKit1", "polkit does not run: install it, or run `systemctl unmask --now polkit.service`"),
    ("authentication required", "polkit does not allow this user to start the unit: run `supervisorctl setup` as root"),
    (
        "Access denied",
        "polkit does not allow this user to start the unit: install polkit, then run `supervisorctl setup` as root",
    ),
    ("not found", "run `supervisorctl setup` to install the unit, or `systemctl daemon-reload` if it is installed"),
    ("masked", "run `systemctl unmask rocm-run@.service`"),
    ("connect to bus", "the user manager is not running: run `loginctl enable-linger` and set XDG_RUNTIME_DIR"),
    ("203/EXEC", "the interpreter or the shim was moved: run `supervisorctl setup` again"),
    ("216/GROUP", "a group of the unit is missing: run `systemd-sysusers` or `supervisorctl setup` again"),
    ("217/USER", "the user in rocm-run@.service.d/owner.conf is unknown: run `supervisorctl setup --owner NAME`"),
)
"""Part of systemd's message, and the remedy; the first that is found counts."""


class UnitLauncher:
    """Runs the attempt of a slot as rocm-run@SLOT.service: in its own cgroup and, for system units, as its own user."""

    def __init__(self, *, user: bool, state: Path, limit_s: float = LAUNCH_LIMIT_S) -> None:
        """`user`: use the units of `systemctl --user`; `state` is the state directory that the template names."""
        self._manager = Manager(user=user)
        self._state = state
        self._limit_s = limit_s

    def launch(self, slot: str, folder: Path) -> None:
        """See `Launcher.launch`. The unit runs the slot's `current` link, so that must point to `folder`."""
        unit = unit_of(slot)
        if not self._is_current(slot, folder):
            raise LaunchError(f"{slot}: {unit} would not start {folder}: the job's `current` link points elsewhere")
        if self._manager.show(unit, "ActiveState") in {"active", "activating", "reloading"}:
            raise LaunchError(f"{slot}: an attempt is still running in {unit}; see `systemctl status {unit}`")
        # --no-block: while the daemon starts, it must not wait for a systemd job that is ordered after its own.
        complaint = self._manager.order("start", "--no-block", unit)
        if complaint is not None:
            raise LaunchError(f"{slot}: {complaint}")
        try:
            self._wait_for_shim(unit, folder)
        except LaunchError as error:
            self.kill_all(slot, folder)
            self._manager.order("stop", "--no-block", unit)  # cancels a start job that is still queued
            raise type(error)(f"{slot}: {error}") from None

    def stand_by(self, slot: str, folder: Path) -> None:
        """See `Launcher.stand_by`: uses a second unit of the slot, which the previous attempt does not use."""
        own, unit = unit_of(slot), unit_of(_standby_slot(slot, folder))
        if self._manager.show(unit, "ActiveState") not in GONE:
            raise LaunchError(f"{slot}: {unit} is still in use; see `systemctl status {unit}`")
        if self._manager.show(unit, "DropInPaths") != self._manager.show(own, "DropInPaths"):
            raise LaunchError(f"{slot}: {own} has drop-ins that {unit} lacks; move them to rocm-run@.service.d")
        slot_folder = self._state / "jobs" / _standby_slot(slot, folder)
        make_folder(slot_folder, folder.parent.stat().st_gid if folder.parent.stat().st_mode & stat.S_ISGID else None)
        point(slot_folder, standby.folder_of(folder))
        complaint = self._manager.order("start", "--no-block", unit)
        if complaint is not None:
            raise LaunchError(f"{slot}: {complaint}")

    def go(self, slot: str, folder: Path) -> str | None:
        """See `Launcher.go`."""
        return standby.go(folder, self._limit_s)

    def dismiss(self, slot: str, folder: Path) -> None:
        """See `Launcher.dismiss`."""
        standby_slot = _standby_slot(slot, folder)
        ours = self._is_current(standby_slot, standby.folder_of(folder))
        ended = standby.end(folder)
        # A standby that does not wait yet is known only to systemd.
        if ours and not standby.going(folder) and not (ended and self._manager.idle(unit_of(standby_slot))):
            self._manager.order("stop", "--no-block", unit_of(standby_slot))

    def signal(self, slot: str, folder: Path, signal_number: int) -> bool:
        """See `Launcher.signal`: sent directly if permitted, else through systemd."""
        process = living_shim(folder)
        if process is not None and process_table.send(process, signal_number):
            return True
        # systemd knows the unit's main process independently of shim.json, which may name another.
        if process is None and not names_another(folder) and not is_shim_hidden(folder):
            return False
        return self._send_signal(self.find_unit(slot, folder), "main", signal_number)

    def kill_all(self, slot: str, folder: Path) -> None:
        """See `Launcher.kill_all`: everything in the unit's cgroup."""
        unit = self.find_unit(slot, folder)
        if unit is not None:
            self._send_signal(unit, "all", signal.SIGKILL)

    def find_shim(self, slot: str, folder: Path) -> Process | None:
        """See `Launcher.find_shim`: where shim.json names none, the main process of the unit."""
        process = living_shim(folder)
        if process is not None or (unit := self.find_unit(slot, folder)) is None:
            return process
        main = self._manager.show(unit, "MainPID") or ""
        process = process_table.read_process(int(main)) if main.isdecimal() else None
        return process if process is not None and has_shim_command(process, folder) else None

    def find_unit(self, slot: str, folder: Path) -> str | None:
        """See `Launcher.find_unit`. None if no unit belongs to the attempt any more; systemd is not asked."""
        if standby.going(folder) and self._is_current(_standby_slot(slot, folder), standby.folder_of(folder)):
            return unit_of(_standby_slot(slot, folder))
        return unit_of(slot) if self._is_current(slot, folder) else None

    def _send_signal(self, unit: str | None, who: str, signal_number: int) -> bool:
        if unit is None:
            return False
        # --kill-who: systemd before 252 does not know --kill-whom, later ones know both.
        complaint = self._manager.order("kill", f"--kill-who={who}", f"--signal={int(signal_number)}", unit)
        if complaint is not None and NOT_LOADED not in complaint:
            # Logged, because otherwise a missing permission would look like an unkillable process.
            log.error("unit.not_signalled", extra={"fields": {"unit": unit, "why": complaint}})
        return complaint is None

    def alive(self, slot: str, folder: Path) -> bool:
        """See `Launcher.alive`. True if systemd does not answer, so that no second attempt starts."""
        if living_shim(folder) is not None:
            return True
        unit = self.find_unit(slot, folder)
        if unit is None:
            return False
        # A unit whose processes survive SIGKILL becomes "failed"; its cgroup still contains them.
        return self._manager.populated(unit) or self._manager.show(unit, "ActiveState") not in GONE

    def _is_current(self, slot: str, folder: Path) -> bool:
        return (self._state / "jobs" / slot / names.CURRENT).resolve() == folder.resolve()

    def _wait_for_shim(self, unit: str, folder: Path) -> None:
        limit = RunningLimit(self._limit_s)
        for poll in range(1, 1_000_000):
            # Queried before the folder is read: a unit that has ended has written its files by then.
            ended = poll % ASK_EVERY == 0 and self._manager.idle(unit)
            if read_shim(folder) is not None:
                return
            error = read_start_error(folder)
            if error is not None:
                raise LaunchError(error)
            if ended:
                raise LaunchError(f"{unit} ended before the training began: {self._manager.why(unit)}")
            if limit.next_wait_s() == 0:
                raise SilentShimError(
                    f"the shim did not report within {self._limit_s:.0f} s: {self._manager.why(unit)}"
                )
            time.sleep(POLL_S)


class Manager:
    """The system's or the user's systemd manager, controlled through systemctl; does not prompt for a password."""

    def __init__(self, *, user: bool, limit_s: float = CALL_LIMIT_S) -> None:
        """`limit_s` is the deadline of every call."""
        self._scope = ("--user",) if user else ()
        self._limit_s = limit_s
        home = f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service" if user else "."
        self._slice = Path("/sys/fs/cgroup") / home / "rocm.slice" / "rocm-runs.slice"

    def order(self, *arguments: str) -> str | None:
        """Run `systemctl ARGUMENTS`; return None, or its error message with the remedy."""
        status, output = self._run_program("systemctl", "--no-ask-password", *arguments)
        return None if status == 0 else with_remedy(output or f"systemctl ended with status {status}")

    def show(self, unit: str, name: str) -> str | None:
        """Return a property of a unit; None if systemd does not answer."""
        status, output = self._run_program("systemctl", "show", "--value", f"--property={name}", unit)
        return output if status == 0 else None

    def idle(self, unit: str) -> bool:
        """Whether the unit is not running and has no queued job."""
        return self.show(unit, "ActiveState") in GONE and self.show(unit, "Job") in {"", "0"}

    def populated(self, unit: str) -> bool:
        """Whether the unit's cgroup has processes; False also if it is not visible (cgroup v1, another slice)."""
        try:
            return "populated 1" in (self._slice / unit / "cgroup.events").read_text().splitlines()
        except OSError:
            return False

    def why(self, unit: str) -> str:
        """Return the journal's last messages of a unit; systemd unloads a failed unit (CollectMode=)."""
        how = ("--unit", unit, "--since=-15s", "--reverse", "--lines=4", "--output=cat", "--quiet")
        _, output = self._run_program("journalctl", *how)
        lines = [line for line in reversed(output.splitlines()) if line.strip()]
        return with_remedy(" / ".join(lines)) if lines else f"see `journalctl -u {unit}`"

    def _run_program(self, program: str, *arguments: str) -> tuple[int, str]:
        command = [program, *self._scope, "--no-pager", *arguments]
        try:
            environment = {**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"}
            done = programs.run(command, self._limit_s, together=True, environment=environment)
        except OSError as error:
            return -1, f"{program}: {error.strerror}"
        if done.status is None:
            return -1, f"`{' '.join(command[:4])}` did not answer within {self._limit_s:.0f} s"
        return done.status, done.stdout.decode(errors="backslashreplace").strip()


def available(*, user: bool, state: Path | None = None) -> str | None:
    """Return why units cannot be used on this system, with the remedy; None if they can. Starts no unit.

    With `state`, the template must use that state directory.
    """
    if not BOOTED.is_dir():
        return "this system was not booted with systemd"
    if shutil.which("systemctl") is None:
        return "systemctl is not on the PATH"
    manager, unit = Manager(user=user), unit_of(PROBE)
    complaint = manager.order("show", "--property=Version")
    if complaint is not None:
        return complaint
    if manager.show(unit, "LoadState") != "loaded":
        return with_remedy(f"unit rocm-run@.service not found or invalid ({manager.show(unit, 'LoadState')})")
    command = manager.show(unit, "ExecStart") or ""
    if state is not None and f" {state}/jobs/" not in command:
        return f"rocm-run@.service uses another state directory than {state}: set supervisor.state_dir to its value"
    if state is not None and f"/{names.CURRENT}/{SHIM_PROGRAM}" not in command:
        return "rocm-run@.service was written by an earlier version: run `supervisorctl setup` again"
    if user or os.geteuid() == 0:
        return None
    return manager.order("try-restart", "--no-block", unit)


def _standby_slot(slot: str, folder: Path) -> str:
    """Return the slot of an attempt's standby: not a job's name, and other than that of the previous attempt's."""
    return f"{slot}--standby-{int(folder.name) % 2 + 1}"


def unit_of(slot: str) -> str:
    """Return the unit name of a slot. Raises LaunchError for a slot that cannot be part of a unit name."""
    if SLOT.fullmatch(slot) is None:
        raise LaunchError(f"{slot!r} cannot be part of a unit name: use letters, digits, `_`, `.` and `-`")
    return f"rocm-run@{slot}.service"


def with_remedy(message: str) -> str:
    """Return systemd's message with its remedy, if one is known."""
    message = " / ".join(line.strip() for line in message.splitlines() if not line.startswith("See "))
    return next((f"{message} ({remedy})" for sign, remedy in REMEDIES if sign in message), message)
