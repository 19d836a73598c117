"""Fences around the work for one job: an error there is recorded, and the event that caused it is skipped from then on.

Other jobs are not affected, and the job itself stays supervised by its other parts.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import supervisor
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.job import DEGRADED, Job
from supervisor.core.judge import conclude_rule, list_applicable, rank_flags
from supervisor.core.sanitize import one_line
from supervisor.core.stats.log_limit import LogLimit
from supervisor.daemon.clock import Clock
from supervisor.daemon.job_state import JobState
from supervisor.store.encode import kind_of

log = logging.getLogger(__name__)

SEARCH = "resume search"
"""The name of the part that looks for where to resume."""
ERROR_CHARACTERS = 300
KEPT_OF_A_PLACE = 20
"""Skipped events recorded for one place in one attempt, at most."""
LOG_AGAIN_S = 60.0
PARTS_MAX = 1000
"""More parts than a daemon has."""
ROOT = Path(supervisor.__file__).resolve().parent


class Record(Protocol):
    """Where failures are recorded."""

    def event(self, event: ev.Event, job_state: JobState | None) -> None:
        """Record an event."""
        ...

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        """Record a decision with what it changed, and queue its alerts."""
        ...


class Fences:
    """Keeps what failed. Used in the deciding thread."""

    def __init__(self, clock: Clock, record: Record) -> None:
        self._clock = clock
        self._record = record
        self.failures: dict[str, str] = {}
        """Parts of the daemon that failed for no job in particular, each with its last error."""
        self._log_limit = LogLimit(LOG_AGAIN_S, PARTS_MAX)

    def judged(self, job_state: JobState, history: History) -> tuple[RedFlag, ...]:
        """Return the flags of the rules; a rule that raises is switched off for the attempt."""
        flags, asked = [], list_applicable(job_state.rules, history)
        for rule in asked:
            if rule.name in job_state.switched_off:
                continue
            try:
                flag = conclude_rule(rule, history)
            except Exception as error:  # a fence: the other rules go on
                job_state.switched_off.add(rule.name)
                self.failed(job_state, f"rule {rule.name}", error)
            else:
                if flag is not None:
                    flags.append(flag)
        return rank_flags(flags, asked, history)

    def passes(self, job_state: JobState, place: str, event: ev.Event) -> bool:
        """Whether a place skips an event because processing it failed before, perhaps in an earlier daemon."""
        return bool(job_state.passed) and (place, *_event_key(event)) in job_state.passed

    def failed(self, job_state: JobState, place: str, error: Exception, event: ev.Event | None = None) -> None:
        """Record that a place failed for a job, and at which event; each place is reported once per attempt."""
        kind, offset = _event_key(event) if event is not None else (None, None)
        known = job_state.degraded.get(place)
        if known is None:
            fields = {"job": job_state.job.name, "attempt": job_state.job.number, "place": place, "event": kind}
            log.error("supervision.degraded", extra={"fields": fields}, exc_info=error)
        job_state.faults[place] = job_state.faults.get(place, 0) + 1
        if known is not None and (event is None or job_state.faults[place] > KEPT_OF_A_PLACE):
            return
        degraded = ev.SupervisionChanged(
            at=self._clock.now(),
            job=job_state.job.name,
            attempt=job_state.job.number,
            place=place,
            error=describe_error(error),
            kind=kind,
            offset=offset,
        )
        try:
            self._record.event(degraded, job_state)
        except Exception as unkept:
            self.note_failure("record", unkept)
        self.mark(job_state, degraded)

    def mark(self, job_state: JobState, degraded: ev.SupervisionChanged) -> None:
        """Mark a part of a job's supervision as failed or working again; the alert is queued with the flag."""
        place = degraded.place
        if degraded.recovered:
            if job_state.degraded.pop(place, None) is not None:
                log.warning("supervision.recovered", extra={"fields": {"job": degraded.job, "place": place}})
            return
        if degraded.kind is not None:
            job_state.passed.add((place, degraded.kind, degraded.offset))
        if place in job_state.degraded:
            return
        job_state.degraded[place] = degraded
        flag = degraded_flag(degraded)
        if flag.key in job_state.job.open_flags:
            return  # an earlier daemon reported it
        warning = de.Warn(at=degraded.at, job=job_state.job.name, attempt=job_state.job.number, flag=flag)
        before = job_state.job
        try:
            job_state.job = after_decision(before, warning)
            self._record.decision(before, job_state.job, warning)
        except Exception as error:
            self.note_failure("record", error)

    def recovered(self, job_state: JobState, place: str) -> None:
        """Record that a place that failed for a job has done its work since."""
        if (failed := job_state.degraded.get(place)) is None:
            return
        over = replace(failed, at=self._clock.now(), recovered=True)
        try:
            self._record.event(over, job_state)
        except Exception as unkept:
            self.note_failure("record", unkept)
        self.mark(job_state, over)

    def note_failure(self, place: str, error: Exception) -> None:
        """Keep the failure of a part of the daemon that belongs to no job; logged at most once a minute."""
        self.failures[place] = describe_error(error)
        if self._log_limit.allows(place, self._clock.now().monotonic_s):
            log.error("daemon.part_failed", extra={"fields": {"part": place}}, exc_info=error)


def degraded_flag(degraded: ev.SupervisionChanged) -> RedFlag:
    """Return the warning about a part that failed."""
    return RedFlag(
        rule=DEGRADED,
        severity=Severity.WARNING,
        at=degraded.at,
        subject=degraded.place,
        message=f"supervision degraded: {describe_degraded(degraded)}",
    )


def describe_degraded(degraded: ev.SupervisionChanged) -> str:
    """Return what failed and why, on one line."""
    passed = f", {degraded.kind.replace('_', ' ')} skipped" if degraded.kind is not None else ""
    where = f" at byte {degraded.offset}" if passed and degraded.offset is not None else ""
    return f"{degraded.place}: {degraded.error}{passed}{where}"


def describe_error(error: BaseException) -> str:
    """Return an error as one bounded line with its place in our code. Raises nothing."""
    try:
        text = str(error)
    except Exception:  # a number too long to be written is such an error's own text
        text = "its text cannot be had"
    name = type(error).__name__
    return one_line(f"{name}: {text}" if text else name, ERROR_CHARACTERS) + _place_of(error)


def _place_of(error: BaseException) -> str:
    frames: Iterable[traceback.FrameSummary] = reversed(traceback.extract_tb(error.__traceback__))
    ours = next((frame_summary for frame_summary in frames if Path(frame_summary.filename).is_relative_to(ROOT)), None)
    return "" if ours is None else f" ({Path(ours.filename).relative_to(ROOT.parent)}:{ours.lineno})"


def _event_key(event: ev.Event) -> tuple[str, int | None]:
    offset = getattr(event, "offset", None)
    return kind_of(event), offset if offset is not None else getattr(event, "cursor", None)
