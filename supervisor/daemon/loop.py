"""The deciding loop: one event in, the record, the verdict, the decision, and only then the act.

It owns every job and history; no other thread reads or changes them, questions come in through the inbox. It reads
no file, sends no signal and decides nothing itself: `core` decides, `Hands` act.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.choosing import Ground
from supervisor.core.decide import decide
from supervisor.core.expectations import Expectation
from supervisor.core.flags import Severity
from supervisor.core.follow import after_decision, after_event, after_flags
from supervisor.core.history import History
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.judging import judge
from supervisor.core.limits import Learned, setting_of
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.core.rules import Rule
from supervisor.core.urgent import can_wait
from supervisor.daemon.attempt_watch import Clock
from supervisor.daemon.inbox import Inbox, Inquiry

log = logging.getLogger(__name__)

TICK_S = 0.25
"""A limit that ran out is seen this much later at most."""
DECISIONS_PER_TURN = 20
CLOCK_STEP_S = 1.0
KEEP_LEARNED_S = 60.0


@dataclass(slots=True, kw_only=True)
class Dossier:
    """All that the loop holds about one job."""

    job: Job
    rules: tuple[Rule, ...]
    history: History | None = None
    gpus_used: tuple[str, ...] = ()
    expected: Expectation = field(default_factory=Expectation)
    agent_offset: int = 0
    """How far the agent's words are in the record already."""
    setting: str | None = None
    """The set-up whose limits are learned; None before the training told its plan."""
    learned_kept_at: Moment | None = None
    searching: bool = False
    standby: str | None = None
    """How far an interpreter is that stands by for the next attempt: "importing" or "ready"."""


class Record(Protocol):
    """Where the loop writes what happened, before anything is done about it."""

    def event(self, event: ev.Event, dossier: Dossier | None) -> None:
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
        """Make lasting as one, at its end, what is recorded within; a record that cannot be written raises nothing."""
        ...


class Hands(Protocol):
    """What carries decisions out; each call returns at once and answers with an event."""

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        """Carry out a decision."""
        ...

    def search(self, job: Job, history: History | None) -> bool:
        """Look for the resume point of a job in backoff, answered by ResumePointFound; False: ask again later."""
        ...

    def noticed(self, event: ev.Event, job: Job) -> None:
        """Be shown an event, for what follows from it without any decision (a saved checkpoint is proven)."""
        ...


class Loop:
    """The deciding thread's work; `run` returns once `finished` says so."""

    def __init__(self, clock: Clock, inbox: Inbox, record: Record, hands: Hands) -> None:
        self._clock = clock
        self._inbox = inbox
        self._record = record
        self._hands = hands
        self.dossiers: dict[str, Dossier] = {}
        self.turned_at: Moment = clock.now()
        self.may_launch: Callable[[], bool] = lambda: True
        self.ground: Callable[[Dossier, Moment], Ground] = lambda _dossier, _now: Ground()
        self.each_turn: list[Callable[[ev.Event, Moment], None]] = []
        self._offset_s: float | None = None

    def run(self, finished: Callable[[], bool]) -> None:
        """Turn until `finished`."""
        self._catch_up()
        ticked_at = self._clock.now()
        self.turn(ev.Tick(at=ticked_at))
        while not finished():
            entry = self._inbox.get(TICK_S - self._clock.now().seconds_since(ticked_at))
            if isinstance(entry, Inquiry):
                self._answer(entry)
            elif entry is not None:
                self.turn(entry)
            # By the clock, not by the inbox's silence: somebody who keeps asking must not hold up a deadline.
            if (now := self._clock.now()).seconds_since(ticked_at) >= TICK_S:
                ticked_at = now
                self.turn(ev.Tick(at=now))

    def _catch_up(self) -> None:
        """Take in what happened while there was no daemon, and decide nothing before all of it is known.

        A training that went on meanwhile has not stalled, and one that came to its end neither.
        """
        known: list[bool] = []
        self._inbox.later(lambda: known.append(True))
        while not known:
            entry = self._inbox.get(TICK_S)
            if isinstance(entry, Inquiry):
                self._answer(entry)
            elif entry is not None:
                self.turn(entry, deciding=False)

    def turn(self, event: ev.Event, *, deciding: bool = True) -> None:
        """Take one event through the whole direction: record, apply, judge, decide, record, act."""
        now = self._clock.now()
        self._check_clock(now)
        acts: list[tuple[de.Decision, Dossier]] = []
        with self._record.turn(now):
            self._record.event(event, self._of(event))
            for dossier in self._concerned(event):
                self._apply(dossier, event)
                if deciding and not can_wait(event):
                    acts.extend((decision, dossier) for decision in self._decide(dossier, now))
        for decision, dossier in acts:
            self._hands.act(decision, dossier.job, dossier.history)
        for dossier in self._concerned(event):
            self._hands.noticed(event, dossier.job)
            self._search(dossier)
        self.turned_at = now
        for work in self.each_turn:
            work(event, now)

    def _of(self, event: ev.Event) -> Dossier | None:
        name = getattr(event, "job", None)
        return self.dossiers.get(name) if isinstance(name, str) else None

    def _concerned(self, event: ev.Event) -> Iterable[Dossier]:
        one = self._of(event)
        if hasattr(event, "job"):
            return [one] if one is not None else []
        return list(self.dossiers.values())

    def _apply(self, dossier: Dossier, event: ev.Event) -> None:
        before = dossier.job
        dossier.job = after_event(before, event)
        if dossier.history is not None and _belongs(event, before):
            dossier.history.add(event)
            self._learn(dossier, dossier.history, event)
        if isinstance(event, ev.ResumePointFound):
            dossier.searching = False
        if isinstance(event, ev.AgentSaid):
            dossier.agent_offset = max(dossier.agent_offset, event.offset)
        if dossier.job != before:
            self._record.job(before, dossier.job, event)

    def _learn(self, dossier: Dossier, history: History, event: ev.Event) -> None:
        """Take up what earlier attempts learned once the set-up is known, and keep what this one adds to it."""
        if isinstance(event, ev.AgentSaid) and event.word is ev.Word.PLAN:
            card = next((one[-1].gfx_version for one in history.readings_by_gpu().values() if one), None)
            if dossier.setting is not None:
                self._record.keep_learned(dossier.job.name, dossier.setting, history.learned)
            dossier.setting = setting_of(event.facts, card)
            history.learned = self._record.learned(dossier.job.name, dossier.setting)
            dossier.learned_kept_at = event.at
        if dossier.setting is None or dossier.learned_kept_at is None:
            return
        ended = isinstance(event, ev.Exited | ev.HostLost)
        if ended or event.at.seconds_since(dossier.learned_kept_at) >= KEEP_LEARNED_S:
            self._record.keep_learned(dossier.job.name, dossier.setting, history.learned)
            dossier.learned_kept_at = None if ended else event.at

    def _decide(self, dossier: Dossier, now: Moment) -> Iterable[de.Decision]:
        for _ in range(DECISIONS_PER_TURN):
            history = dossier.history if dossier.job.phase in ALIVE else None
            if history is not None and now.monotonic_s > history.now.monotonic_s:
                history.now = now
            flags = judge(dossier.rules, history) if history is not None else ()
            if history is not None:
                history.troubled = any(flag.severity is Severity.CRITICAL for flag in flags)
            dossier.job = after_flags(dossier.job, flags)
            ground = self.ground(dossier, now)
            decision = decide(dossier.job, flags, now, launch_allowed=self.may_launch(), ground=ground)
            if decision is None:
                return
            before = dossier.job
            dossier.job = after_decision(before, decision)
            if isinstance(decision, de.Launch):
                dossier.history = _window(dossier, now, now)
                dossier.agent_offset = 0
                dossier.setting = None
            self._record.decision(before, dossier.job, decision)
            _tell(decision)
            yield decision
        log.error("loop.too_many_decisions", extra={"fields": {"job": dossier.job.name}})

    def _search(self, dossier: Dossier) -> None:
        plan = dossier.job.retry
        if dossier.job.phase is Phase.BACKOFF and plan and plan.resume_point is None and not dossier.searching:
            dossier.searching = True
            # After what is in the inbox by now: the word about the last checkpoint may still be among it.
            self._inbox.later(lambda: self._begin_search(dossier))

    def _begin_search(self, dossier: Dossier) -> None:
        dossier.searching = False
        plan = dossier.job.retry
        if dossier.job.phase is Phase.BACKOFF and plan and plan.resume_point is None:
            dossier.searching = self._hands.search(dossier.job, dossier.history)

    def _check_clock(self, now: Moment) -> None:
        offset_s = now.unix_s - now.monotonic_s
        if self._offset_s is not None and abs(offset_s - self._offset_s) > CLOCK_STEP_S:
            self._inbox.put(ev.ClockStepped(at=now, by_s=offset_s - self._offset_s))
        self._offset_s = offset_s

    @staticmethod
    def _answer(inquiry: Inquiry) -> None:
        if not inquiry.answer.set_running_or_notify_cancel():
            return
        try:
            inquiry.answer.set_result(inquiry.question())
        except Exception as error:  # noqa: BLE001 - the error belongs to whoever asked
            inquiry.answer.set_exception(error)


def _belongs(event: ev.Event, job: Job) -> bool:
    """Whether an event is about the job's present attempt or about the machine."""
    attempt = getattr(event, "attempt", None)
    return attempt is None or (job.attempt is not None and attempt == job.attempt.number)


def _tell(decision: de.Decision) -> None:
    name = type(decision).__name__.lower()
    reason = decision.flag.message if isinstance(decision, de.Warn | de.Note) else decision.reason
    good = isinstance(decision, de.Warn) and decision.flag.severity is Severity.INFO
    level = logging.INFO if good or isinstance(decision, de.Launch | de.Finish | de.Note) else logging.WARNING
    fields = {"job": decision.job, "attempt": decision.attempt, "reason": reason}
    log.log(level, "decision.%s", name, extra={"fields": fields})


def _window(dossier: Dossier, now: Moment, launched_at: Moment) -> History:
    """Return an empty history of an attempt, on the card that a remedy moved it to or on none."""
    job = dossier.job
    gpus_used = dossier.gpus_used if job.card is None else (job.card,)
    device = "cpu" if job.on_cpu else None
    resumed = job.attempt.resumed if job.attempt else None
    return History(now=now, launched_at=launched_at, gpus_used=gpus_used, device=device, resumed=resumed)


def seeded(dossier: Dossier, records: Iterable[StepRecord], now: Moment) -> None:
    """Give a re-adopted attempt the history that the daemon before this one had."""
    job = dossier.job
    if job.attempt is None:
        return
    history = _window(dossier, now, job.attempt.launched_at)
    past = tuple(records)
    if past:
        history.add(ev.StepsMade(at=now, job=job.name, attempt=job.attempt.number, records=past))
    history.first_step_at = job.attempt.first_step_at or history.first_step_at
    history.last_step_at = job.attempt.last_step_at or history.last_step_at
    # What was made while no daemon was there is not read yet: until then its absence says nothing.
    history.looked_at = history.last_step_at or job.attempt.launched_at
    dossier.history = history
