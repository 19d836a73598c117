"""Proves that a job's other environment can go on from a checkpoint, before an attempt is launched in it.

The proof runs where an attempt would, as the same user and in the same container: it imports torch and loads the file.
For the starts that a tune measures it is not repeated while nothing of it has changed: one that fails all the same
costs neither budget nor incident.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.config.environments import command_in
from supervisor.config.settings import EnvironmentSettings, JobSettings
from supervisor.core.attempt_files import RUN
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.foreign_values import cut
from supervisor.core.job import DesiredState, Job, Phase
from supervisor.core.sanitize import without_secrets
from supervisor.daemon.launch.containers import Containers
from supervisor.daemon.launch.environment_stamp import read_stamp
from supervisor.daemon.launch.launch_spec import container_of, in_container
from supervisor.daemon.launch.short_run import ShortRuns
from supervisor.runner.launcher import EngineError, LaunchError

log = logging.getLogger(__name__)

LIMIT_S = 120.0
"""Importing torch from a cold disk takes most of a minute."""
WORDS_MAX = 300
PROGRAM = """\
import os, resource, sys
path, limit_s = sys.argv[1], int(sys.argv[2])
size = os.path.getsize(path) if os.path.isfile(path) else 0
for limit, value in ((resource.RLIMIT_CPU, limit_s), (resource.RLIMIT_DATA, (8 << 30) + 4 * size)):
    most = resource.getrlimit(limit)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))
try:
    import torch
    if path.endswith(".safetensors"):
        import safetensors.torch
        safetensors.torch.load_file(path)
    elif os.path.isfile(path):
        import inspect
        full = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
        torch.load(path, map_location="cpu", **full)
    elif path:
        os.listdir(path)
except BaseException as error:
    print(f"torch {getattr(sys.modules.get('torch'), '__version__', 'not imported')}: "
          f"{type(error).__name__}: {' '.join(str(error).split())}")
    sys.exit(1)
"""
"""A snapshot is a file of torch's; of a folder only its parts' place is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProof:
    """Works in the thread of its caller, for `LIMIT_S` at most and until nothing of the proof runs any more."""

    runs: ShortRuns
    containers: Containers
    settings: Callable[[str], JobSettings]
    job: Callable[[str], Job | None]
    proven: dict[tuple[str, str | None], object | None] = field(default_factory=dict)
    """By job and environment: what the newest proof was of, None where that found a problem or is not known."""

    def find_problem(self, job: Job, checkpoint: Checkpoint | None) -> str | None:
        """Return why the job cannot go on from a checkpoint in the environment that a remedy chose; None: it can."""
        environment = self.settings(job.name).environments.get(job.environment or "")
        if environment is None:
            return None  # it runs in its own
        subject, of = self._identify(job, environment, checkpoint), (job.name, job.environment)
        try:
            self.containers.clear(job.name, job.number + 1)
            if subject is not None and _is_measured_start(job) and self.proven.get(of) == subject:
                return None
            with self.runs.folder(job.name, job.number) as folder:
                problem = self._prove(job, environment, folder, checkpoint)
        except EngineError:
            return None  # the launch waits for the engine, and is not to be refused for it
        except (LaunchError, OSError, ValueError) as error:
            problem = f"it could not be started there: {error}"
        self.proven[of] = subject if problem is None else None
        words = None if problem is None else cut(without_secrets(problem), WORDS_MAX)
        fields = {"job": job.name, "environment": job.environment, "problem": words}
        log.warning("environment.proof_ended", extra={"fields": fields})
        return words

    def _identify(self, job: Job, environment: EnvironmentSettings, checkpoint: Checkpoint | None) -> object | None:
        """Return all that a proof depends on; None where it is not known, as of a container's image."""
        stamp = None if environment.python is None else read_stamp(environment.python)
        if stamp is None or environment.image is not None or checkpoint is None:
            return None
        settings = self.settings(job.name)
        return (environment, settings.env, settings.cwd, checkpoint.key, stamp)

    def _prove(
        self, job: Job, environment: EnvironmentSettings, folder: Path, checkpoint: Checkpoint | None
    ) -> str | None:
        settings, file = self.settings(job.name), "" if checkpoint is None else checkpoint.path
        argv = command_in(environment, ["python", "-c", PROGRAM, file, f"{LIMIT_S:.0f}"])
        hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
        cwd = settings.cwd or str(folder / RUN)  # a pickle may need the job's own modules
        env = {**settings.env, **environment.env, **hidden}
        container = container_of(environment, folder.parent, "proof")
        if container is not None:
            argv = in_container(environment, container, argv, cwd=cwd, env=env, folder=folder, checkpoint=checkpoint)
        problem = self.runs.run(
            folder, job.number, argv, cwd=cwd, env=env, limit_s=LIMIT_S, is_wanted=lambda: self._is_wanted(job)
        )
        return None if problem is None else f"{Path(file).name or 'torch'} does not load there: {problem}"

    def _is_wanted(self, job: Job) -> bool:
        now = self.job(job.name)
        return now is not None and now.phase is Phase.BACKOFF and now.desired_state is DesiredState.RUN


def _is_measured_start(job: Job) -> bool:
    """Whether it is one of several that a tune measures; one that fails costs the training nothing."""
    order = job.retry.order if job.retry is not None else None
    return order is not None and order.measures
