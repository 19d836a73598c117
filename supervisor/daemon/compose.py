"""What launch.json says of an attempt: the job's settings, the remedies and its past in one; it prepares no folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.config.derive import conv2d_environment, snapshot_every
from supervisor.config.settings import JobSettings
from supervisor.core.checkpoints import Checkpoint
from supervisor.core.job import Job
from supervisor.daemon.attempt_watch import Clock
from supervisor.daemon.treated import Visible, treated
from supervisor.runner.attempt import agent_path, compose_env


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One launch."""

    argv: list[str]
    cwd: str
    env: Mapping[str, str]
    remedies: Mapping[str, object]
    """For remedies.json; empty without the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """May be asked in any thread."""

    clock: Clock
    state: Path
    settings: Callable[[str], JobSettings]
    gfx_versions: Callable[[JobSettings], tuple[str, ...]]
    visible: Callable[[str | None], Visible | None]
    """How a training is shown the card of that address alone."""
    with_agent: Callable[[], bool]

    def __call__(self, job: Job, number: int, checkpoint: Checkpoint | None) -> Composed:
        """Return how attempt `number` of a job is launched, from a checkpoint or from the beginning.

        Raises ValueError where the agent could be anybody's.
        """
        settings, folder = self.settings(job.name), self.state / "jobs" / job.name / str(number)
        launch = treated(settings, job, checkpoint, self.gfx_versions(settings), self.visible(job.card))
        planned = conv2d_environment(settings)
        return Composed(
            argv=launch.argv,
            cwd=settings.cwd or str(folder),
            env=compose_env(
                job=job.name,
                number=number,
                folder=folder,
                env=launch.env,
                inherited=os.environ,
                agent=agent_path() if self.with_agent() else None,
                conv2d=launch.conv2d,
                # What a remedy set of them for this attempt counts.
                conv2d_settings={name: launch.env.get(name, value) for name, value in planned.items()},
                resume_from=checkpoint.path if checkpoint else None,
                snapshot_every=snapshot_every(settings),
                mean_fault_s=job.ledger.mean_fault_s(self.clock.now(), job.began_unix_s, settings.budget),
            ),
            remedies=launch.remedies if self.with_agent() else {},
        )
