"""The steps of `supervisorctl setup --remove`, as values, and their execution; data is kept without `--purge`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.cli.paths import CONF_D
from supervisor.cli.setup.plan import CONFIG, GROUP, POLKIT_RULES, SYSTEM_UNITS, SYSUSERS, TMPFILES, UNITS

DAEMON_UNITS = ("rocm-supervisor.service", "rocm-supervisor.socket")
FLEET_UNITS = ("rocm-supervisor-fleet.service",)
WEB_UNITS = ("rocm-supervisor-web.socket", "rocm-supervisor-web.service")
JOBS_GROUP = "rocm-supervisor-jobs"
DATABASE = "supervisor.db"
"""A folder without this file is not treated as a state directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile:
    """A file that setup wrote; its drop-in folder is removed too if it is then empty."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveState:
    """A state directory with the database, the evidence and all kept checkpoints."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """A command that undoes a step of setup; skipped if the file `needs` does not exist."""

    argv: tuple[str, ...]
    needs: Path | None = None
    may_fail: bool = False
    """Whether a failure is ignored, because the object may not exist any more."""


Removal = RemoveFile | RemoveState | Undo


def owner_removal() -> Iterator[Removal]:
    """Yield the steps that undo `setup` where the Debian package brought the units: they are apt's to remove."""
    for unit in ("rocm-run@.service", "rocm-supervisor.service"):
        yield RemoveFile(path=SYSTEM_UNITS / f"{unit}.d" / "owner.conf")
    yield Undo(argv=("systemctl", "daemon-reload"))


def system_removal(state: Path, *, purge: bool) -> Iterator[Removal]:
    """Yield the steps that undo `setup` for the system; stopping the daemon saves and ends the trainings."""
    service = SYSTEM_UNITS / DAEMON_UNITS[0]
    yield Undo(argv=("systemctl", "disable", "--now", *DAEMON_UNITS), needs=service)
    for units in (WEB_UNITS, FLEET_UNITS):
        yield Undo(argv=("systemctl", "disable", "--now", *units), needs=SYSTEM_UNITS / units[0])
    for unit in UNITS:
        yield RemoveFile(path=SYSTEM_UNITS / unit)
    for unit in ("rocm-run@.service", "rocm-supervisor.service"):
        yield RemoveFile(path=SYSTEM_UNITS / f"{unit}.d" / "owner.conf")
    for path in (POLKIT_RULES, SYSUSERS, TMPFILES):
        yield RemoveFile(path=path)
    yield Undo(argv=("systemctl", "daemon-reload"))
    if purge:
        yield RemoveFile(path=CONFIG)
        yield RemoveState(path=state)
        yield Undo(argv=("userdel", GROUP), may_fail=True)
        for group in (GROUP, JOBS_GROUP):
            yield Undo(argv=("groupdel", group), may_fail=True)


def user_removal(home: Path, state: Path, *, purge: bool) -> Iterator[Removal]:
    """Yield the steps that undo `setup --user`."""
    units = home / ".config" / "systemd" / "user"
    yield Undo(argv=("systemctl", "--user", "disable", "--now", *DAEMON_UNITS), needs=units / DAEMON_UNITS[0])
    yield Undo(argv=("systemctl", "--user", "disable", "--now", *WEB_UNITS), needs=units / WEB_UNITS[0])
    for unit in UNITS:
        yield RemoveFile(path=units / unit)
    yield Undo(argv=("systemctl", "--user", "daemon-reload"))
    if purge:
        yield RemoveFile(path=home / ".config" / "rocm-supervisor" / "config.toml")
        yield RemoveState(path=state)


def undo(step: Removal, *, dry_run: bool) -> str:
    """Execute one step and return a line that describes it. Raises OSError, or ValueError if removal must stop."""
    if isinstance(step, Undo):
        return _run_undo(step, dry_run=dry_run)
    if not step.path.exists():
        return f"absent       {step.path}"
    if isinstance(step, RemoveState) and not (step.path / DATABASE).is_file():
        return f"kept         {step.path} (not a state directory: it does not contain {DATABASE})"
    if dry_run:
        return f"would remove {step.path}"
    if isinstance(step, RemoveState):
        shutil.rmtree(step.path)
    else:
        step.path.unlink()
        if (
            step.path.parent.name.endswith(".d") and step.path.parent.parent == SYSTEM_UNITS
        ) or step.path.parent.name == "rocm-supervisor":
            _remove_empty(step.path.parent)
    return f"removed      {step.path}"


def left(state: Path, *, config: Path, purge: bool, packaged: bool = False) -> list[str]:
    """Return what is not removed, one line each."""
    drop_ins = [SYSTEM_UNITS / f"{unit}.d" for unit in UNITS]
    found = [f"{folder}    (your own drop-ins)" for folder in drop_ins if folder.is_dir()]
    if (folder := config.parent / CONF_D).is_dir():
        found.append(f"{folder}    (your own files)")
    if purge and config.parent.is_dir():
        others = sorted(path for path in config.parent.iterdir() if path.is_file() and path != config)
        found += [f"{path}    (not written by setup)" for path in others]
    if packaged:
        return [*found, "the package, its settings and its state    (apt remove or apt purge rocm-supervisor)"]
    if not purge:
        found += [f"{path}    (--purge removes it)" for path in (config, state) if path.exists()]
    return [*found, "the environment that rocm-supervisor is installed in"]


def _run_undo(step: Undo, *, dry_run: bool) -> str:
    command = " ".join(step.argv)
    if step.needs is not None and not step.needs.exists():
        return f"absent       {step.needs}"
    if dry_run:
        return f"would run    {command}"
    error = _run_command(step.argv)
    if error is not None and not step.may_fail:
        raise ValueError(f"`{command}` failed: {error}; the remaining steps were not executed")
    return f"ran          {command}" if error is None else f"not needed   {command} ({error})"


def _run_command(argv: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"{argv[0]} is not installed"
    if done.returncode == 0:
        return None
    output = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return output[-1] if output else f"status {done.returncode}"


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
