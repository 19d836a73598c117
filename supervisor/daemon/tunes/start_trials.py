"""Tries what only a start can apply: has a training restarted from one snapshot, with it and without, and measured.

Nothing here launches or ends anything: each start is asked of the deciding thread, which lends what is on trial to one
attempt alone. However this thread ends, the last thing that it asks is that nothing is lent any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.children.running_limit import RunningLimit
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict, of_this_training
from supervisor.core.job import ALIVE, ENDED, Attempt, DesiredState, Job, Phase
from supervisor.core.judge import HELD_WHILE_TUNING
from supervisor.core.readings import StepRecord
from supervisor.core.sanitize import without_secrets
from supervisor.core.stats.median import median
from supervisor.core.tuning import compare
from supervisor.core.tuning.batch import BATCH, Batches, plan_batch
from supervisor.core.tuning.guards import Memory
from supervisor.core.tuning.knob import Facts, NotTried
from supervisor.core.tuning.restarts import ORDER, Measured, Restarts, StartArm, begin_restarts, start_of
from supervisor.core.tuning.start_order import StartOrder, TunedStart
from supervisor.core.tuning.starts import ENVIRONMENT, RESTART, Start, list_left_to_starts, list_start_arms
from supervisor.daemon.clock import Clock, begin_limit
from supervisor.daemon.tunes.blocks import HostMemory, find_span_s, read_host_memory, see_steps
from supervisor.runner import evidence
from supervisor.sources.attempt.agent_log import AgentLogReader
from supervisor.sources.attempt.recorder import RecorderReader

log = logging.getLogger(__name__)

POLL_S = 0.1
DROPPED_STEPS = 10
"""First steps of a start that are not counted: memory is allocated, and kernels are looked for."""
STEPS_MIN, STEPS_MAX = 20, 5000
SEEN_MAX = 4 * STEPS_MAX
"""Of so many steps at least a fourth follow one another, or the attempt is not measured: what it records is its own."""
MEASURED_S = 3.0
"""So many steps that take as long are measured of each start."""
START_LIMIT_S = 900.0
"""From the order to the last step measured, of the first start."""
TIMES_LONGER, LONGER_S = 3.0, 60.0
"""A start may take so many times as long as the one before it as it was, and this more; then it hangs."""
KEPT_LIMIT_S = 30.0
"""How long the copy of a snapshot may take."""
SHORTER = 0.8
"""A start may take as much less than the newest one: starts of one training took 10 to 16 s."""
OUTPUT_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDeps:
    """What the starts of a tune need from the daemon; each may be asked in the thread of a tune."""

    job: Callable[[str], Job | None]
    ask: Callable[[ev.StartAsked], None]
    command: Callable[[str], Sequence[str]]
    environments: Callable[[str], Sequence[str]]
    generations: Callable[[str], Iterable[Checkpoint]]
    """The kept generations of a job."""
    why_not: Callable[[str], str | None]
    """Returns why no start of a job can be ordered here."""

    def choose_arms(  # noqa: PLR0913, PLR0917 - what is known of a training, and what is permitted
        self, name: str, facts: Facts, start: Start, remedied: Sequence[str], may: Sequence[str], samples: int | None
    ) -> tuple[tuple[StartArm, ...], tuple[NotTried, ...]]:
        """Return what only a start can apply to a job and may be tried, its environments among it, and what may not.

        `samples` are those of one of its steps.
        """
        job = self.job(name)
        if job is None:
            return (), ()
        arms = list_start_arms(facts, start, remedied, self.environments(name), job.environment)
        left: tuple[NotTried, ...] = ()
        if RESTART not in may:
            why = f"takes a start: not without permission: --may {RESTART}"
            left = tuple(NotTried(knob=arm.knob, value=arm.value, why=why) for arm in arms if arm.knob == ENVIRONMENT)
            arms, left = (), (*list_left_to_starts(facts, start, remedied), *left)
        if BATCH not in may:
            return arms, (*left, NotTried(knob=BATCH, why=f"not without permission: --may {BATCH}"))
        batches = Batches(samples=samples, framework=job.framework, adjustable=job.adjustable)
        found = plan_batch(facts, batches, remedied)
        # Last: what is tried before it computes as the training does.
        return ((*arms, found), left) if isinstance(found, StartArm) else (arms, (*left, found))


class Over(Exception):  # noqa: N818 - how the starts end before their time
    """No further start is made; the text says why."""


class StartTrials:
    """The starts of one tune, in its thread."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it is of, and what it may
        self,
        clock: Clock,
        name: str,
        folder: Path,
        deps: StartDeps,
        ended: threading.Event,
        left_s: Callable[[], float],
        host_memory: Callable[[], HostMemory] = read_host_memory,
    ) -> None:
        """`folder` is the job's; `left_s` returns how much of the time given is left."""
        self._clock, self._name, self._folder, self._deps = clock, name, folder, deps
        self._ended, self._left_s, self._host_memory = ended, left_s, host_memory
        self._since_unix_s: float | None = None
        """When the first start was launched: all go on from what was saved before."""
        self._took_s: float | None = None
        """How long the newest start took, with what was measured of it."""
        self._number = 0
        """That of the newest attempt seen."""
        self.poll_s = POLL_S

    def find_reason_against(self) -> str | None:
        """Return why none can be made now; None: it can."""
        job = self._deps.job(self._name)
        why = self._deps.why_not(self._name)
        if why is not None or job is None:
            return why or "the job is gone"
        if job.course.open_trial is not None:
            return f"the remedy {job.course.open_trial.remedy} is still on trial"
        known = of_this_training(self._deps.generations(self._name), job.began_unix_s)
        if not any(item.kind == "snapshot" and item.verdict is Verdict.PROVEN for item in known):
            return "no proven snapshot of it is kept yet (snapshot_every_s)"
        return None

    def run(self, arms: Sequence[StartArm], memory: Memory, show: Callable[[Restarts], None]) -> Restarts:
        """Try arms until each is settled or the time is over, and return what came of it; `show` is told the course."""
        trial = begin_restarts(arms)
        job = self._deps.job(self._name)
        why = self.find_reason_against() if arms else None
        if why is not None or job is None or not arms:
            return trial.without_more(why or "the job is gone")
        self._number = job.number
        try:
            while trial.wanted is not None:
                show(trial)
                trial = self._make_start(trial, job.tuned, memory)
        except Over as error:
            trial = trial.without_more(str(error))
        finally:
            self._ask(ev.StartAsk.END)
        show(trial)
        return trial

    def _make_start(self, trial: Restarts, base: TunedStart | None, memory: Memory) -> Restarts:
        why = self._find_unaffordable(trial)
        if why is not None:
            return trial.without_more(why)
        start = start_of(trial.wanted or (), base, self._deps.command(self._name))
        order = StartOrder(
            start=start,
            is_lent=trial.is_arms_turn,
            saves=self._since_unix_s is None,
            since_unix_s=self._since_unix_s,
        )
        found = self._measure_start(order)
        if isinstance(found, str):
            if not trial.is_arms_turn:
                raise Over(f"a start as before could not be measured: {found}")
            log.warning("start.refused", extra={"fields": {"job": self._name, "why": found}})
            return trial.after_refusal(found)
        after = trial.after_start(found, memory)
        if len(after.adopted) > len(trial.adopted):
            kept = start_of(after.adopted_arms, base, self._deps.command(self._name))
            self._ask(ev.StartAsk.KEEP, StartOrder(start=kept))
        return after

    def _find_unaffordable(self, trial: Restarts) -> str | None:
        """Return why the starts that may prove an arm are not made; None: there is time for them.

        Fewer prove nothing, and cost the training as much each.
        """
        if self._ended.is_set():
            return "stopped"
        if self._took_s is None:
            return None
        wanted, left_s = max(len(ORDER) - trial.starts % len(ORDER), trial.starts_to_prove), self._left_s()
        if SHORTER * wanted * self._took_s <= left_s:
            return None
        starts = f"{wanted} more start{'s' if wanted > 1 else ''} of {self._took_s:.0f} s, which a proof takes"
        return f"{max(0.0, left_s):.0f} s of the time given are left, too little for {starts}"

    def _ask(self, ask: ev.StartAsk, order: StartOrder | None = None) -> None:
        # The job is not looked at: a deciding thread that is too busy to answer must still be asked that it all ends.
        now = self._clock.now()
        self._deps.ask(ev.StartAsked(at=now, job=self._name, attempt=self._number, ask=ask, order=order))

    # --- one start ------------------------------------------------------------------------------------------------

    def _measure_start(self, order: StartOrder) -> Measured | str:
        """Have the training started as ordered and return what it came to, or why it could not be started so."""
        began, before = self._clock.now(), self._await_running(START_LIMIT_S)
        limit_s = START_LIMIT_S if self._took_s is None else TIMES_LONGER * self._took_s + LONGER_S
        limit = begin_limit(self._clock, limit_s)
        self._ask(ev.StartAsk.TRY, order)
        while (job := self._look()).number <= before.number:
            self._check_limit(limit, "the start that was ordered was not made")
        attempt = job.attempt
        if attempt is None or attempt.order != order:
            return self._why_refused(job, before.number + 1)
        if self._since_unix_s is None:
            self._since_unix_s = attempt.launched_at.unix_s
            self._await_copy(attempt)
        found = self._measure_steps(attempt, order, limit_s)
        unset = () if order.start is None else self._list_unset(attempt.number, order.start)
        if order.is_lent and unset and not isinstance(found, str):
            return f"its agent has not reported that it set {', '.join(unset)}"
        if not isinstance(found, str):
            self._took_s = self._clock.now().seconds_since(began)
        return found

    def _list_unset(self, number: int, start: TunedStart) -> tuple[str, ...]:
        """Return the settings of the agent in an attempt's start that it has not reported as set."""
        log = AgentLogReader(self._folder / str(number), only=ev.AgentEvent.REMEDY_APPLIED)
        found = {fact.facts.get("setting") for fact in log.finish(self._clock.now())} if start.factors else set()
        return tuple(name for name, _factor in start.factors if name not in found)

    def _measure_steps(self, attempt: Attempt, order: StartOrder, limit_s: float) -> Measured | str:
        limit, steps = begin_limit(self._clock, limit_s), _Steps(self._folder / str(attempt.number))
        try:
            while not steps.are_enough:
                if limit.next_wait_s() == 0:
                    return f"{len(steps.times)} of its steps were measured within {limit_s:.0f} s"
                job = self._look()
                if job.number != attempt.number or job.attempt is None or job.attempt.order != order:
                    return self._why_refused(job, attempt.number)
                reached = sorted(rule for rule, *_ in job.shadows if rule in HELD_WHILE_TUNING)
                if reached:
                    return f"the rule {reached[0]} was reached"
                if steps.are_too_many:
                    return f"{len(steps.times)} of {SEEN_MAX} steps that it recorded follow one another"
                steps.read(self._clock)
            return steps.measured(self._host_memory().available_bytes)
        finally:
            steps.close()

    def _why_refused(self, job: Job, number: int) -> str:
        """Return why an attempt was not started as ordered, or ended before its first step; raise Over otherwise."""
        if job.start_refused is None:
            raise Over("the attempt ended by something else; what was ordered holds no longer")
        printed = self._read_last_line(number) if number < job.number else ""  # else nothing was launched
        known = job.start_refused if not printed or printed in job.start_refused else f"{job.start_refused}: {printed}"
        return without_secrets(known)

    def _read_last_line(self, number: int) -> str:
        try:
            text = evidence.read_output_tail(self._folder / str(number))
        except OSError:
            return ""
        return text.strip().rpartition("\n")[2][-OUTPUT_CHARS:]

    def _await_running(self, limit_s: float) -> Job:
        """Return the job once it makes steps, or hangs in a start on trial."""
        limit = begin_limit(self._clock, limit_s)
        while True:
            job = self._look()
            attempt = job.attempt
            is_hung = attempt is not None and attempt.is_lent and job.phase in ALIVE
            if is_hung or (job.phase is Phase.RUNNING and attempt is not None and attempt.first_step_at is not None):
                return job
            self._check_limit(limit, "the training makes no steps")

    def _await_copy(self, attempt: Attempt) -> None:
        """Wait until the state that all starts go on from is kept; raise Over where it is not."""
        used, limit = attempt.resume_from, begin_limit(self._clock, KEPT_LIMIT_S)
        if used is None:
            raise Over("the training began from its beginning")
        while not any(item.path == used.path or item.is_of(used) for item in self._deps.generations(self._name)):
            self._look()
            self._check_limit(limit, "no copy of the snapshot that it went on from was kept")

    def _look(self) -> Job:
        """Return the job as it is a moment later; raise Over where the starts cannot go on."""
        if self._ended.wait(self.poll_s):
            raise Over("stopped")
        try:
            job = self._deps.job(self._name)
        except TimeoutError as error:
            raise Over(str(error)) from error
        if job is None or job.phase in ENDED or job.desired_state is DesiredState.STOP or job.shutting_down:
            raise Over("the training was stopped, or has ended")
        self._number = job.number
        return job

    def _check_limit(self, limit: RunningLimit, why: str) -> None:
        if limit.next_wait_s() == 0:
            raise Over(f"{why} within {limit.limit_s:.0f} s")


class _Steps:
    """The steps of one attempt."""

    def __init__(self, folder: Path) -> None:
        self._recorder, self._cursor = RecorderReader(folder), 0
        self._last: StepRecord | None = None
        self._seen: list[StepRecord] = []
        self.times: list[float] = []
        self._spent_s = 0.0

    @property
    def are_enough(self) -> bool:
        counted = len(self.times)
        return counted >= STEPS_MAX or (counted >= STEPS_MIN and self._spent_s >= MEASURED_S)

    @property
    def are_too_many(self) -> bool:
        return len(self._seen) >= SEEN_MAX

    def read(self, clock: Clock) -> None:
        page = self._recorder.read(self._cursor, clock.now())
        self._cursor = page.cursor
        for record in page.records:
            before, self._last = self._last, record
            self._seen.append(record)
            span_s = find_span_s(before, record)
            if span_s is not None and len(self._seen) > DROPPED_STEPS:
                self._spent_s += span_s
                self.times.append(span_s / record.samples if record.samples else span_s)

    def measured(self, available_bytes: int) -> Measured:
        seen, samples = see_steps(self._seen, self._seen, available_bytes), [record.samples for record in self._seen]
        known = median(filter(None, samples)) if any(samples) else None
        return Measured(median_s=compare.median_s(tuple(self.times)), seen=replace(seen, samples_per_step=known))

    def close(self) -> None:
        self._recorder.close()
