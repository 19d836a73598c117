"""Chooses how trainings are started: as systemd units where possible, else as detached processes.

In an allocation of an engine, and as the first process of a container, they are children of the daemon.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.daemon.process.systemd import own_unit
from supervisor.runner.direct import DirectLauncher
from supervisor.runner.held import HeldLauncher
from supervisor.runner.launcher import Launcher
from supervisor.runner.units import UnitLauncher, available

log = logging.getLogger(__name__)

ENGINE_VARIABLES = ("SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""Set in every process of an allocation."""


class LauncherError(ValueError):
    """The launcher that was asked for cannot work here; the text says why and what to do."""

    def __init__(self, text: str, *, may_pass: bool = False) -> None:
        """`may_pass`: the system's services may answer later, as while they are installed or the machine is busy."""
        super().__init__(text)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A launcher, and the group that shares attempts' folders with trainings of another user."""

    launcher: Launcher
    group: int | None = None


def launcher_of(setting: str, state: Path) -> Chosen:
    """Return the launcher for `supervisor.launcher`; raise LauncherError where a named one cannot work."""
    if setting == "direct":
        return Chosen(launcher=DirectLauncher())
    if setting == "held" or (setting == "auto" and is_task_of_engine(os.environ, os.getpid())):
        return Chosen(launcher=HeldLauncher())
    if setting in ("systemd", "systemd-user"):
        user = setting == "systemd-user"
        why_not = available(user=user, state=state)
        if why_not is not None:
            raise LauncherError(f'supervisor.launcher = "{setting}" cannot work here: {why_not}; "direct" always can')
        return _choose_units(user=user, state=state)
    return _choose_automatically(state)


def is_task_of_engine(environment: Mapping[str, str], pid: int) -> bool:
    """Whether this process is a task in an allocation, or the first of a container: it must leave nothing behind."""
    return pid == 1 or any(environment.get(name) for name in ENGINE_VARIABLES)


def _choose_automatically(state: Path) -> Chosen:
    unit = own_unit()
    for user in (False, True) if unit is None else (unit[1],):
        why_not = available(user=user, state=state)
        if why_not is None:
            return _choose_units(user=user, state=state)
        log.info("launcher.unavailable", extra={"fields": {"user": user, "why": why_not}})
        if unit is not None:
            # A training started by ourselves would lie in this service's cgroup, and die with each restart of it.
            raise LauncherError(f"{unit[0]} can start no units for trainings: {why_not}", may_pass=True)
    return Chosen(launcher=DirectLauncher())


def _choose_units(*, user: bool, state: Path) -> Chosen:
    launcher = UnitLauncher(user=user, state=state)
    if user:
        return Chosen(launcher=launcher)
    # The system's units run trainings as their owner, who meets the daemon in this group and in no other.
    try:
        return Chosen(launcher=launcher, group=(state / "jobs").stat().st_gid)
    except OSError as error:
        raise LauncherError(f"{error.filename}: {error.strerror}; `supervisorctl setup` makes it") from error
