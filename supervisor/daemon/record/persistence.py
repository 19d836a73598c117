"""Writes what the loop handles into the store, within a budget per job and hour."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.flags import RedFlag
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.stats.learned_limits import Learned
from supervisor.core.stats.rate_limit import Allowance
from supervisor.daemon.alerts.alerting import Announcer
from supervisor.daemon.job_state import JobState
from supervisor.json_bytes import encode_json
from supervisor.store.store import Store

log = logging.getLogger(__name__)

EVENTS_PER_HOUR, EVENTS_AT_ONCE = 3600, 5000
"""Of one job. Eight ranks that report their allocators every half minute make a thousand events per hour."""
REPORT_EVERY_S = 3600.0


class EventBudget:
    """The allowance of each job; the excess is counted and reported once an hour."""

    def __init__(self) -> None:
        self._each: dict[str, Allowance] = {}
        self._left_out: Counter[str] = Counter()
        self._reported_at: dict[str, Moment] = {}

    def take(self, event: ev.Event, now: Moment) -> bool:
        """Whether an event is recorded; what people, the system and the daemon do is, always."""
        if not isinstance(event, ev.AgentReported | ev.StageEntered | ev.OutputSeen | ev.CheckpointNotKept):
            return True
        job = event.job
        allowance = self._each.setdefault(job, Allowance(EVENTS_PER_HOUR / 3600, EVENTS_AT_ONCE))
        if allowance.take(now.monotonic_s):
            return True
        self._left_out[job] += 1
        reported_at = self._reported_at.get(job)
        if reported_at is None or now.seconds_since(reported_at) >= REPORT_EVERY_S:
            self._reported_at[job] = now
            fields = {"job": job, "events": self._left_out.pop(job), "per_hour": EVENTS_PER_HOUR}
            log.warning("record.events_left_out", extra={"fields": fields})
        return False


log = logging.getLogger(__name__)

SAVE_EVERY_S = 1.0
"""How often a job is saved of which only the steps changed; the steps themselves are written without delay."""
KERNEL_SEQUENCE = "kernel log sequence"
KERNEL_BOOT = "kernel log boot"
KERNEL_CURSOR = "kernel log cursor"
BOOT_READ = "last boot read"
"""In which boot, and when, the end of the previous boot was reported."""
LEARNED = "learned limits of"


class StoreRecord:
    """The loop's record: one turn, one commit."""

    def __init__(self, store: Store, announcer: Announcer, folder: Callable[[str, int], Path], boot_id: str) -> None:
        self._store = store
        self._announcer = announcer
        self._folder = folder
        self._boot_id = boot_id
        self._moved: dict[str, Job] = {}
        self._saved_at: Moment | None = None
        self._words = EventBudget()
        self._now: Moment | None = None
        self.failed: Callable[[str, Exception], None] = _log_failure
        """Called with each job that could not be recorded."""

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        """Write what one event changes in one transaction."""
        self._now = now
        with self._store.turn(now):
            yield
            if self._moved and (self._saved_at is None or now.seconds_since(self._saved_at) >= SAVE_EVERY_S):
                self._save_moved()
                self._saved_at = now

    @property
    def unsettled_turn(self) -> int | None:
        """The number of the last turn while its rows are on their way to the file; None where none are."""
        return self._store.unsettled_turn

    def is_settled(self, turn: int, now: Moment) -> bool:
        """Whether the rows of a turn are in the file, or cannot be written at present."""
        return self._store.is_settled(turn, now)

    def event(self, event: ev.Event, job_state: JobState | None) -> None:
        """Keep an event."""
        match event:
            case ev.StepsMade():
                self._store.add_steps(event)
            case ev.GpusRead():
                self._store.add_gpu_samples(event.readings)
            case ev.HostRead():
                self._store.add_host_sample(event.reading)
            case ev.ProcessesRead():
                self._store.add_process_sample(event.job, event.attempt, event.reading)
            case ev.AlertTried():
                self._announcer.tried(event)
            case ev.AgentReported():
                self._record_agent_report(event, job_state)
            case _:
                self._record_rare_event(event)

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        """Record a decision with what it changed, and queue its alerts."""
        self._store.record_decision(decision)
        flag = _flag_raised_by(before, decision)
        if flag is not None:
            self._store.record_flag(after.name, after.number, flag)
        if isinstance(decision, de.Launch):
            self._store.open_attempt(decision, str(self._folder(decision.job, decision.attempt)))
        self._save_changes(before, after)
        self._announcer.decision(before, after, decision)

    def job(self, before: Job, after: Job, event: ev.Event) -> None:
        """Record how an event changed a job."""
        worth_keeping = before.incident != after.incident or before.course != after.course
        if isinstance(event, ev.StepsMade) and before.phase is after.phase and not worth_keeping:
            self._moved[after.name] = after
            return
        self._save_changes(before, after)
        self._announcer.job(before, after, event.at)

    def learned(self, job: str, setting: str) -> Learned:
        """Return what was learned of a set-up; None where it cannot be read."""
        kept = self._store.note(f"{LEARNED} {job}: {setting}")
        try:
            return Learned.of_plain(msgspec.json.decode(kept or "{}"))
        except msgspec.DecodeError:
            return Learned()

    def keep_learned(self, job: str, setting: str, learned: Learned) -> None:
        """Record what is known of a set-up so far."""
        self._store.set_note(f"{LEARNED} {job}: {setting}", encode_json(learned.plain()).decode())

    def _save_changes(self, before: Job, after: Job) -> None:
        self._moved[after.name] = after
        self._save_moved()
        known = before.course.trials
        for trial in after.course.trials if after.course.trials is not known else ():
            if trial not in known:
                self._store.save_trial(after.name, trial)
        earlier = before.incident
        if earlier is not None and not earlier.closed and after.incident and after.incident.id != earlier.id:
            attempt = after.attempt
            self._store.save_incident(
                earlier.overtaken()
                if attempt is None
                else earlier.closed_by(after.incident.flag, attempt.launched_at, attempt.exit)
            )
        if after.incident is not None and after.incident != before.incident:
            self._store.save_incident(after.incident)
        ended = after.attempt is not None and after.attempt.over
        if ended and after.attempt is not None and not (before.attempt is not None and before.attempt.over):
            self._store.close_attempt(after.name, after.attempt, self._end_of(after))

    @staticmethod
    def _end_of(job: Job) -> Moment:
        attempt = job.attempt
        if attempt is not None and attempt.exit is not None:
            return attempt.exit.at
        return attempt.last_step_at if attempt is not None and attempt.last_step_at is not None else job.since

    def _save_moved(self) -> None:
        moved, self._moved = self._moved, {}
        for job in moved.values():
            try:
                self._store.save_job(job)
            except Exception as error:  # a fence: the other jobs are kept
                self.failed(job.name, error)

    def _record_rare_event(self, event: ev.Event) -> None:
        match event:
            case ev.CheckpointSeen():
                self._store.save_checkpoint(event.job, event.attempt, event.checkpoint, event.at)
            case ev.OutputSeen():
                self._store.save_offsets(event.job, event.attempt, output_bytes=event.offset)
            case ev.KernelReported():
                self._save_kernel_position(event)
            case _:
                pass
        self._record_within_budget(event)

    def _record_within_budget(self, event: ev.Event) -> None:
        """Record an event unless its job's budget is used up; the read position is recorded in any case."""
        worth_keeping = not isinstance(event, ev.OutputSeen) or bool(event.findings)
        if worth_keeping and self._words.take(event, self._now or event.at):
            self._store.record_event(event)

    def _save_kernel_position(self, event: ev.KernelReported) -> None:
        """Keep the position in the kernel log; a position in one log is not valid in another."""
        if event.sequence is None and event.cursor is None:
            return
        self._store.set_note(KERNEL_SEQUENCE, "" if event.sequence is None else str(event.sequence))
        self._store.set_note(KERNEL_CURSOR, event.cursor or "")
        self._store.set_note(KERNEL_BOOT, self._boot_id)

    def _record_agent_report(self, event: ev.AgentReported, job_state: JobState | None) -> None:
        # A new daemon reads the agent log from the start, to know the plan; recorded events are not recorded twice.
        if job_state is not None and event.offset <= job_state.agent_offset:
            return
        self._record_within_budget(event)
        self._store.save_offsets(event.job, event.attempt, agent_log_bytes=event.offset)


def _log_failure(job: str, error: Exception) -> None:
    log.error("record.job_not_kept", extra={"fields": {"job": job}}, exc_info=error)


def _flag_raised_by(before: Job, decision: de.Decision) -> RedFlag | None:
    """Return the flag to record with a decision; the flag that stopped an attempt is not recorded again at its end."""
    if isinstance(decision, de.Warn | de.Continue | de.Stop):
        return decision.flag
    if isinstance(decision, de.Retry) and decision.refused_environment is not None:
        return None  # decided again: it was recorded with the first decision
    stopped = before.stop is not None and before.stop.flag is not None
    if isinstance(decision, de.StartTriage | de.Retry | de.GiveUp) and not stopped and not before.awaits_triage:
        return decision.flag
    return None
