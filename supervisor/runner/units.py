"""Starts shims as systemd units of the template rocm-run@.service.

The system's units are reached over the bus, which polkit allows to the daemon's user for rocm-run@ alone
(systemd/50-rocm-supervisor.rules). Every call has a deadline: a manager that hangs costs seconds, never the daemon.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

from supervisor.core import attempt_files as names
from supervisor.runner import shim, standby
from supervisor.runner.attempt_folder import living_shim, make_folder, names_another, point, read_shim, read_start_error
from supervisor.runner.code_copy import SHIM_PROGRAM
from supervisor.runner.launcher import LAUNCH_LIMIT_S, LaunchError

log = logging.getLogger(__name__)

CALL_LIMIT_S = 5.0
POLL_S = 0.05
ASK_EVERY = 10
"""Polls of the folder between two questions to systemd."""
BOOTED = Path("/run/systemd/system")
"""sd_booted(3)"""
PROBE = "Permission.probe"
"""A slot that no job can have: asking whether it may be restarted, when it does not run, changes nothing."""
SLOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")
"""What the polkit rule lets through; none of it is escaped in a unit's name."""
NOT_LOADED = "not loaded"
"""What systemd says of a unit that ended meanwhile."""
GONE = frozenset({"inactive", "failed"})

REMEDIES = (
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
"""What systemd says, and what helps."""


class UnitLauncher:
    """Runs the attempt of a slot as rocm-run@SLOT.service: a cgroup and, for the system's, a user of its own."""

    def __init__(self, *, user: bool, state: Path, limit_s: float = LAUNCH_LIMIT_S) -> None:
        """`user`: the units of `systemctl --user`; `state` is the directory that the template was written for."""
        self._manager = Manager(user=user)
        self._state = state
        self._limit_s = limit_s

    def launch(self, slot: str, folder: Path) -> None:
        """See `Launcher.launch`. The unit runs what `current` of the slot points to, so that must be `folder`."""
        unit = unit_of(slot)
        if not self._is_current(slot, folder):
            raise LaunchError(f"{slot}: {unit} would not start {folder}: the job's `current` link points elsewhere")
        if self._manager.show(unit, "ActiveState") in {"active", "activating", "reloading"}:
            raise LaunchError(f"{slot}: an attempt is still running in {unit}; see `systemctl status {unit}`")
        # --no-block: at its own start the daemon must not wait for a job that is ordered against the daemon's.
        complaint = self._manager.order("start", "--no-block", unit)
        if complaint is not None:
            raise LaunchError(f"{slot}: {complaint}")
        try:
            self._wait(unit, folder)
        except LaunchError as error:
            self.kill_all(slot, folder)
            self._manager.order("stop", "--no-block", unit)  # takes back a start that still waits for its turn
            raise LaunchError(f"{slot}: {error}") from None

    def stand_by(self, slot: str, folder: Path) -> None:
        """See `Launcher.stand_by`: in a unit beside the slot's own that the attempt before cannot have."""
        own, unit = unit_of(slot), unit_of(_beside(slot, folder))
        if self._manager.show(unit, "ActiveState") not in GONE:
            raise LaunchError(f"{slot}: {unit} is still in use; see `systemctl status {unit}`")
        if self._manager.show(unit, "DropInPaths") != self._manager.show(own, "DropInPaths"):
            raise LaunchError(f"{slot}: {own} has drop-ins that {unit} lacks; move them to rocm-run@.service.d")
        beside = self._state / "jobs" / _beside(slot, folder)
        make_folder(beside, folder.parent.stat().st_gid if folder.parent.stat().st_mode & stat.S_ISGID else None)
        point(beside, standby.folder_of(folder))
        complaint = self._manager.order("start", "--no-block", unit)
        if complaint is not None:
            raise LaunchError(f"{slot}: {complaint}")

    def go(self, slot: str, folder: Path) -> str | None:
        """See `Launcher.go`."""
        return standby.go(folder, self._limit_s)

    def dismiss(self, slot: str, folder: Path) -> None:
        """See `Launcher.dismiss`."""
        beside = _beside(slot, folder)
        ours = self._is_current(beside, standby.folder_of(folder))
        ended = standby.end(folder)
        # One that has not come so far as to listen is known to systemd alone.
        if ours and not standby.going(folder) and not (ended and self._manager.idle(unit_of(beside))):
            self._manager.order("stop", "--no-block", unit_of(beside))

    def signal(self, slot: str, folder: Path, signal_number: int) -> bool:
        """See `Launcher.signal`: by ourselves where we may, else through systemd."""
        process = living_shim(folder)
        if process is not None and shim.send(process, signal_number):
            return True
        # systemd knows the unit's main process of its own: shim.json may name another's.
        if process is None and not names_another(folder):
            return False
        return self._kill(self._unit(slot, folder), "main", signal_number)

    def kill_all(self, slot: str, folder: Path) -> None:
        """See `Launcher.kill_all`: everything in the unit's cgroup."""
        unit = self._unit(slot, folder)
        if unit is not None:
            self._kill(unit, "all", signal.SIGKILL)

    def _kill(self, unit: str | None, who: str, signal_number: int) -> bool:
        if unit is None:
            return False
        # --kill-who: systemd before 252 does not know --kill-whom, later ones know both.
        complaint = self._manager.order("kill", f"--kill-who={who}", f"--signal={int(signal_number)}", unit)
        if complaint is not None and NOT_LOADED not in complaint:
            # Without this word a missing right would look like a process that SIGKILL does not end.
            log.error("unit.not_signalled", extra={"fields": {"unit": unit, "why": complaint}})
        return complaint is None

    def alive(self, slot: str, folder: Path) -> bool:
        """See `Launcher.alive`. Where systemd does not answer it is True: nothing may start beside a maybe."""
        if living_shim(folder) is not None:
            return True
        unit = self._unit(slot, folder)
        if unit is None:
            return False
        # systemd gives a unit up ("failed") whose processes outlive SIGKILL; its cgroup still has them.
        return self._manager.populated(unit) or self._manager.show(unit, "ActiveState") not in GONE

    def _unit(self, slot: str, folder: Path) -> str | None:
        """Return the unit of an attempt; None where no unit is its any more."""
        if standby.going(folder) and self._is_current(_beside(slot, folder), standby.folder_of(folder)):
            return unit_of(_beside(slot, folder))
        return unit_of(slot) if self._is_current(slot, folder) else None

    def _is_current(self, slot: str, folder: Path) -> bool:
        return (self._state / "jobs" / slot / names.CURRENT).resolve() == folder.resolve()

    def _wait(self, unit: str, folder: Path) -> None:
        deadline = time.perf_counter() + self._limit_s
        for poll in range(1, 1_000_000):
            # Asked before the folder is looked at: a unit that ended has left its last word by then.
            ended = poll % ASK_EVERY == 0 and self._manager.idle(unit)
            if read_shim(folder) is not None:
                return
            error = read_start_error(folder)
            if error is not None:
                raise LaunchError(error)
            if ended:
                raise LaunchError(f"{unit} ended before the training began: {self._manager.why(unit)}")
            if time.perf_counter() > deadline:
                raise LaunchError(f"the shim did not report within {self._limit_s:.0f} s: {self._manager.why(unit)}")
            time.sleep(POLL_S)


class Manager:
    """One systemd, the system's or the user's, asked through systemctl; it never asks a person for a password."""

    def __init__(self, *, user: bool, limit_s: float = CALL_LIMIT_S) -> None:
        """`limit_s` bounds every single question."""
        self._scope = ("--user",) if user else ()
        self._limit_s = limit_s
        home = f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service" if user else "."
        self._slice = Path("/sys/fs/cgroup") / home / "rocm.slice" / "rocm-runs.slice"

    def order(self, *words: str) -> str | None:
        """Run `systemctl WORDS`; return None, or what it complained about with the remedy."""
        status, said = self._run("systemctl", "--no-ask-password", *words)
        return None if status == 0 else with_remedy(said or f"systemctl ended with status {status}")

    def show(self, unit: str, name: str) -> str | None:
        """Return a property of a unit; None where systemd does not answer."""
        status, said = self._run("systemctl", "show", "--value", f"--property={name}", unit)
        return said if status == 0 else None

    def idle(self, unit: str) -> bool:
        """Whether the unit neither runs nor is about to."""
        return self.show(unit, "ActiveState") in GONE and self.show(unit, "Job") in {"", "0"}

    def populated(self, unit: str) -> bool:
        """Whether processes are in the unit's cgroup; False also where it is not to be seen (cgroup v1, own slice)."""
        try:
            return "populated 1" in (self._slice / unit / "cgroup.events").read_text().splitlines()
        except OSError:
            return False

    def why(self, unit: str) -> str:
        """Return the journal's last words about a unit: systemd forgets a failed one (CollectMode=)."""
        how = ("--unit", unit, "--since=-15s", "--reverse", "--lines=4", "--output=cat", "--quiet")
        _, said = self._run("journalctl", *how)
        lines = [line for line in reversed(said.splitlines()) if line.strip()]
        return with_remedy(" / ".join(lines)) if lines else f"see `journalctl -u {unit}`"

    def _run(self, program: str, *words: str) -> tuple[int, str]:
        command = [program, *self._scope, "--no-pager", *words]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._limit_s,
                check=False,
                env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
            )
        except subprocess.TimeoutExpired:
            return -1, f"`{' '.join(command[:4])}` did not answer within {self._limit_s:.0f} s"
        except OSError as error:
            return -1, f"{program}: {error.strerror}"
        return done.returncode, done.stdout.decode(errors="backslashreplace").strip()


def available(*, user: bool, state: Path | None = None) -> str | None:
    """Return why units cannot be used here, with the remedy; None where they can. It starts nothing.

    With `state`, the template must run what lies below it.
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


def _beside(slot: str, folder: Path) -> str:
    """Return the slot in which something stands by for an attempt: no job's, and never that of the attempt before."""
    return f"{slot}--standby-{int(folder.name) % 2 + 1}"


def unit_of(slot: str) -> str:
    """Return the name of the unit of a slot; raise LaunchError for a slot that has none."""
    if SLOT.fullmatch(slot) is None:
        raise LaunchError(f"{slot!r} cannot be part of a unit name: use letters, digits, `_`, `.` and `-`")
    return f"rocm-run@{slot}.service"


def with_remedy(said: str) -> str:
    """Return what systemd said with what helps against it, where that is known."""
    said = " / ".join(line.strip() for line in said.splitlines() if not line.startswith("See "))
    return next((f"{said} ({remedy})" for sign, remedy in REMEDIES if sign in said), said)
