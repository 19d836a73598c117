"""Takes up the jobs that an earlier daemon left, each once its folder answers: a silent disk delays no other job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec

from supervisor.children.path_looks import PathLooks, find_silent, wait_until_answered
from supervisor.children.prompt_thread import PromptThread
from supervisor.core import events as ev
from supervisor.core.apply_event import after_event
from supervisor.core.job import ALIVE, DesiredState, Job
from supervisor.core.moments import Moment
from supervisor.daemon.job_state import JobState
from supervisor.daemon.jobs.recovery import Recovery
from supervisor.daemon.process.removed_jobs import is_alive, is_being_stopped, settings_to_stop
from supervisor.daemon.record.lost_record import LostRecord
from supervisor.daemon.wiring import Assembly
from supervisor.runner.tuned import launched_command

log = logging.getLogger(__name__)


class JobIntake:
    """Used in the deciding thread, and before the loop begins."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts

    def take_up_all(self) -> None:
        """Create the state of each configured job from the record, and re-adopt running attempts."""
        parts, now = self._parts, self._parts.clock.now()
        known = {job.name: job for job in parts.store.load_jobs(now)}
        with PathLooks() as looks:
            for name, settings in parts.settings.jobs.items():
                self._take_up_if_answered(parts.add(name, settings, known.get(name), now), looks)
            for name in sorted(known.keys() - parts.settings.jobs.keys()):
                if is_alive(known[name]):
                    self._take_up_removed(known[name], looks, now)

    def adopt(self, job_state: JobState) -> None:
        """Take up a job that is configured again while its attempt runs, once its folder has answered."""
        self._parts.executor.leave_alone(job_state.job.name, job_state.job.number)
        self._take_up_later(job_state, lambda: None)

    def _take_up_removed(self, job: Job, looks: PathLooks, now: Moment) -> None:
        """Go on with the end of a job that was removed from the configuration; say of another that it is left alone."""
        parts, fields = self._parts, {"job": job.name, "phase": job.phase.value}
        folder = parts.executor.folder(job.name, job.number)
        if not is_being_stopped(job, asked=parts.requests.find(job.name, now) is not None):
            log.warning("job.not_configured", extra={"fields": fields})
            silent = find_silent(looks, parts.state / "jobs" / job.name)
            parts.left_running.add(job.name, folder if silent is None else None)
            return
        log.warning("job.removed", extra={"fields": fields})
        settings = settings_to_stop(job, launched_command(folder))
        parts.settings = msgspec.structs.replace(parts.settings, jobs={**parts.settings.jobs, job.name: settings})
        parts.removed.add(job.name)
        self._take_up_if_answered(parts.add(job.name, settings, job, now), looks)

    def _take_up_if_answered(self, job_state: JobState, looks: PathLooks) -> None:
        silent = find_silent(looks, self._parts.state / "jobs" / job_state.job.name)
        if silent is None:
            self._take_up(job_state)
        else:
            self._put_off(job_state, silent)

    def _take_up(self, job_state: JobState) -> None:
        """Take up one job, whose folder answers."""
        parts, now, name = self._parts, self._parts.clock.now(), job_state.job.name
        alive = parts.launcher.alive
        parts.standbys.clear((name,))
        job_state.job = LostRecord(parts.state, parts.store, alive).completed(job_state.job, now)
        self._restore_stop(job_state, now)
        attempt = job_state.job.attempt
        for degraded in parts.store.degraded(name, attempt) if attempt is not None and not attempt.over else ():
            if ev.part_read(degraded.place) is None:  # this daemon's reader finds out by itself
                parts.loop.fences.mark(job_state, degraded)
        cursors = parts.store.cursors(name, job_state.job.number)
        recovery = Recovery(parts.clock, parts.executor, parts.attempts, alive, parts.inbox.put)
        recovery.take_up(job_state, cursors, parts.settings.retention.output_limit_mb * 1_000_000)

    def _put_off(self, job_state: JobState, why: str) -> None:
        """Leave a job as it is until its folder answers: the start, and all others, would wait for that."""
        parts, job = self._parts, job_state.job
        self._restore_stop(job_state, parts.clock.now())
        parts.executor.leave_alone(job.name, job.number)
        log.error("job.put_off", extra={"fields": {"job": job.name, "why": why}})
        silent = ev.SupervisionChanged(
            at=parts.clock.now(),
            job=job.name,
            attempt=job.number,
            place=ev.reading_place("its folder"),
            error=f"{why}; until it does, its attempts are not followed: check that disk",
        )
        parts.inbox.put(silent)
        self._take_up_later(job_state, lambda: parts.inbox.put(replace(silent, at=parts.clock.now(), recovered=True)))

    def _take_up_later(self, job_state: JobState, report: Callable[[], None]) -> None:
        """Take up a job once its folder answers, which `report` is to say then."""
        parts, job = self._parts, job_state.job

        def take_up() -> None:
            if parts.loop.job_states.get(job.name) is not job_state:
                return
            parts.executor.take_back(job.name, job.number)
            report()
            # What has been launched since is followed by whoever launched it.
            if job.phase in ALIVE and job_state.job.number == job.number:
                self._take_up(job_state)

        def wait_for_answer() -> None:
            wait_until_answered(parts.state / "jobs" / job.name)
            parts.inbox.later(take_up)

        PromptThread(wait_for_answer, f"put-off-{job.name}").start()

    def _restore_stop(self, job_state: JobState, now: Moment) -> None:
        """Apply a user's stop that the record lacks: it was carried out, and the daemon died before its commit."""
        asked = self._parts.requests.find(job_state.job.name, now)
        if asked is not None and job_state.job.desired_state is DesiredState.RUN:
            log.warning("request.restored", extra={"fields": {"job": asked.job, "ask": asked.ask.value}})
            job_state.job = after_event(job_state.job, asked)
            self._parts.inbox.put(asked)  # for the record
