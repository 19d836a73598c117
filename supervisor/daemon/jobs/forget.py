"""Removes what is left of a job that is no longer configured: its rows in the record, and its folder."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor import untrusted_files
from supervisor.config.read import NAME
from supervisor.control import record_types
from supervisor.control.refusals import NoSuchJob, Refused
from supervisor.core.job import ALIVE, Phase
from supervisor.daemon.clock import Clock
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.loop import Loop
from supervisor.daemon.record.commit_thread import CommitThread
from supervisor.daemon.record.persistence import LEARNED
from supervisor.daemon.stop_requests import StopRequests
from supervisor.store.errors import StoreError
from supervisor.store.store import Store

log = logging.getLogger(__name__)

DELETE_LIMIT_S = 20.0
"""How long the deletion of the rows may take before the caller is told so; it goes on."""
REMOVED = ".forgotten-"
"""Begins the name of a folder that is being removed; no job can be called so."""
ATTEMPTS_ASKED = 2
"""Newest attempts that are asked for a living process; an older one ended before the next was launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetJobs:
    """Called in threads of the server; the rows are deleted in the thread that writes the record."""

    clock: Clock
    inbox: Inbox
    loop: Loop
    store: Store
    commits: CommitThread
    jobs: Path
    """The folder that has a folder of each job."""
    requests: StopRequests
    alive: Callable[[str, Path], bool]
    """Returns whether anything of an attempt, by its job and folder, may still run."""

    def forget(self, job: str) -> record_types.Forgotten:
        """Delete the record of a job and remove its folder; raise NoSuchJob or Refused."""
        notes = f"{LEARNED} {job}:"
        self.inbox.ask(lambda: self._drop(job, notes))
        try:
            rows = self.commits.ask(f"deleting {job}", lambda: self.store.delete_job(job, notes), DELETE_LIMIT_S)
        except StoreError as error:
            raise Refused(str(error), "see supervisorctl doctor") from error
        self.inbox.ask(lambda: self._put_folder_aside(job))
        self.requests.forget(job)
        removed = untrusted_files.remove_tree(self.jobs, REMOVED + job)
        log.warning("job.forgotten", extra={"fields": {"job": job, "rows": rows, "folder_removed": removed}})
        return record_types.Forgotten(job=job, rows=rows, folder_removed=removed and not self._has_folder(job))

    def _drop(self, job: str, notes: str) -> None:
        """Check that the job can be forgotten, and drop what is queued of it."""
        self._require_unconfigured(job)
        known = {recorded.name: recorded for recorded in self.store.load_jobs(self.clock.now())}
        if job not in known and not self._has_folder(job) and not self._has_rest(job):
            raise NoSuchJob(job, sorted({*known, *self.loop.job_states}), or_recorded=True)
        recorded = known.get(job)
        if (recorded is not None and recorded.phase in ALIVE) or self._runs(job):
            remedy = f"configure {job} again and stop it, or end its processes and restart the daemon"
            raise Refused(f"a training of {job} may still be running", remedy)
        self.store.drop_job(job, notes)

    def _put_folder_aside(self, job: str) -> None:
        self._require_unconfigured(job)
        untrusted_files.remove_tree(self.jobs, REMOVED + job)  # of a daemon that was killed meanwhile
        with contextlib.suppress(OSError):
            (self.jobs / job).rename(self.jobs / (REMOVED + job))

    def _require_unconfigured(self, job: str) -> None:
        if job in self.loop.job_states:
            raise _refuse_configured(job, self.loop.job_states[job].job.phase)

    def _has_folder(self, job: str) -> bool:
        return NAME.fullmatch(job) is not None and untrusted_files.entry_exists(self.jobs, job)

    def _has_rest(self, job: str) -> bool:
        """Whether a daemon that was killed over it has left part of the folder."""
        return NAME.fullmatch(job) is not None and untrusted_files.entry_exists(self.jobs, REMOVED + job)

    def _runs(self, job: str) -> bool:
        if not self._has_folder(job):
            return False
        names = untrusted_files.list_names(self.jobs, job).names
        attempts = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        return any(self.alive(job, self.jobs / job / str(number)) for number in attempts[-ATTEMPTS_ASKED:])


def _refuse_configured(job: str, phase: Phase) -> Refused:
    """Return why a configured job is not forgotten, and in which order to do what forgets it."""
    steps = f"remove [jobs.{job}] from the configuration, supervisorctl reload, then supervisorctl forget {job}"
    if phase in ALIVE:
        return Refused(f"{job} is configured and {phase.value}", f"supervisorctl stop {job}, {steps}")
    return Refused(f"{job} is {phase.value} but still configured: a stopped job keeps its record", steps)
