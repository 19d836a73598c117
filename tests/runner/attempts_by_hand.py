"""Real attempts for the runner's tests: started, waited for with a deadline, and never left behind."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from supervisor.core import attempt_files as names
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus
from supervisor.runner import attempt_folder as attempts
from supervisor.runner import process_table
from supervisor.runner.direct import DirectLauncher

LIMIT_S = 120.0
NOW = Moment(1000.0, 2_000_000_000.0)


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait for a condition; fail where it does not come true in time."""
    deadline = time.perf_counter() + limit_s
    while not condition():
        assert time.perf_counter() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.005)


def gone(pid: int) -> bool:
    """Whether a process has ended, though it may wait to be reaped."""
    process = process_table.read_process(pid)
    return process is None or process.dead


class Attempts:
    """Attempts of one job under one state directory, with the launcher that starts them."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.launcher = DirectLauncher()
        self.number = 0
        self.folders: list[Path] = []

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self.folders:
            self.launcher.kill_all("job", folder)
        until(lambda: not any(self.launcher.alive("job", item) for item in self.folders), "the end of every process")

    def prepare(self, argv: list[str], *, cwd: str = "/", env: dict[str, str] | None = None, save_s: float = 5) -> Path:
        self.number += 1
        folder = attempts.prepare(
            self.state, "job", self.number, argv=argv, cwd=cwd, env=env or {}, grace_s=1, save_s=save_s, group=None
        )
        self.folders.append(folder)
        return folder

    def launch(self, argv: list[str], *, env: dict[str, str] | None = None, save_s: float = 5) -> Path:
        folder = self.prepare(argv, env=env, save_s=save_s)
        self.launcher.launch("job", folder)
        return folder

    def python(
        self, code: str, *, env: dict[str, str] | None = None, save_s: float = 5, below: Sequence[str] = ()
    ) -> Path:
        """Launch a Python training; it has set up once `ready` lies in its folder (see READY)."""
        folder = self.prepare([*below, sys.executable, "-c", code], env=env, save_s=save_s)
        launch = json.loads((folder / names.LAUNCH).read_text())
        launch["cwd"] = str(folder)
        (folder / names.LAUNCH).write_text(json.dumps(launch))
        self.launcher.launch("job", folder)
        return folder

    def note(self, folder: Path) -> attempts.ShimNote:
        note = attempts.read_shim(folder)
        assert note is not None
        return note

    def signal(self, folder: Path, name: str) -> None:
        assert self.launcher.signal("job", folder, getattr(signal, name))

    def exit(self, folder: Path) -> ExitStatus:
        until((folder / names.EXIT).exists, "exit.json")
        status = attempts.read_exit(folder, NOW)
        assert status is not None
        return status

    def exit_facts(self, folder: Path) -> dict[str, object]:
        self.exit(folder)
        facts = json.loads((folder / names.EXIT).read_text())
        assert isinstance(facts, dict)
        return facts


def pids_in(path: Path) -> list[int]:
    """Return the process numbers that a training wrote into a file, one a line."""
    return [int(line) for line in path.read_text().split()]
