"""Removes the containers of a job's attempts, so that no training runs in one while the next attempt does."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.shared_files import replace_file
from supervisor.config.environments import removal
from supervisor.config.settings import JobSettings
from supervisor.core import attempt_files as fo
from supervisor.core.foreign_values import cut
from supervisor.core.sanitize import without_secrets
from supervisor.daemon.launch.short_run import ShortRuns
from supervisor.runner.launcher import EngineError, LaunchError

log = logging.getLogger(__name__)

LIMIT_S = 20.0
FILE_LIMIT_BYTES = 4096
WORDS_MAX = 300


class Containers:
    """Works in the threads of its callers.

    A container's file is written before its attempt is launched, and lives until the engine said that it is gone.
    """

    def __init__(self, state: Path, runs: ShortRuns, settings: Callable[[str], JobSettings], boot_id: str) -> None:
        self._state = state
        self._runs = runs
        self._settings = settings
        self._boot_id = boot_id

    def keep(self, job: str, number: int, container: str) -> None:
        """Record the container of an attempt before it is launched. Raises OSError."""
        facts = {"attempt": number, "name": container, "boot_id": self._boot_id}
        replace_file(self._folder(job) / fo.CONTAINER, json.dumps(facts).encode("ascii"), 0o600, sync=True)

    def clear(self, job: str, before: int) -> None:
        """Have the container of the attempts before `before` removed; raise EngineError where that is not sure."""
        try:
            if self._read_kept(job, before) is None:
                return
            with self._runs.folder(job, before - 1) as folder:
                problem = self._remove_kept(folder, job, before)
        except (LaunchError, OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            words = cut(without_secrets(f"whether a container of the job runs is not known: {problem}"), WORDS_MAX)
            log.error("container.not_removed", extra={"fields": {"job": job, "problem": words}})
            raise EngineError(words)

    def _remove_kept(self, folder: Path, job: str, before: int) -> str | None:
        facts = self._read_kept(job, before)
        if facts is None:
            return None  # another thread had it removed
        argv, env = removal(facts["name"]), self._settings(job).env
        problem = self._runs.run(folder, before - 1, argv, cwd=str(folder / fo.RUN), env=env, limit_s=LIMIT_S)
        # What ran before a boot does not run any more, but podman keeps its name, and refuses a second of that name.
        if problem is not None and facts["boot_id"] == self._boot_id:
            return f"podman rm {facts['name']}: {problem}"
        untrusted_files.remove(self._folder(job), fo.CONTAINER)
        return None

    def _read_kept(self, job: str, before: int) -> dict[str, str] | None:
        """Return the container of an attempt before `before`; None where there is none, or it is a later one's."""
        try:
            facts = json.loads(untrusted_files.read_bytes(self._folder(job), fo.CONTAINER, FILE_LIMIT_BYTES))
        except (FileNotFoundError, NotADirectoryError):  # a launch moves a file in the folder's place
            return None
        return facts if int(facts["attempt"]) < before else None

    def _folder(self, job: str) -> Path:
        return self._state / "jobs" / job
