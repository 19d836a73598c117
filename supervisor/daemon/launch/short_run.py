"""Runs a short command between two attempts of a job: as the same user, and through the same launcher."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from supervisor import untrusted_files
from supervisor.daemon.clock import Clock, begin_limit
from supervisor.runner import evidence
from supervisor.runner.attempt_folder import describe_launch, lay_out, make_attempt_folder, point, read_exit
from supervisor.runner.code_copy import Code
from supervisor.runner.launcher import Launcher, kill_until_gone

FOLDER = "environment-"
LOOK_EVERY_S = 0.1
KILL_AGAIN_S = 0.5
SHIM_LIMITS_S = 5.0


class ShortRuns:
    """May be used in any thread; the runs of one job come one after another."""

    def __init__(
        self, clock: Clock, state: Path, launcher: Launcher, code: Callable[[], Code], group: int | None
    ) -> None:
        self._clock = clock
        self._state = state
        self._launcher = launcher
        self._code = code
        self._group = group
        self._locks: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def folder(self, job: str, number: int) -> Iterator[Path]:
        """Give the folder of one run, after attempt `number`; nothing of this run or an earlier one is left after it.

        Raises LaunchError, OSError.
        """
        with self._locks.setdefault(job, threading.Lock()):
            # A name of its own: what a launcher knows of a folder is true of one start alone.
            folder = self._state / "jobs" / job / f"{FOLDER}{number}-{self._clock.now().unix_s * 1000:.0f}"
            for earlier in untrusted_files.list_names(folder.parent).names:
                if earlier.startswith(FOLDER):  # an earlier daemon ended during its run
                    kill_until_gone(self._launcher, job, folder.with_name(earlier), KILL_AGAIN_S)
                    untrusted_files.remove_tree(folder.parent, earlier)
            try:
                yield folder
                kill_until_gone(self._launcher, job, folder, KILL_AGAIN_S)
            finally:
                # Where nothing was run, `current` may be a later attempt's.
                if untrusted_files.entry_exists(folder.parent, folder.name):
                    with contextlib.suppress(OSError):
                        point(folder.parent, Path(str(number)))
                        untrusted_files.remove_tree(folder.parent, folder.name)

    def run(  # noqa: PLR0913 - what a command is run with
        self,
        folder: Path,
        number: int,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        limit_s: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> str | None:
        """Return why a command failed, as it printed it last; None if it succeeded. Raises LaunchError, OSError."""
        job = folder.parent.name
        launch = describe_launch(job, number, argv=argv, cwd=cwd, env=env, grace_s=SHIM_LIMITS_S, save_s=0.0)
        make_attempt_folder(folder, self._group)
        lay_out(folder, launch, self._group, None, self._code())
        limit = begin_limit(self._clock, limit_s)
        self._launcher.launch(job, folder)
        while self._launcher.alive(job, folder):
            if limit.next_wait_s() == 0:
                return f"it did not end within {limit_s:.0f} s"
            if not is_wanted():
                return "it was no longer wanted"
            time.sleep(LOOK_EVERY_S)
        status = read_exit(folder, self._clock.now())
        if status is not None and status.clean:
            return None
        printed = evidence.read_output_tail(folder).strip().rpartition("\n")[2]
        return printed or ("it ended without an exit record" if status is None else status.words)
