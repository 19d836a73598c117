"""Clears away what old attempts left on the disk: evidence after its time, and nothing of a live attempt."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from supervisor.core import folder as fo

log = logging.getLogger(__name__)

RECORDERS_KEPT = 5
"""Newest attempts of a job whose flight recorder (8 MB) stays; the record has their steps for longer."""
DAY_S = 86400.0
REPLAYS_DAYS = 2.0
"""No triage takes longer."""


def sweep(state: Path, incidents_days: float, unix_s: float) -> int:
    """Remove recorders of all but the newest attempts, and whole folders past `incidents_days`; return what went."""
    removed = 0
    for job in _folders(state / "jobs"):
        attempts = sorted((one for one in _folders(job) if one.name.isdigit()), key=lambda one: int(one.name))
        for attempt in attempts[:-RECORDERS_KEPT]:
            removed += _recorders(attempt)
        for attempt in attempts[:-1]:
            if unix_s - attempt.stat().st_mtime > incidents_days * DAY_S:
                shutil.rmtree(attempt, ignore_errors=True)
                removed += 1
        for replay in (one for one in _folders(job) if one.name.startswith(f"{fo.TRIAGE}-")):
            # The daemon that made it died before it could clear up.
            if unix_s - replay.stat().st_mtime > REPLAYS_DAYS * DAY_S:
                shutil.rmtree(replay, ignore_errors=True)
                removed += 1
    if removed:
        log.info("attempts.swept", extra={"fields": {"removed": removed}})
    return removed


def clear_snapshots(folder: Path) -> None:
    """Remove what a training that has come to its end will not resume from."""
    for one in (*folder.glob("*.pt"), *folder.glob("*.part")):
        one.unlink(missing_ok=True)


def clear_replays(job: Path) -> None:
    """Remove the folders of a triage's replays; what a user's program wrote there may stay until its user clears it."""
    for one in _folders(job):
        if one.name.startswith(f"{fo.TRIAGE}-"):
            shutil.rmtree(one, ignore_errors=True)


def _recorders(attempt: Path) -> int:
    found = list(attempt.glob("recorder*.bin"))
    for one in found:
        one.unlink(missing_ok=True)
    return len(found)


def _folders(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (one for one in place.iterdir() if one.is_dir() and not one.is_symlink() and one.name != fo.CURRENT)
