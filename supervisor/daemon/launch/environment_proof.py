"""Proves that a job's other environment can go on from a checkpoint, before an attempt is launched in it.

The proof runs as an attempt would, as the same user: it imports torch and loads the file.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor import untrusted_files
from supervisor.config.environments import command_in
from supervisor.config.settings import EnvironmentSettings, JobSettings
from supervisor.core.attempt_files import RUN
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.foreign_values import cut
from supervisor.core.job import DesiredState, Job, Phase
from supervisor.core.sanitize import without_secrets
from supervisor.daemon.clock import Clock
from supervisor.runner import evidence, shim
from supervisor.runner.attempt_folder import lay_out, make_attempt_folder, point, read_exit
from supervisor.runner.code_copy import Code
from supervisor.runner.launcher import Launcher, LaunchError, kill_until_gone

log = logging.getLogger(__name__)

FOLDER = "environment-"
LIMIT_S = 120.0
"""Importing torch from a cold disk takes most of a minute."""
LOOK_EVERY_S = 0.1
KILL_AGAIN_S = 0.5
WORDS_MAX = 300
SHIM_LIMITS_S = 5.0
PROGRAM = """\
import os, resource, sys
path, limit_s = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
size = os.path.getsize(path) if os.path.isfile(path) else 0
resource.setrlimit(resource.RLIMIT_DATA, ((8 << 30) + 4 * size,) * 2)
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

    clock: Clock
    state: Path
    launcher: Launcher
    settings: Callable[[str], JobSettings]
    job: Callable[[str], Job | None]
    code: Callable[[], Code]
    group: int | None

    def find_problem(self, job: Job, checkpoint: Checkpoint | None) -> str | None:
        """Return why the job cannot go on from a checkpoint in the environment that a remedy chose; None: it can."""
        environment = self.settings(job.name).environments.get(job.environment or "")
        if environment is None:
            return None  # it runs in its own
        # A name of its own: what a launcher knows of a folder is true of one start alone.
        folder = self.state / "jobs" / job.name / f"{FOLDER}{job.number}-{self.clock.now().unix_s * 1000:.0f}"
        try:
            for earlier in untrusted_files.list_names(folder.parent).names:
                if earlier.startswith(FOLDER):  # an earlier daemon ended in its proof
                    kill_until_gone(self.launcher, job.name, folder.with_name(earlier), KILL_AGAIN_S)
                    untrusted_files.remove_tree(folder.parent, earlier)
            problem = self._prove(job, environment, folder, checkpoint)
            kill_until_gone(self.launcher, job.name, folder, KILL_AGAIN_S)
        except (LaunchError, OSError, ValueError) as error:
            problem = f"it could not be started there: {error}"
        with contextlib.suppress(OSError):
            point(folder.parent, folder.with_name(str(job.number)))
            untrusted_files.remove_tree(folder.parent, folder.name)
        words = None if problem is None else cut(without_secrets(problem), WORDS_MAX)
        fields = {"job": job.name, "environment": job.environment, "problem": words}
        log.warning("environment.proof_ended", extra={"fields": fields})
        return words

    def _prove(
        self, job: Job, environment: EnvironmentSettings, folder: Path, checkpoint: Checkpoint | None
    ) -> str | None:
        settings, code = self.settings(job.name), self.code()
        file = "" if checkpoint is None else checkpoint.path
        argv = command_in(environment, ["python", "-c", PROGRAM, file, f"{LIMIT_S:.0f}"])
        hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
        cwd = settings.cwd or str(folder / RUN)  # a pickle may need the job's own modules
        launch = {
            "version": shim.VERSION,
            "job": job.name,
            "attempt": job.number,
            "argv": argv,
            "cwd": cwd,
            "env": {**settings.env, **environment.env, **hidden},
            "grace_s": SHIM_LIMITS_S,
            "save_s": 0.0,
        }
        make_attempt_folder(folder, self.group)
        lay_out(folder, launch, self.group, None, code)
        began = self.clock.now()
        self.launcher.launch(job.name, folder)
        while self.launcher.alive(job.name, folder):
            if self.clock.now().seconds_since(began) >= LIMIT_S:
                return f"its proof did not end within {LIMIT_S:.0f} s"
            if not self._is_wanted(job):
                return "the proof was no longer wanted"
            time.sleep(LOOK_EVERY_S)
        status = read_exit(folder, self.clock.now())
        if status is not None and status.clean:
            return None
        printed = evidence.read_output_tail(folder).strip().rpartition("\n")[2]
        ending = "ended without an exit record" if status is None else status.words
        return f"{Path(file).name or 'torch'} does not load there: {printed or ending}"

    def _is_wanted(self, job: Job) -> bool:
        now = self.job(job.name)
        return now is not None and now.phase is Phase.BACKOFF and now.desired_state is DesiredState.RUN
