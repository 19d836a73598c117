"""The morning report of a receiver: when it is due, and the notice of what became of the trainings in a day; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from supervisor.alerts.payload import Notice, clean
from supervisor.alerts.quiet import read_minutes
from supervisor.core.flags import Severity
from supervisor.core.moments import Moment

REPORT = "report"
"""Type of the notice."""
LATEST_MIN = 180
"""How long after its time a report is still made, where no daemon ran before."""
TRAININGS_LISTED = 12
UNDELIVERED_LISTED = 5
NAME_LIMIT, TEXT_LIMIT = 80, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDay:
    """What became of one training in a day; None is unknown."""

    name: str
    phase: str
    needs_person: bool = False
    """Whether it stands given up."""
    has_open_incident: bool = False
    """Whether it made no step yet since its latest incident."""
    reason: str | None = None
    """Why it is in its phase."""
    epoch_before: int | None = None
    epoch: int | None = None
    loss_before: float | None = None
    loss: float | None = None
    steps: int | None = None
    """Made in the day."""
    effective: float | None = None
    """Effective training time over the time in which it was wanted, from 0 to 1."""
    lost_s: float | None = None
    """What its incidents cost."""
    incidents: int | None = None
    resumed: int | None = None
    """Of these, how many were followed by a new step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What a report is made of."""

    trainings: Sequence[TrainingDay]
    undelivered: Sequence[tuple[str, int, str]] = ()
    """Each receiver whose alerts could not be delivered: its name, how many, and the latest error."""
    unreadable: str | None = None
    """Why what is in the record could not be read."""


def report_day(report_at: str, zone: tzinfo | None, unix_s: float) -> str | None:
    """Return the date of the report that is due at a time, None where none is.

    It is due from its time on for three hours of the same day, by the clock on the wall of `zone`.
    """
    try:
        local = datetime.fromtimestamp(unix_s, zone)
    except (ValueError, OverflowError, OSError):
        return None
    late_min = local.hour * 60 + local.minute - read_minutes(report_at)
    return local.date().isoformat() if 0 <= late_min < LATEST_MIN else None


def find_since(report_at: str, zone: tzinfo | None, unix_s: float) -> float:
    """Return from when on a report that is made at a time tells: that of the one before, by the clock of `zone`.

    That is 23 or 25 h where the clock was changed, and more where the report is late: nothing is in no report.
    """
    minutes, today = read_minutes(report_at), datetime.fromtimestamp(unix_s, zone).date()
    of_day = time(minutes // 60, minutes % 60, tzinfo=zone)
    return datetime.combine(today - timedelta(days=1), of_day).timestamp()


def build_report(day: Day, date: str, at: Moment, host: str) -> Notice:
    """Return the report; it is sent however high the receiver's floor, and also when all is well."""
    needed = sum(training.needs_person for training in day.trainings)
    unresolved = sum(training.has_open_incident for training in day.trainings)
    is_well = not (needed or unresolved or day.undelivered or day.unreadable)
    worst_first = sorted(
        day.trainings, key=lambda training: (not training.needs_person, not training.has_open_incident)
    )
    data = {
        "host": clean(host, NAME_LIMIT),
        "date": date,
        "count": len(day.trainings),
        "stopped": needed,
        "unresolved": unresolved,
        "well": is_well,
        "trainings": [_describe_training(training) for training in worst_first[:TRAININGS_LISTED]],
        "undelivered": [
            {"receiver": clean(name, NAME_LIMIT), "count": count, "error": clean(error, TEXT_LIMIT)}
            for name, count, error in day.undelivered[:UNDELIVERED_LISTED]
        ],
        "unreadable": clean(day.unreadable, TEXT_LIMIT) if day.unreadable else None,
    }
    return Notice(
        type=REPORT,
        severity=Severity.INFO if is_well else Severity.WARNING,
        key=f"report {date}",
        job=None,
        at=at,
        data={name: value for name, value in data.items() if value is not None},
        outcome=True,
    )


def _describe_training(training: TrainingDay) -> dict[str, object]:
    facts: dict[str, object | None] = {
        "job": clean(training.name, NAME_LIMIT),
        "phase": training.phase,
        "reason": clean(training.reason, TEXT_LIMIT) if training.reason else None,
        "epoch_before": training.epoch_before,
        "epoch": training.epoch,
        "loss_before": training.loss_before,
        "loss": training.loss,
        "steps": training.steps,
        "effective": training.effective,
        "lost_s": training.lost_s,
        "incidents": training.incidents,
        "resumed": training.resumed,
    }
    return {name: value for name, value in facts.items() if value is not None}
