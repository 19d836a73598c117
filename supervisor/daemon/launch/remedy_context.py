"""Collects the facts about the host that decide which remedies a job can have."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping

from supervisor.config.derive import is_put_back, loads_itself
from supervisor.config.settings import JobSettings, Settings
from supervisor.core.job import ALIVE, ENDED, Job, Phase
from supervisor.core.memory.kept import KeptEstimate
from supervisor.core.moments import Moment
from supervisor.core.remedies.context import Experience, RemedyContext
from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.core.remedies.last_resorts import Resort
from supervisor.daemon.job_state import JobState
from supervisor.daemon.launch.gpus import GpuAvailability
from supervisor.daemon.launch.last_resorts import Found, list_resorts
from supervisor.daemon.telemetry import NewestReadings

QUICKLY_S = 5.0
"""A driver that releases the memory of ended processes has done so by then."""


class RemedyContextReader:
    """Answers in the deciding thread."""

    def __init__(  # noqa: PLR0913 - what a remedy hangs on lies in several rooms
        self,
        settings: Callable[[], Settings],
        job_states: Mapping[str, JobState],
        answering: GpuAvailability,
        experience: Callable[[], tuple[Experience, ...]],
        newest: NewestReadings,
        *,
        estimate: Callable[[str], KeptEstimate | None] = lambda _job: None,
        installed: Found = shutil.which,
    ) -> None:
        self._settings = settings
        self._job_states = job_states
        self._answering = answering
        self._experience = experience
        self._newest = newest
        self._estimate = estimate
        self._installed = installed

    def of(self, job_state: JobState, now: Moment) -> RemedyContext:
        """Return what there is for one job now."""
        settings = self._settings()
        job = settings.jobs.get(job_state.job.name)
        if job is None or job_state.job.phase in ENDED:
            return RemedyContext()
        waits = job_state.job.awaits_triage or job_state.job.environment_problem is not None
        if job_state.job.phase not in ALIVE and not waits:
            return RemedyContext(
                memory=self._read_memory(job_state, now), resorts=self._list_last_resorts(job_state, job)
            )
        answering = self._answering.answering_s(now)
        over = job_state.job.attempt is not None and job_state.job.attempt.over
        worst = over or job_state.job.phase is Phase.KILLING
        profile = job.profiles.cpu if job_state.job.on_cpu else None
        return RemedyContext(
            agent=settings.supervisor.agent,
            conv2d_auto=job.conv2d == "auto" and not _trains_without_torch(job_state),
            device=job_state.history.device if job_state.history is not None else None,
            resume_command=job.resume.command is not None,
            loads_itself=loads_itself(job, profile),
            is_put_back=is_put_back(job, profile),
            newer_set_aside=job.resume.set_newer_aside,
            cpu_profile=job.profiles.cpu.enabled,
            environments=tuple(job.environments),
            free_gpus=self._list_free_gpus([gpu for gpu, _ in answering]) if over else (),
            answering_s=answering,
            experience=self._experience() if over else (),
            estimate=self._estimate(job_state.job.name) if over else None,
            memory=self._read_memory(job_state, now) if waits else (),
            resorts=self._list_last_resorts(job_state, job) if worst else (),
        )

    def _list_free_gpus(self, answering: list[str]) -> tuple[str, ...]:
        """Return the GPUs that no job has: one that names none has the first, as every framework takes it."""
        taken = {text for job_state in self._list_alive() for text in _gpus_of(job_state) or answering[:1]}
        return tuple(text for text in answering if text not in taken)

    def _read_memory(self, job_state: JobState, now: Moment) -> tuple[GpuMemory, ...]:
        """Return the memory in use on a job's GPUs, from recent readings.

        A GPU that another job has, or may have because it names none, says nothing about this one.
        """
        others = [item for item in self._list_alive() if item is not job_state]
        if job_state.job.on_cpu or any(not _gpus_of(other) for other in others):
            return ()
        taken = {gpu for other in others for gpu in _gpus_of(other)}
        mine = _gpus_of(job_state)
        return tuple(
            GpuMemory(gpu=gpu, used_bytes=used)
            for gpu, reading in sorted(self._newest.gpus.items())
            if (used := reading.memory_used_bytes) is not None
            and now.seconds_since(reading.at) <= self._answering.gap_s()
            and gpu not in taken
            and (not mine or gpu in mine)
        )

    def _list_last_resorts(self, job_state: JobState, job: JobSettings) -> tuple[Resort, ...]:
        others = [item for item in self._list_alive() if item is not job_state]
        gpu = _find_faulty_gpu(job_state, tuple(sorted(self._newest.gpus)))
        sharing = {other.job.name: not _gpus_of(other) or gpu in _gpus_of(other) for other in others}
        return list_resorts(job.last_resorts, gpu, tuple(self._newest.gpus.values()), sharing, self._installed)

    def _list_alive(self) -> Iterator[JobState]:
        return (
            job_state
            for job_state in self._job_states.values()
            if job_state.job.phase in ALIVE or job_state.job.awaits_triage
        )


def memory_awaited(jobs: Iterable[Job], now: Moment) -> bool:
    """Whether a launch may hang on what a GPU holds, so shortly after an attempt ended that this changes quickly."""
    return any(
        job.phase is Phase.BACKOFF
        and job.attempt is not None
        and bool(job.attempt.memory_before)
        and now.seconds_since(job.since) < QUICKLY_S
        for job in jobs
    )


def _find_faulty_gpu(job_state: JobState, known: tuple[str, ...]) -> str | None:
    """Return the GPU that the kernel's log last blamed, else the only one that the job has; None where it has more."""
    kernel = job_state.history.kernel.findings if job_state.history is not None else ()
    blamed = next((finding.gpu for finding in reversed(kernel) if finding.fatal and finding.gpu is not None), None)
    gpus = _gpus_of(job_state) or known
    return blamed or (gpus[0] if len(gpus) == 1 else None)


def _gpus_of(job_state: JobState) -> tuple[str, ...]:
    """Return the GPUs that a job is on; empty where it names none."""
    return (job_state.job.gpu,) if job_state.job.gpu else job_state.gpus_used


def _trains_without_torch(job_state: JobState) -> bool:
    """Whether the process that makes steps has reported itself, and has not met torch."""
    history = job_state.history
    return history is not None and bool(history.reports.rank_pids) and not job_state.job.uses_torch
