"""A job that was removed from the configuration while it ran: it is stopped first, also by the next daemon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from supervisor.config.settings import JobSettings
from supervisor.core.job import ALIVE, DesiredState, Job
from supervisor.runner.attempt_folder import living_shim
from supervisor.runner.process_table import Process, read_living


class LeftRunning:
    """The jobs that were left out of the configuration of a start while their trainings ran: no rule looks at these."""

    def __init__(self) -> None:
        self._shims: dict[str, Process | None] = {}

    def add(self, job: str, attempt: Path | None) -> None:
        """Take in a job with the folder of its attempt, None where that does not answer."""
        self._shims[job] = None if attempt is None else living_shim(attempt)

    def discard(self, job: str) -> None:
        """Forget a job, which is configured again."""
        self._shims.pop(job, None)

    def list_jobs(self) -> list[str]:
        """Return those whose attempts are not known to have ended."""
        found = list(self._shims.items())
        return sorted(job for job, shim in found if shim is None or read_living(shim) is not None)


def is_alive(job: Job) -> bool:
    """Whether anything of a job may run that the daemon has to end."""
    return job.phase in ALIVE or job.replaying


def is_being_stopped(job: Job, *, asked: bool) -> bool:
    """Whether the end of a removed job was begun; `asked`: its user's last request is kept, and is to stop it.

    One that was left out of the configuration of a start runs on: a mistake in a file is to end no training.
    """
    return is_alive(job) and (asked or job.desired_state is DesiredState.STOP)


def settings_to_stop(job: Job, command: Sequence[str]) -> JobSettings:
    """Return settings that suffice to end a job: its own are gone, and the record has the limits for its end."""
    limits = job.limits
    return JobSettings(
        command=list(command) or [job.name],
        autostart=False,
        grace_s=limits.grace_s,
        save_s=limits.save_s,
        kill_wait_s=limits.kill_wait_s,
        gpu_memory_release_s=limits.gpu_memory_release_s,
        budget=limits.budget,
        remedies=limits.remedies,
    )
