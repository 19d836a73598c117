"""Periodic work on APScheduler, made safe against a wall clock that steps.

APScheduler 3.11 reckons in wall time: after a step of -30 s an interval job does not run for 30 s, after one of +60
days it first builds every missed run time and takes a whole core (measured; its issues 351, 752 and 794 are about it).
The trigger below never replays, and `Periodic.clock_stepped` schedules every job again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta, timezone
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from supervisor.children.worker_threads import WorkerThreads
from supervisor.daemon.fence import describe_error

log = logging.getLogger(__name__)

PERIODIC_AT_ONCE = 16
"""Each work runs once at a time; there are fewer kinds of it, so that none waits for another that hangs."""


class Every(BaseTrigger):  # type: ignore[misc] # APScheduler 3 ships no types
    """Fires each `interval_s`; a run that lies in the past or too far ahead is scheduled again from the present."""

    def __init__(self, interval_s: float) -> None:
        self.interval = timedelta(seconds=interval_s)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """Return the next run, never more than one interval ahead and never behind."""
        if previous is None:
            return now + self.interval
        planned = previous + self.interval
        return planned if now < planned <= now + self.interval else now + self.interval


class InThreads(BaseExecutor):  # type: ignore[misc] # the same
    """Runs jobs in threads, which the end of the process does not wait for, each job once at a time.

    The threads of `concurrent.futures` are joined when the interpreter ends: one work that hangs would keep the daemon.
    """

    def __init__(self, workers: WorkerThreads) -> None:
        super().__init__()
        self._workers = workers
        self.unstarted: str | None = None
        """Why the last job got no thread; None where it got one."""

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        """Run a job; where the machine has no room for a thread, this run is left out and the next is tried again."""
        try:
            super().submit_job(job, run_times)
        except (RuntimeError, MemoryError) as error:
            if self.unstarted is None:
                log.warning("periodic.unstarted", extra={"fields": {"work": job.name, "error": repr(error)}})
            self.unstarted = describe_error(error)
        else:
            self.unstarted = None

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        self._workers.do(lambda: self._run(job, run_times), job.name)

    def _run(self, job: Any, run_times: list[datetime]) -> None:
        # It catches what the work raises, and returns events of it.
        self._run_job_success(job.id, run_job(job, job._jobstore_alias, run_times, self._logger.name))


class Periodic:
    """The scheduler: housekeeping and readings, each in a thread, so that one that hangs delays no other."""

    def __init__(self, around: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()) -> None:
        """`around` is entered with the name of what is done, for as long as that takes."""
        self._around = around
        self._in_threads = InThreads(WorkerThreads("periodic", PERIODIC_AT_ONCE))
        self._scheduler = BackgroundScheduler(
            executors={"default": self._in_threads},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone=timezone.utc,
        )
        self._scheduler.add_listener(self._log_skipped, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)

    @property
    def problem(self) -> str | None:
        """Why periodic work is left out; None where it is not."""
        unstarted = self._in_threads.unstarted
        return None if unstarted is None else f"readings and periodic work are left out: {unstarted}"

    def every(self, interval_s: float, name: str, work: Callable[[], None]) -> None:
        """Run `work` each `interval_s` from now on; a second call of the same name replaces the first."""

        def timed() -> None:
            with self._around(name):
                work()

        self._scheduler.add_job(timed, Every(interval_s), id=name, name=name, replace_existing=True)

    def soon(self, name: str, now: datetime) -> None:
        """Run the work of that name at `now` and from there on each interval; one under way is not run twice."""
        if self._scheduler.get_job(name) is not None:
            self._scheduler.modify_job(name, next_run_time=now)

    def clock_stepped(self, now: datetime) -> None:
        """Set every job's next run to `now`: what was planned was planned on a clock that is gone."""
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=now)
        self._scheduler.wakeup()

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self) -> None:
        """End without waiting for work under way: a reading that hangs must not hold the daemon."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    @staticmethod
    def _log_skipped(event: JobEvent) -> None:
        error = getattr(event, "exception", None)
        log.warning("periodic.skipped", extra={"fields": {"work": event.job_id, "error": repr(error)}})
