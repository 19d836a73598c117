"""What follows from the settings without being written in them: addresses, rules, limits; it opens nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor.config.settings import JobSettings, SupervisorSettings
from supervisor.core.generations import Policy
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


def limits_of(job: JobSettings) -> Limits:
    """Return what deciding needs to know of the job."""
    return Limits(grace_s=job.grace_s, save_s=job.save_s, kill_wait_s=job.kill_wait_s, budget=job.budget)


def policy_of(job: JobSettings) -> Policy:
    """Return which generations of the job's checkpoints are kept."""
    one = job.checkpoints
    return Policy(
        keep_newest=one.keep_newest,
        keep_hourly=one.keep_hourly,
        keep_best=one.keep_best,
        limit_bytes=one.limit_mb * 1_000_000,
    )
