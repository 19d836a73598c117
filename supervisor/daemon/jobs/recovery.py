"""Recovers the state that an earlier daemon left: running attempts are re-adopted, ended ones reported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files as fo
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.history import STEPS_KEPT
from supervisor.core.job import ALIVE, Attempt, DesiredState, Job, Phase
from supervisor.daemon.attempt_reader import AttemptReader, FollowedAttempt, read_last_steps
from supervisor.daemon.clock import Clock
from supervisor.daemon.executor import ThreadExecutor
from supervisor.daemon.job_state import JobState, seed_history
from supervisor.runner.attempt_folder import describe_newer, read_shim
from supervisor.store.store import Cursors

log = logging.getLogger(__name__)

Alive = Callable[[str, Path], bool]
"""Whether anything of an attempt may still run, by its job and folder."""

LAUNCH_UNDER_WAY_S = 15.0
"""How old a launch may be whose shim has not left word yet: the daemon before us may have died in the midst of it."""


class Recovery:
    """Takes up jobs one by one, before the loop begins."""

    def __init__(
        self,
        clock: Clock,
        executor: ThreadExecutor,
        attempts: AttemptReader,
        alive: Alive,
        put: Callable[[ev.Event], None],
    ) -> None:
        self._clock = clock
        self._put = put
        self._executor = executor
        self._attempts = attempts
        self._alive = alive

    def take_up(self, job_state: JobState, cursors: Cursors, output_limit_bytes: int) -> None:
        """Take up one job as the record has it."""
        job = job_state.job = replace(job_state.job, shutting_down=False)
        attempt = job.attempt
        if job.replaying:
            self._triage_again(job)
        self._end_starts(job)
        if job.phase not in ALIVE or attempt is None or attempt.over:
            return
        folder = self._executor.folder(job.name, attempt.number)
        self._await_shim(folder, job)
        if (newer := describe_newer(folder)) is not None:
            self._leave_alone(job.name, attempt.number, newer)
            return
        job_state.job = _with_cursors(job, cursors)
        job_state.agent_offset = cursors.agent_log_bytes
        now = self._clock.now()
        seed_history(job_state, read_last_steps(folder, cursors.recorder.get(0, 0), STEPS_KEPT, now), now)
        if job.desired_state is DesiredState.RUN and self._never_came_up(folder, job):
            self._launch_again(job_state.job, attempt)
            return
        self._adopt(
            FollowedAttempt(
                job=job.name,
                attempt=attempt.number,
                folder=folder,
                output_limit_bytes=output_limit_bytes,
                cursors=dict(cursors.recorder),
                output_offset=cursors.output_bytes,
            )
        )
        self._act_again(job_state.job)

    def _adopt(self, followed: FollowedAttempt) -> None:
        job, number = followed.job, followed.attempt
        adopted = self._executor.adopt(job, number, followed)
        # An exit.json next to a shim that runs is the training's: no later attempt could get the lock that shim holds.
        if not adopted or not self._alive(job, followed.folder):
            self._attempts.gone(job, number)
        log.info("attempt.adopted", extra={"fields": {"job": job, "attempt": number}})

    def _end_starts(self, job: Job) -> None:
        """End what a tune of the daemon before us had lent to a start: no tune outlives its daemon."""
        asked = (job.asked_start, job.attempt and job.attempt.order, job.retry and job.retry.order)
        if any(asked) or (job.stop is not None and job.stop.order is not None):
            log.info("start.ended", extra={"fields": {"job": job.name, "attempt": job.number}})
            now = self._clock.now()
            self._put(ev.StartAsked(at=now, job=job.name, attempt=job.number, ask=ev.StartAsk.END))

    def _await_shim(self, folder: Path, job: Job) -> None:
        """Wait for the shim of a launch that was under way; an older one without word never came up."""
        if job.phase is not Phase.STARTING or self._clock.now().seconds_since(job.since) > LAUNCH_UNDER_WAY_S:
            return
        until = self._clock.now().plus(3.0)
        while (
            read_shim(folder) is None and self._alive(job.name, folder) and self._clock.now().seconds_since(until) < 0
        ):
            time.sleep(0.05)

    def _leave_alone(self, job: str, attempt: int, why: str) -> None:
        """Report an attempt whose records a later version wrote: it is neither judged nor called over, until a stop."""
        self._executor.leave_alone(job, attempt)
        log.error("attempt.newer_version", extra={"fields": {"job": job, "attempt": attempt, "why": why}})
        place = ev.reading_place("its records")
        self._put(ev.SupervisionChanged(at=self._clock.now(), job=job, attempt=attempt, place=place, error=why))

    def _never_came_up(self, folder: Path, job: Job) -> bool:
        """Whether the daemon before us died between deciding a launch and its act: then nothing of it ever ran."""
        word = read_shim(folder) is not None or untrusted_files.exists(folder, fo.EXIT)
        return job.phase is Phase.STARTING and not word and not self._alive(job.name, folder)

    def _launch_again(self, job: Job, attempt: Attempt) -> None:
        launch = de.Launch(
            at=self._clock.now(),
            job=job.name,
            attempt=attempt.number,
            resume_from=attempt.resume_from,
            reason=job.reason or "start",
            loads_itself=attempt.loads_itself,
        )
        log.info("attempt.launched_again", extra={"fields": {"job": job.name, "attempt": attempt.number}})
        self._executor.act(launch, job, None)

    def _triage_again(self, job: Job) -> None:
        """Go on with a triage: what it has replayed by now lies in its folders."""
        triage_state = job.triage
        if triage_state is None:
            return
        triage = de.Triage(
            at=self._clock.now(),
            job=job.name,
            attempt=triage_state.attempt,
            reason=job.reason or "triage",
            step=triage_state.step,
            looked_for=triage_state.looked_for,
            resume_from=triage_state.resume_from,
        )
        log.info("triage.adopted", extra={"fields": {"job": job.name, "attempt": triage_state.attempt}})
        self._executor.act(triage, job, None)

    def _act_again(self, job: Job) -> None:
        """Carry out once more what was decided: whether it was carried out before is not known."""
        order, now = job.stop, self._clock.now()
        if order is None:
            return
        if job.phase is Phase.KILLING:
            kill = de.Kill(at=now, job=job.name, attempt=job.number, reason=order.reason)
            self._executor.act(kill, job, None)
        elif job.phase is Phase.STOPPING:
            stop = de.Stop(
                at=now, job=job.name, attempt=job.number, reason=order.reason, save=order.save, flag=order.flag
            )
            self._executor.act(stop, job, None)


def _with_cursors(job: Job, cursors: Cursors) -> Job:
    """Return the job with the last step that the record knows: steps are written more often than jobs."""
    attempt = job.attempt
    if attempt is None or cursors.last_step is None or (attempt.last_step or 0) >= cursors.last_step:
        return job
    ledger = job.ledger.stepped(attempt.place_of(cursors.last_step))
    return replace(job, attempt=replace(attempt, last_step=cursors.last_step), ledger=ledger)
