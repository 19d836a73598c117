"""Work that is done in a thread of its own until it is complete: ending everything of one launch with SIGKILL."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from supervisor.core import attempt_files as fo
from supervisor.runner.launcher import Launcher

KILL_ROUNDS_BY_SHIM = 2
BUSY_ROUNDS = 10
RESTING_KILL_S = 30.0


def kill_until_gone(launcher: Launcher, job: str, folder: Path, again_s: float) -> None:
    """SIGKILL until nothing is left: by the shim first, which reports the exit; from outside after that."""
    kill, rounds = signal.Signals[fo.SHIM_KILL], 0
    while launcher.alive(job, folder):
        if rounds >= KILL_ROUNDS_BY_SHIM or not launcher.signal(job, folder, kill):
            launcher.kill_all(job, folder)
        rounds += 1
        time.sleep(again_s if rounds < BUSY_ROUNDS else RESTING_KILL_S)
