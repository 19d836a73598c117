"""The check of `doctor` that this machine's record reaches the fleet's database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from supervisor.cli.formatting import span
from supervisor.config import Settings
from supervisor.control.types import DoctorLine
from supervisor.fleet.sent import FILE, FOLDER, PASSED

LATE_S = 600.0
"""A copy that is older than this and forty intervals is late."""
INTERVALS = 40
START = "sudo systemctl enable --now rocm-supervisor-fleet, or supervisorctl fleet ship"


def shipping(settings: Settings, now_unix_s: float) -> Iterator[DoctorLine]:
    """Check when the record was last copied completely; nothing where no fleet is configured."""
    if settings.fleet.database_url is None:
        return
    path = Path(settings.supervisor.state_dir) / FOLDER / FILE
    try:
        passed = _read_passed(path)
    except (OSError, sqlite3.Error, ValueError) as error:
        remedy = "run doctor as the daemon's user: sudo -u rocm-supervisor"
        yield DoctorLine(name="fleet", level="warn", found=f"{path} cannot be read: {error}", remedy=remedy)
        return
    if passed is None:
        found = "this machine's record has not been copied completely to the fleet's database yet"
        yield DoctorLine(name="fleet", level="warn", found=found, remedy=START)
        return
    age_s = max(0.0, now_unix_s - passed)
    limit_s = max(LATE_S, INTERVALS * settings.fleet.interval_s)
    late = age_s > limit_s
    found = f"this machine's record was copied to the fleet's database {span(age_s)} ago"
    found += f" (limit {span(limit_s)})" if late else ""
    remedy = f"see `journalctl -u rocm-supervisor-fleet`; the record stays here until it is copied. {START}"
    yield DoctorLine(name="fleet", level="warn" if late else "ok", found=found, remedy=remedy if late else None)


def _read_passed(path: Path) -> float | None:
    if not path.exists():
        return None
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as connection:
        row = connection.execute("SELECT value FROM facts WHERE name = ?", (PASSED,)).fetchone()
    return None if row is None else float(row[0])
