"""Finds a job's attempts by their folders, used when the database was lost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus
from supervisor.runner.attempt_folder import describe_newer, read_exit, read_shim

NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
NUMBERS_LIMIT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttempt:
    """The facts of an attempt that its folder contains."""

    number: int
    folder: Path
    launched_at: Moment
    """From shim.json; without it, when the folder was last changed."""
    shim_pid: int | None = None
    training_pid: int | None = None
    exit: ExitStatus | None = None


def numbers_found(job_folder: Path) -> tuple[int, ...]:
    """Return the attempt numbers that have a folder, lowest first; () if the job's folder cannot be read."""
    try:
        names = [path.name for path in job_folder.iterdir() if NUMBER.fullmatch(path.name)]
    except OSError:
        return ()
    return tuple(sorted(map(int, names))[-NUMBERS_LIMIT:])


def found_attempt(folder: Path, now: Moment) -> FoundAttempt | None:
    """Return the facts in the folder of an attempt; None if it is missing or cannot be read."""
    try:
        changed_unix_s = folder.lstat().st_mtime
    except OSError:
        return None
    note = read_shim(folder)
    started_unix_s = note.started_unix_s if note is not None else None
    unix_s = min(changed_unix_s if started_unix_s is None else started_unix_s, now.unix_s)
    return FoundAttempt(
        number=int(folder.name),
        folder=folder,
        launched_at=Moment(now.monotonic_s - (now.unix_s - unix_s), unix_s),
        shim_pid=None if note is None else note.pid,
        training_pid=None if note is None else note.training_pid,
        exit=read_exit(folder, now) if describe_newer(folder) is None else None,
    )
