"""What follows from the settings without being written in them: addresses, rules, limits; it opens nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.config.settings import (
    NUMBER,
    PLACEHOLDER,
    SNAPSHOT_EVERY_S,
    JobSettings,
    ProfileSettings,
    SupervisorSettings,
)
from supervisor.core import attempt_files
from supervisor.core.checkpoints.retention import Policy
from supervisor.core.job import Limits
from supervisor.core.reports.expectations import Expectation
from supervisor.core.rules import RULES, Rule

SOCKET = "control.sock"


def database_url(settings: SupervisorSettings) -> str:
    """Return the URL of the database."""
    return settings.database or f"sqlite:///{Path(settings.state_dir) / 'supervisor.db'}"


def socket_path(settings: SupervisorSettings, environment: Mapping[str, str]) -> Path:
    """Return the path of the control socket; systemd passes its folder in RUNTIME_DIRECTORY (systemd.exec(5))."""
    if settings.socket is not None:
        return Path(settings.socket)
    runtime = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return Path(runtime or settings.state_dir) / SOCKET


def disk_paths(settings: SupervisorSettings, *jobs: JobSettings) -> tuple[Path, ...]:
    """Return the paths by which the disks are read that these jobs write to: the daemon's own, and where they run."""
    return (Path(settings.state_dir), *(Path(job.cwd) for job in jobs if job.cwd is not None))


def disks_of(settings: SupervisorSettings, job: JobSettings) -> frozenset[str]:
    """Return the same of one job, by which the readings are chosen that it is judged by."""
    return frozenset(map(str, disk_paths(settings, job)))


def gpus_of(job: JobSettings, known: Iterable[str]) -> tuple[str, ...]:
    """Return the PCI addresses that a job's `gpus` name, of the machine's known ones; empty: every GPU.

    An index counts the GPUs in the order of their addresses, as ROCm and the kernel number them.
    """
    ordered = sorted(known)
    named = []
    for text in job.gpus:
        if not text.isdecimal():
            named.append(text.lower())
        elif int(text) < len(ordered):
            named.append(ordered[int(text)])
    return tuple(named)


def rules_of(job: JobSettings) -> tuple[Rule, ...]:
    """Return every rule with the job's settings, in the order of RULES."""
    return rules_with(rule_settings(job))


def rule_settings(job: JobSettings) -> dict[str, dict[str, Any]]:
    """Return the settings of the job's rules by their names; what the owner expects fills what is unset."""
    expected = expectation_of(job)
    unset = {
        "throughput_drop": {"at_least_per_s": expected.batches_per_s},
        "deadline": {"at_unix_s": expected.deadline_unix_s},
    }
    filled = {name: keys for name, keys in unset.items() if None not in keys.values()}
    return {name: {**filled.get(name, {}), **job.rules.get(name, {})} for name in (*job.rules, *filled)}


def rules_with(settings: Mapping[str, Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Return every rule, in the order of RULES, with settings that were checked (`Reader.rules`)."""
    return tuple(rule(**settings.get(rule.name, {})) for rule in RULES)


def expectation_of(job: JobSettings) -> Expectation:
    """Return the owner's success criteria; a deadline without an offset is local time."""
    wanted = job.expect
    return Expectation(
        batches_per_s=wanted.batches_per_s,
        checkpoint_each_epoch=wanted.checkpoint_each_epoch,
        losses_fall=wanted.losses_fall,
        map_rises=wanted.map_rises,
        max_temperature_c=wanted.max_temperature_c,
        max_vram_bytes=wanted.max_vram_bytes,
        no_nan=wanted.no_nan,
        deadline_unix_s=wanted.deadline.timestamp() if wanted.deadline is not None else None,
    )


def agent_environment(job: JobSettings) -> dict[str, str]:
    """Return the agent's variables for the replacement of Conv2d and for the backend of several ranks."""
    return {
        attempt_files.ENV_CONV2D_SCOPE: job.conv2d_scope,
        attempt_files.ENV_CONV2D_WORKSPACE: str(job.conv2d_workspace_mb),
        attempt_files.ENV_CONV2D_WINOGRAD: "on" if job.conv2d_winograd else "off",
        attempt_files.ENV_CONV2D_TUNE: f"{job.conv2d_tune_s:g}",
        attempt_files.ENV_RANKS_BACKEND: "" if job.ranks_backend == "script" else job.ranks_backend,
    }


def snapshot_every(job: JobSettings) -> str:
    """Return the interval between snapshots as `core.folder.ENV_SNAPSHOT_EVERY` wants it."""
    every = job.snapshot_every_s
    if isinstance(every, str):
        return every
    if isinstance(every, bool):
        return str(SNAPSHOT_EVERY_S) if every else "0"
    return str(every)


def snapshot_replicas(job: JobSettings, name: str) -> str | None:
    """Return the folder for the second copy of a job's snapshots of shards; None where none is set."""
    return None if job.snapshot_replicas is None else str(Path(job.snapshot_replicas).expanduser() / name)


def limits_of(job: JobSettings) -> Limits:
    """Return what deciding needs to know of the job."""
    return Limits(
        grace_s=job.grace_s,
        save_s=job.save_s,
        kill_wait_s=job.kill_wait_s,
        gpu_memory_release_s=job.gpu_memory_release_s,
        resort_s=job.last_resorts.limit_s,
        budget=job.budget,
        remedies=job.remedies,
        triage_s=job.triage_limit_s if job.triage == "auto" else None,
    )


def commands_of(job: JobSettings, profile: ProfileSettings | None) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return the command of a job and the one that resumes it, if any.

    A profile with a command of its own has its own resume command too, or none: the job's would lead back to a GPU.
    """
    if profile is not None and (profile.command is not None or profile.resume_command is not None):
        return tuple(profile.command or job.command), _as_words(profile.resume_command)
    return tuple(job.command), _as_words(job.resume.command)


def _as_words(command: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if command is None else tuple(command)


def takes_file(command: Sequence[str]) -> bool:
    """Whether a command that resumes is given a checkpoint's file; without it the program finds its own."""
    return any(PLACEHOLDER in word for word in command) or takes_number(command)


def takes_number(command: Sequence[str]) -> bool:
    """Whether a command that resumes is given a checkpoint's number, by which the training finds its own file."""
    return any(NUMBER in word for word in command)


def loads_itself(job: JobSettings, profile: ProfileSettings | None) -> bool:
    """Whether no file is handed to the training: no command names one, and there is no place to put one."""
    _command, resume = commands_of(job, profile)
    return job.resume.to is None and (resume is None or not takes_file(resume))


def is_put_back(job: JobSettings, profile: ProfileSettings | None) -> bool:
    """Whether a generation goes into its file's own place where a start failed from it, and not before."""
    _command, resume = commands_of(job, profile)
    is_elsewhere = job.resume.to is None and not job.resume.set_newer_aside
    return is_elsewhere and resume is not None and not takes_number(resume)


def policy_of(job: JobSettings) -> Policy:
    """Return which generations of the job's checkpoints are kept."""
    checkpoint_settings = job.checkpoints
    return Policy(
        keep_newest=checkpoint_settings.keep_newest,
        keep_hourly=checkpoint_settings.keep_hourly,
        keep_best=checkpoint_settings.keep_best,
        limit_bytes=checkpoint_settings.limit_mb * 1_000_000,
    )
