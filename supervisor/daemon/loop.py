"""The deciding loop: each event is recorded, applied and judged, the decision is recorded, and only then carried out.

No turn waits for the disk: what it decided is held until its rows are in the file (`held_acts.py`).

Its thread alone reads and changes jobs and histories; questions from other threads come in through the inbox. `core`
decides, `Executor` acts. Each stage of a job has a fence: an error marks that job and does not affect the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Protocol

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.apply_event import after_event, after_first_losses, after_flags, after_silent_start
from supervisor.core.checkpoints.loss_curve import FIRST_LOSSES
from supervisor.core.decide import decide
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.judge import can_wait
from supervisor.core.moments import Moment
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.stats.learned_limits import Learned, setting_of
from supervisor.daemon.clock import Clock
from supervisor.daemon.fence import SEARCH, Fences, describe_error
from supervisor.daemon.held_acts import Act, HeldActs
from supervisor.daemon.inbox import Inbox, Inquiry
from supervisor.daemon.job_state import JobState, begin_history
from supervisor.runner.launcher import shortage_of
from supervisor.store.encode import kind_of

log = logging.getLogger(__name__)

TICK_S = 0.25
"""Longest delay after which an expired limit is found."""
ENTRIES_PER_TURN = 1000
"""Entries of the inbox that one turn takes, at most. The readers stop reading a job's files before it has that many."""
DECISIONS_PER_TURN = 20
KEEP_LEARNED_S = 60.0
RECORD = "record"
"""The name of the part that writes what was decided."""
SEARCH_AGAIN_S = 10.0
"""Delay after a search for a resume point failed with an unexpected error."""


class NotRecordedError(Exception):
    """A decision was carried out that is not in the record yet."""


class Record(Protocol):
    """Where the loop writes what happened, before anything is done about it."""

    def event(self, event: ev.Event, job_state: JobState | None) -> None:
        """Record an event."""
        ...

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        """Record a decision with what it changed, and queue its alerts."""
        ...

    def job(self, before: Job, after: Job, event: ev.Event) -> None:
        """Record how an event changed a job, and queue the alerts of it."""
        ...

    def learned(self, job: str, setting: str) -> Learned:
        """Return what was learned of a set-up of a job by earlier attempts."""
        ...

    def keep_learned(self, job: str, setting: str, learned: Learned) -> None:
        """Record what is known of a set-up by now."""
        ...

    def turn(self, now: Moment) -> AbstractContextManager[None]:
        """Have what is recorded within written as one at its end; a record that cannot be written raises nothing."""
        ...

    @property
    def unsettled_turn(self) -> int | None:
        """The number of the last turn while its rows are on their way to the file; None where none are."""
        ...

    def is_settled(self, turn: int, now: Moment) -> bool:
        """Whether the rows of a turn are in the file, or cannot be written at present."""
        ...


class Executor(Protocol):
    """What carries decisions out; each call returns at once and answers with an event."""

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        """Carry out a decision."""
        ...

    def search(self, job: Job, history: History | None) -> None:
        """Look for the resume point of a job in backoff; answered by ResumePointFound, or SupervisionChanged."""
        ...

    def noticed(self, event: ev.Event, job: Job) -> None:
        """Take in an event, for work that needs no decision (a saved checkpoint is proven)."""
        ...


class Loop:
    """The deciding thread's work; `run` returns once `finished` is true."""

    def __init__(self, clock: Clock, inbox: Inbox, record: Record, executor: Executor) -> None:
        self._clock = clock
        self._inbox = inbox
        self._record = record
        self._executor = executor
        self.fences = Fences(clock, record)
        self._unrecorded: list[tuple[JobState, int]] = []
        """The launches that were made before their turn was in the file."""
        self.acts = HeldActs(record, self._carry_out)
        self.job_states: dict[str, JobState] = {}
        self.may_launch: Callable[[JobState], bool] = lambda _: True
        self.find_remedy_context: Callable[[JobState, Moment], RemedyContext] = lambda _state, _now: RemedyContext()
        self.each_turn: list[Callable[[ev.Event, Moment], None]] = []
        self.absences: Callable[[], Iterable[ev.DaemonAway]] = lambda: ()
        """When the daemon did not run, as far as that was not asked before."""
        self._clock_seen_at: Moment | None = None

    def run(self, finished: Callable[[], bool]) -> None:
        """Turn until `finished`."""
        self._catch_up()
        ticked_at = self._clock.now()
        self.turn(ev.Tick(at=ticked_at))
        while not finished():
            self._take_turn(self._inbox.get(TICK_S - self._clock.now().seconds_since(ticked_at)))
            # By the clock, not when the inbox is empty: a client that keeps asking must not hold up a deadline.
            if self._clock.now().seconds_since(ticked_at) >= TICK_S:
                ticked_at = self._take_turn(self._inbox.get(0.0), ticking=True)

    def _take_turn(self, entry: ev.Event | Inquiry | None, *, ticking: bool = False, deciding: bool = True) -> Moment:
        """Process an entry and those queued behind it in one turn, and return its time.

        While a turn takes long, more is queued than one event. A tick judges after all that was put before it: steps
        that wait in the inbox are no silence.
        """
        events: list[ev.Event] = []
        questions: list[Inquiry] = []
        while entry is not None:
            if isinstance(entry, Inquiry):
                questions.append(entry)
            else:
                events.append(entry)
            full = len(events) + len(questions) >= ENTRIES_PER_TURN
            entry = self._inbox.get(0.0) if not full and (ticking or self._inbox.queued) else None
        now = self._clock.now()
        self.turn(*events, *([ev.Tick(at=now)] if ticking else []), deciding=deciding)
        for question in questions:
            self._answer_inquiry(question)
        return now

    def _catch_up(self) -> None:
        """Apply what happened while no daemon ran, before anything is decided.

        A training that made steps or ended meanwhile has not stalled.
        """
        known: list[bool] = []
        self._inbox.later(lambda: known.append(True))
        while not known:
            self._take_turn(self._inbox.get(TICK_S), deciding=False)

    def turn(self, *events: ev.Event, deciding: bool = True) -> None:
        """Process events: record, apply, judge, decide, record the decisions, commit once, act once that is done."""
        if not events:
            return
        now = self._clock.now()
        for away in self.absences():
            # Applied before anything is judged at `now`: the time of the absence counts as no silence.
            self._process_events((away,), now, deciding=False)
        self._process_events(events, now, deciding=deciding)

    def _process_events(self, events: Sequence[ev.Event], now: Moment, *, deciding: bool) -> None:
        self._check_clock(now)
        acts: list[tuple[de.Decision, JobState]] = []
        begun, turn = False, None
        try:
            with self._record.turn(now):
                begun = True
                for event in events:
                    acts.extend(self._apply_and_decide(event, now, deciding=deciding))
            turn = self._record.unsettled_turn
        except Exception as error:  # the record itself: trainings are supervised without it
            self.fences.note_failure("record", error)
            for event in () if begun else events:
                acts.extend(self._apply_and_decide(event, now, deciding=deciding))
        self.acts.take(acts, turn, now)
        self.act_on_recorded()
        for event in events:
            for job_state in self._list_concerned(event):
                self._show_executor(event, job_state)
                self._request_search(job_state, now)
        for event in events:
            self._run_each_turn(event, now)

    def act_on_recorded(self) -> None:
        """Carry out the decisions that are recorded by now."""
        now = self._clock.now()
        try:
            self.acts.release(now)
            for job_state, turn in tuple(self._unrecorded):
                if self._record.is_settled(turn, now):
                    self._unrecorded.remove((job_state, turn))
                    self.fences.recovered(job_state, RECORD)
        except Exception as error:
            self.fences.note_failure(RECORD, error)

    def _note_unrecorded(self, act: Act, launch: de.Launch) -> None:
        """Say that a training was launched which the record does not know yet."""
        if act.recorded or act.turn is None:
            return
        waited_s = self._clock.now().seconds_since(act.since)
        why = f"attempt {launch.attempt} was launched {waited_s:.0f} s before its decision is recorded: see the disk"
        self.fences.failed(act.state, RECORD, NotRecordedError(why))
        self._unrecorded.append((act.state, act.turn))

    def _run_each_turn(self, event: ev.Event, now: Moment) -> None:
        for work in self.each_turn:
            try:
                work(event, now)
            except Exception as error:
                self.fences.note_failure(getattr(work, "__qualname__", "after each turn"), error)

    def _apply_and_decide(self, event: ev.Event, now: Moment, *, deciding: bool) -> list[tuple[de.Decision, JobState]]:
        """Record and apply an event, and return what is decided because of it. Raises nothing."""
        acts: list[tuple[de.Decision, JobState]] = []
        self._record_event(event)
        for job_state in self._list_concerned(event):
            self._apply_event(job_state, event)
            if deciding and not can_wait(event):
                acts.extend((decision, job_state) for decision in self._decide_with_fallback(job_state, now))
        return acts

    def _record_event(self, event: ev.Event) -> None:
        job_state = self._find_job(event)
        if job_state is not None and self.fences.passes(job_state, "record", event):
            return
        try:
            self._record.event(event, job_state)
        except Exception as error:
            if job_state is not None:
                self.fences.failed(job_state, "record", error, event)
            else:
                self.fences.note_failure(f"record of {type(event).__name__}", error)

    def _carry_out(self, act: Act) -> None:
        decision, name = act.decision, type(act.decision).__name__.lower()
        if isinstance(decision, de.Launch):
            self._note_unrecorded(act, decision)
        try:
            self._executor.act(decision, act.job, act.history)
        except Exception as error:
            self.fences.failed(act.state, name, error)
            if act.repeatable and shortage_of(error) is not None:
                self.acts.take_back(act)  # no room for a thread at present: the training still has to be stopped
            if isinstance(decision, de.Launch):
                failed = ev.LaunchFailed(
                    at=self._clock.now(),
                    job=decision.job,
                    attempt=decision.attempt,
                    error=describe_error(error),
                    shortage=shortage_of(error),
                )
                self._inbox.put(failed)
        else:
            if act.retried:
                self.fences.recovered(act.state, name)

    def _show_executor(self, event: ev.Event, job_state: JobState) -> None:
        if self.fences.passes(job_state, "checkpoints", event):
            return
        try:
            self._executor.noticed(event, job_state.job)
        except Exception as error:
            self.fences.failed(job_state, "checkpoints", error, event)

    def _find_job(self, event: ev.Event) -> JobState | None:
        name = getattr(event, "job", None)
        return self.job_states.get(name) if isinstance(name, str) else None

    def _list_concerned(self, event: ev.Event) -> Iterable[JobState]:
        job_state = self._find_job(event)
        if hasattr(event, "job"):
            return [job_state] if job_state is not None else []
        return list(self.job_states.values())

    def _apply_event(self, job_state: JobState, event: ev.Event) -> None:
        before, belongs = job_state.job, job_state.history is not None and _is_about_attempt(event, job_state.job)
        if isinstance(event, ev.SupervisionChanged):
            self.fences.mark(job_state, event)
            if event.place == SEARCH and not event.recovered:
                self._search_later(job_state)
        self._apply_to_job(job_state, event)
        if belongs and job_state.history is not None:
            self._apply_to_history(job_state, job_state.history, event)
        if isinstance(event, ev.ResumePointFound):
            job_state.searching = False
        if isinstance(event, ev.AgentReported):
            job_state.agent_offset = max(job_state.agent_offset, event.offset)
        if job_state.job != before:
            try:
                self._record.job(before, job_state.job, event)
            except Exception as error:
                self.fences.failed(job_state, "record", error)

    def _apply_to_job(self, job_state: JobState, event: ev.Event) -> None:
        if self.fences.passes(job_state, "job", event):
            return
        try:
            job_state.job = after_event(job_state.job, event)
        except Exception as error:
            self.fences.failed(job_state, "job", error, event)
            if isinstance(event, ev.Exited):
                # Whatever its exit record holds, the attempt is over.
                reason = f"its exit record could not be processed: {describe_error(error)}"
                lost = ev.HostLost(at=event.at, job=event.job, attempt=event.attempt, reason=reason)
                job_state.job = after_event(job_state.job, lost)

    def _apply_to_history(self, job_state: JobState, history: History, event: ev.Event) -> None:
        if not self.fences.passes(job_state, "history", event):
            try:
                history.add(event)
                _pass_on_scale(job_state, history, event)
                if isinstance(event, ev.ProcessesRead) and not history.hooked:
                    lived_s = history.output_known_s(history.launched_at)
                    job_state.job = after_silent_start(job_state.job, event.at, lived_s)
            except Exception as error:
                self.fences.failed(job_state, "history", error, event)
                history.add_barely(event)
        if self.fences.passes(job_state, "learned limits", event):
            return
        try:
            self._update_learned_limits(job_state, history, event)
        except Exception as error:
            self.fences.failed(job_state, "learned limits", error, event)

    def _update_learned_limits(self, job_state: JobState, history: History, event: ev.Event) -> None:
        """Load the limits learned by earlier attempts once the set-up is known, and save what this attempt adds."""
        if isinstance(event, ev.AgentReported) and event.agent_event is ev.AgentEvent.PLAN:
            gfx_version = next(
                (readings[-1].gfx_version for readings in history.readings_by_gpu().values() if readings), None
            )
            if job_state.setting is not None:
                self._record.keep_learned(job_state.job.name, job_state.setting, history.learned)
            job_state.setting = setting_of(event.facts, gfx_version)
            history.learned = self._record.learned(job_state.job.name, job_state.setting)
            job_state.learned_kept_at = event.at
        if job_state.setting is None or job_state.learned_kept_at is None:
            return
        ended = isinstance(event, ev.Exited | ev.HostLost)
        if ended or event.at.seconds_since(job_state.learned_kept_at) >= KEEP_LEARNED_S:
            self._record.keep_learned(job_state.job.name, job_state.setting, history.learned)
            job_state.learned_kept_at = None if ended else event.at

    def _decide_with_fallback(self, job_state: JobState, now: Moment) -> list[de.Decision]:
        """Return what is decided about one job; where that fails, what is decided without flags and remedies.

        A user's request, an expired deadline and the end of the process need neither.
        """
        decided: list[de.Decision] = []
        for barely in (False, True):
            try:
                decided.extend(self._decide_until_settled(job_state, now, barely=barely))
                break
            except Exception as error:
                self.fences.failed(job_state, "deciding without flags" if barely else "deciding", error)
        return decided

    def _decide_until_settled(self, job_state: JobState, now: Moment, *, barely: bool) -> Iterable[de.Decision]:
        for _ in range(DECISIONS_PER_TURN):
            flags = () if barely else self._check_rules(job_state, now)
            job_state.job = after_flags(job_state.job, flags)
            context = RemedyContext() if barely else self._read_remedy_context(job_state, now)
            decision = decide(job_state.job, flags, now, launch_allowed=self.may_launch(job_state), context=context)
            if decision is None:
                return
            before = job_state.job
            job_state.job = after_decision(before, decision)
            if isinstance(decision, de.Launch):
                job_state.history = begin_history(job_state, now, now)
                job_state.agent_offset = 0
                job_state.setting = None
                job_state.forget_failures()
            try:
                self._record.decision(before, job_state.job, decision)
            except Exception as error:
                self.fences.failed(job_state, "record", error)
            _log_decision(decision)
            yield decision
        log.error("loop.too_many_decisions", extra={"fields": {"job": job_state.job.name}})

    def _check_rules(self, job_state: JobState, now: Moment) -> tuple[RedFlag, ...]:
        history = job_state.history if job_state.job.phase in ALIVE else None
        if history is None:
            return ()
        if now.monotonic_s > history.now.monotonic_s:
            history.now = now
        flags = self.fences.judged(job_state, history)
        history.flagged = any(flag.severity is Severity.CRITICAL for flag in flags)
        return flags

    def _read_remedy_context(self, job_state: JobState, now: Moment) -> RemedyContext:
        try:
            return self.find_remedy_context(job_state, now)
        except Exception as error:
            self.fences.failed(job_state, "remedies", error)
            return RemedyContext()

    def _request_search(self, job_state: JobState, now: Moment) -> None:
        plan, not_before = job_state.job.retry, job_state.search_not_before
        if not_before is not None and now.seconds_since(not_before) < 0:
            return
        if job_state.job.phase is Phase.BACKOFF and plan and plan.resume_point is None and not job_state.searching:
            job_state.searching = True
            # After what is already in the inbox: it may hold the report of the last checkpoint.
            self._inbox.later(lambda: self._begin_search(job_state))

    def _begin_search(self, job_state: JobState) -> None:
        job_state.searching = False
        plan = job_state.job.retry
        if job_state.job.phase is Phase.BACKOFF and plan and plan.resume_point is None:
            try:
                self._executor.search(job_state.job, job_state.history)
                job_state.searching = True
            except Exception as error:
                self._search_later(job_state)
                self.fences.failed(job_state, SEARCH, error)

    def _search_later(self, job_state: JobState) -> None:
        """Repeat a failed search after a delay: an unknown result must not start the training from the beginning."""
        job_state.searching = False
        job_state.search_not_before = self._clock.now().plus(SEARCH_AGAIN_S)

    def job_not_kept(self, job: str, error: Exception) -> None:
        """Mark a job whose state could not be written to the record."""
        if (job_state := self.job_states.get(job)) is not None:
            self.fences.failed(job_state, "record", error)

    def _check_clock(self, now: Moment) -> None:
        by_s = 0.0 if self._clock_seen_at is None else now.clock_set_since(self._clock_seen_at)
        if by_s:
            self._inbox.put(ev.ClockStepped(at=now, by_s=by_s))
        self._clock_seen_at = now

    @staticmethod
    def _answer_inquiry(inquiry: Inquiry) -> None:
        if not inquiry.answer.set_running_or_notify_cancel():
            return
        try:
            inquiry.answer.set_result(inquiry.question())
        except Exception as error:
            inquiry.answer.set_exception(error)


def _pass_on_scale(job_state: JobState, history: History, event: ev.Event) -> None:
    """Set the scale of the history's steps, and show the job its first losses."""
    new = len(event.records) if isinstance(event, ev.StepsMade) and event.rank == 0 else 0
    if new and len(history.steps) >= FIRST_LOSSES > len(history.steps) - new:
        first = islice(history.steps, FIRST_LOSSES)
        job_state.job = after_first_losses(job_state.job, [record.loss for record in first])
    attempt = job_state.job.attempt
    if attempt is not None:
        history.measured = attempt.order is not None
        history.scale, history.first_step, history.resumed = attempt.scale, attempt.first_step, attempt.resumed


def _is_about_attempt(event: ev.Event, job: Job) -> bool:
    """Whether an event is about the job's present attempt or about the machine."""
    attempt = getattr(event, "attempt", None)
    return attempt is None or (job.attempt is not None and attempt == job.attempt.number)


def _log_decision(decision: de.Decision) -> None:
    reason = decision.flag.message if isinstance(decision, de.Warn | de.Note) else decision.reason
    good = isinstance(decision, de.Warn) and decision.flag.severity is Severity.INFO
    level = logging.INFO if good or isinstance(decision, de.Launch | de.Finish | de.Note) else logging.WARNING
    fields = {"job": decision.job, "attempt": decision.attempt, "reason": reason}
    log.log(level, "decision.%s", kind_of(decision), extra={"fields": fields})
