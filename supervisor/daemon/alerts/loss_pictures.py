"""The loss before an alert, read from the record for its picture; in the thread of a receiver, by sqlite3 alone."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import timezone
from pathlib import Path

from supervisor.alerts.channel import KeptNotice
from supervisor.alerts.message import parse_time
from supervisor.alerts.picture import LossCurve, draw_loss
from supervisor.store import files, series
from supervisor.store.series import Columns, Window

log = logging.getLogger(__name__)
PICTURED = ("incident.opened", "incident.resumed", "job.gave_up", "job.finished")
HOURS = 6.0
POINTS = 270
"""Two pixels of the chart each."""
_INCIDENTS = "SELECT opened_unix_s FROM incidents WHERE job = ? AND opened_unix_s >= ? AND opened_unix_s <= ?"


class LossPictures:
    """The pictures of notices, from one database file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def draw(self, notice: KeptNotice) -> bytes | None:
        """Return the PNG of the loss of the six hours before a notice, None where there is nothing to show."""
        job, moment = notice.data.get("job"), parse_time(notice.timestamp, timezone.utc)
        if notice.type not in PICTURED or not isinstance(job, str) or moment is None:
            return None
        until_unix_s = moment.timestamp()
        window = Window(since_unix_s=until_unix_s - 3600 * HOURS, until_unix_s=until_unix_s, points=POINTS)
        try:
            with closing(files.open_reader(self._path)) as connection:
                spans = series.read_spans(connection, job)
                steps = series.read_steps(connection, job, window, spans)
                opened = connection.execute(_INCIDENTS, (job, window.since_unix_s, until_unix_s)).fetchall()
        except sqlite3.Error as error:
            log.warning("alert.picture_failed", extra={"fields": {"alert": notice.id, "error": str(error)}})
            return None
        return draw_loss(_build_curve(steps, window, [row[0] for row in opened]))


def _build_curve(steps: Columns, window: Window, opened_unix_s: list[float]) -> LossCurve:
    return LossCurve(
        hours=HOURS,
        at_s=[None if at is None else at - window.since_unix_s for at in steps["at"]],
        low=steps["loss_min"],
        mean=steps["loss"],
        high=steps["loss_max"],
        incidents_s=[at - window.since_unix_s for at in opened_unix_s],
    )
