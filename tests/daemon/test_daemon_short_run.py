"""A short command between two attempts: what it came to, and the time that it has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clocks_by_hand import PausedClock

from supervisor.daemon.clock import Clock, SystemClock
from supervisor.daemon.launch.short_run import ShortRuns
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.direct import DirectLauncher

LIMIT_S = 30.0


def run(state: Path, clock: Clock, program: str, limit_s: float) -> str | None:
    runs = ShortRuns(clock, state, DirectLauncher(), lambda: INSTALLED, None)
    (state / "jobs" / "night" / "1").mkdir(parents=True)
    with runs.folder("night", 1) as folder:
        return runs.run(folder, 1, [sys.executable, "-c", program], cwd=str(state), env={}, limit_s=limit_s)


@pytest.mark.parametrize(
    ("program", "limit_s", "problem"),
    [
        ("pass", LIMIT_S, None),
        ("raise SystemExit('no such library')", LIMIT_S, "no such library"),
        ("import time; time.sleep(600)", 1.0, "it did not end within 1 s"),
    ],
)
def test_why_a_command_failed_is_what_it_printed_last(
    tmp_path: Path, program: str, limit_s: float, problem: str | None
) -> None:
    assert run(tmp_path, SystemClock(), program, limit_s) == problem


def test_time_in_which_the_daemon_did_not_run_is_none_that_a_command_has(tmp_path: Path) -> None:
    assert run(tmp_path, PausedClock(), "import time; time.sleep(1.5)", LIMIT_S) is None
