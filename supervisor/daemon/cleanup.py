"""Removes files of old attempts: by age each hour, by number at each launch; never those of a live attempt."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files as fo
from supervisor.runner import standby
from supervisor.runner.code_copy import CodeCopies, attempts_of
from supervisor.runner.shim import STANDBY_FOLDER

log = logging.getLogger(__name__)

RECORDERS_KEPT = 5
"""Newest attempts of a job whose flight recorder (8 MB) stays; the record has their steps for longer."""
RECORDERS_LOOKED_AT = 3 * RECORDERS_KEPT
"""A launch clears one attempt's recorder; a few more are checked, in case a daemon died in between."""
ATTEMPTS_KEPT = 500
"""Newest attempts of a job whose folder stays, with its output and evidence; the record keeps the others."""
DAY_S = 86400.0
REPLAYS_DAYS = 2.0
"""No triage takes longer."""


def list_jobs(state: Path) -> tuple[str, ...]:
    """Return the names in the folder of all jobs; what lies there is not looked at, since it may hang."""
    return _list_names(state / "jobs", "")


def sweep(job: Path, incidents_days: float, unix_s: float) -> int:
    """Remove a job's recorders but those of the newest attempts, and folders older than `incidents_days`.

    Returns how many were removed.
    """
    removed = 0
    attempts = _list_attempts(job)
    for attempt in attempts[:-RECORDERS_KEPT]:
        removed += _remove_recorders(attempt)
    for attempt in attempts[:-1]:
        removed += _remove_older(attempt, incidents_days, unix_s)
    for replay in (path for path in _list_folders(job) if path.name.startswith(f"{fo.TRIAGE}-")):
        # The daemon that made it died before it removed it.
        removed += _remove_older(replay, REPLAYS_DAYS, unix_s)
    if removed:
        log.info("attempts.swept", extra={"fields": {"job": job.name, "removed": removed}})
    return removed


def clear_code(copies: CodeCopies, state: Path, alive: Callable[[str, Path], bool]) -> int:
    """Remove copies of earlier versions that no process runs any more; return how many.

    `alive(slot, folder)` says whether anything of an attempt or a replay may still run.
    """

    def runs(slot: str, folder: Path) -> bool:
        if not folder.name.startswith(STANDBY_FOLDER):
            return alive(slot, folder)
        attempt = folder.with_name(folder.name.removeprefix(STANDBY_FOLDER))
        return standby.waits(attempt) or alive(slot, attempt)

    removed = copies.prune(lambda place: any(runs(*found) for found in attempts_of(place, state / "jobs")))
    if removed:
        log.info("code.swept", extra={"fields": {"removed": removed}})
    return removed


def make_room(job: Path) -> int:
    """Before a launch, bound the disk space of a job's attempts; return how many files and folders were removed.

    Frequent restarts write 8 MB each, and thousands of folders, before the next hourly sweep.
    """
    attempts = _list_attempts(job)
    removed = sum(_remove_recorders(attempt) for attempt in attempts[-RECORDERS_LOOKED_AT : 1 - RECORDERS_KEPT])
    for attempt in attempts[: 1 - ATTEMPTS_KEPT]:
        removed += untrusted_files.remove_tree(attempt.parent, attempt.name)
    return removed


def _list_attempts(job: Path) -> list[Path]:
    """Return the folders of a job's attempts, the first one first."""
    return sorted((path for path in _list_folders(job) if _is_number(path.name)), key=lambda path: int(path.name))


def clear_snapshots(folder: Path) -> None:
    """Remove the snapshots of a finished training."""
    for name in _list_names(folder.parent, folder.name):
        if name.endswith((".pt", ".part")):
            _remove(folder.parent, f"{folder.name}/{name}")


def clear_replays(job: Path) -> None:
    """Remove the folders of a triage's replays; what a user's program wrote there may stay until its user clears it."""
    for path in _list_folders(job):
        if path.name.startswith(f"{fo.TRIAGE}-"):
            untrusted_files.remove_tree(job, path.name)


def _remove_older(folder: Path, days: float, unix_s: float) -> int:
    written = []
    for name in (folder.name, f"{folder.name}/{fo.RUN}"):
        with contextlib.suppress(OSError):
            written.append(untrusted_files.entry_status(folder.parent, name).st_mtime)
    if unix_s - max(written, default=unix_s) <= days * DAY_S:
        return 0
    untrusted_files.remove_tree(folder.parent, folder.name)
    return 1


def _remove_recorders(attempt: Path) -> int:
    found = [text for text in _list_names(attempt, fo.RUN) if text.startswith("recorder") and text.endswith(".bin")]
    return sum(_remove(attempt, f"{fo.RUN}/{name}") for name in found)


def _remove(folder: Path, name: str) -> bool:
    try:
        return untrusted_files.remove(folder, name)
    except OSError:
        return False  # a folder of that name, or one that its owner has closed


def _list_names(folder: Path, name: str) -> tuple[str, ...]:
    try:
        return untrusted_files.list_names(folder, name).names
    except OSError:
        return ()


def _list_folders(place: Path) -> Iterator[Path]:
    """Yield the folders in one that is the daemon's own; another thread may remove some of them meanwhile."""
    for name in _list_names(place, ""):
        try:
            mode = (place / name).lstat().st_mode
        except FileNotFoundError:
            continue
        if name != fo.CURRENT and stat.S_ISDIR(mode):
            yield place / name


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
