"""What follows from the settings without being written in them: addresses, rules, limits; it opens nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor.config.settings import SNAPSHOT_EVERY_S, JobSettings, SupervisorSettings
from supervisor.core.job import Limits
from supervisor.core.rules import RULES, Rule

SOCKET = "control.sock"


def database_url(settings: SupervisorSettings) -> str:
    """Return the SQLAlchemy URL of the database."""
    return settings.database or f"sqlite:///{Path(settings.state_dir) / 'supervisor.db'}"


def socket_path(settings: SupervisorSettings, environment: Mapping[str, str]) -> Path:
    """Return where the control socket lies; RUNTIME_DIRECTORY is systemd's word for it (systemd.exec(5))."""
    if settings.socket is not None:
        return Path(settings.socket)
    runtime = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return Path(runtime or settings.state_dir) / SOCKET


def rules_of(job: JobSettings) -> tuple[Rule, ...]:
    """Return every rule with the job's settings, in the order of RULES."""
    return tuple(rule(**job.rules.get(rule.name, {})) for rule in RULES)


def snapshot_every(job: JobSettings) -> str:
    """Return the interval between snapshots as `core.folder.ENV_SNAPSHOT_EVERY` wants it."""
    every = job.snapshot_every_s
    if isinstance(every, str):
        return every
    if isinstance(every, bool):
        return str(SNAPSHOT_EVERY_S) if every else "0"
    return str(every)


def limits_of(job: JobSettings) -> Limits:
    """Return what deciding needs to know of the job."""
    return Limits(grace_s=job.grace_s, save_s=job.save_s, kill_wait_s=job.kill_wait_s, budget=job.budget)
