"""How a job's checkpoints are proven: beside the daemon where it may read them, else as a run of their owner."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from supervisor.config.settings import JobSettings
from supervisor.core.checkpoints import Checkpoint
from supervisor.daemon.resume import Prove
from supervisor.runner.launcher import Launcher
from supervisor.runner.proving import Prover, interpreter_of


def prover_of(launcher: Launcher, state: Path, group: int | None) -> Callable[[str, JobSettings], Prove]:
    """Return what gives each job its prover."""

    def prover(job: str, settings: JobSettings) -> Callable[[Path], Checkpoint]:
        path = {**os.environ, **settings.env}.get("PATH") or os.defpath
        cwd = settings.cwd or str(Path.cwd())
        python = Path(settings.python) if settings.python else interpreter_of(settings.command, cwd, path)
        return Prover(python).prove

    return prover
