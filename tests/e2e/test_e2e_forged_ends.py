"""A training writes into its own folder that it has ended: it is supervised on, and never runs twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from house import House

from supervisor.core import attempt_files as fo
from supervisor.runner import process_table

ENDED = {"version": 1, "exit_code": 7, "signal": None}
launchers = pytest.mark.parametrize("launcher", ["direct", "held"])


def one_job(home: House, launcher: str = "direct", **options: str) -> Path:
    """Start a daemon with one training; return the folder of its first attempt once it makes steps."""
    home.write(home.by_hand("one", **options))
    home.config.write_text(home.config.read_text().replace('launcher = "direct"', f'launcher = "{launcher}"'))
    home.start()
    home.step("one", 5)
    return home.state / "jobs/one/1"


def forge_shim(folder: Path, pid: int) -> None:
    process = process_table.read_process(pid)
    ticks = process.start_ticks if process is not None else 1
    (folder / fo.SHIM).write_text(json.dumps({"pid": pid, "start_ticks": ticks, "boot_id": process_table.boot_id()}))


def forge_end(folder: Path, pid: int) -> dict[str, int]:
    """Write as the training can that its shim is `pid`, and how it ended; return what the shim wrote."""
    note: dict[str, int] = json.loads((folder / fo.SHIM).read_text())
    forge_shim(folder, pid)
    (folder / fo.EXIT).write_text(json.dumps(ENDED))
    return note


def no_such_process() -> int:
    return 2**22 - 1


def is_gone(pid: int) -> bool:
    process = process_table.read_process(pid)
    return process is None or process.dead


def goes_on(home: House, pid: int) -> None:
    """Wait until more steps of the first attempt are known, all of the same process."""
    job = home.step("one", home.steps_made("one")[-1] + 30)
    assert (job["attempt"], job["phase"], job["pid"]) == (1, "running", pid), home.read_output()
    assert not is_gone(pid)
    assert home.incidents("one") == []


def training_is_stopped(home: House, pid: int) -> None:
    """A stop still reaches the training, which saves and ends."""
    assert home.ctl("stop", "one").returncode == 0
    home.phase("one", "stopped")
    assert is_gone(pid)


@launchers
@pytest.mark.parametrize("named", [no_such_process, os.getpid], ids=["a pid that is free", "another process"])
def test_an_end_that_the_training_wrote_while_it_runs_is_none(
    home: House, launcher: str, named: Callable[[], int]
) -> None:
    folder = one_job(home, launcher)
    note = forge_end(folder, named())
    goes_on(home, note["training_pid"])
    training_is_stopped(home, note["training_pid"])


@pytest.mark.parametrize("named", [no_such_process, os.getpid], ids=["a pid that is free", "another process"])
def test_a_daemon_that_starts_on_a_forged_end_adopts_the_training(home: House, named: Callable[[], int]) -> None:
    """It took the shim for gone, and ended the training that this had left."""
    folder = one_job(home)
    home.kill()
    note = forge_end(folder, named())
    home.start()
    goes_on(home, note["training_pid"])
    training_is_stopped(home, note["training_pid"])


def runs_once(home: House, before: int) -> None:
    """The second attempt is prepared once the process of the first is gone."""
    home.until((home.state / "jobs/one/2").exists, 30, "the next attempt")
    assert is_gone(before)
    home.step("one", home.steps_made("one")[-1] + 30, attempt=2)


@launchers
@pytest.mark.parametrize("restarted", [False, True], ids=["living daemon", "restarted daemon"])
def test_what_a_killed_shim_left_ends_before_the_next_attempt(home: House, launcher: str, restarted: bool) -> None:
    """The notes name a process that never was, so that a later daemon does not know its session."""
    folder = one_job(home, launcher)
    note = forge_end(folder, no_such_process())
    if restarted:
        os.kill(note["pid"], signal.SIGSTOP)  # the training has hold of its shim: with the daemon's end it does nothing
        home.kill()
    os.kill(note["pid"], signal.SIGKILL)
    if restarted:
        assert not is_gone(note["training_pid"])
        home.start()
    runs_once(home, note["training_pid"])
