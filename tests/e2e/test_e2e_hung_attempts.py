"""The folder of one job's attempts lies on a file system that hangs: other jobs, and the next start, do not wait."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house

from supervisor.runner import process_table
from tests.rigs.hanging_fs import HangingFs, hanging
from tests.rigs.stepped_clock import SteppedClock

pytestmark = [pytest.mark.mounts, pytest.mark.calm(reason="mostly waits for what hangs")]
DAY_S = 86400


@pytest.fixture
def far(tmp_path: Path) -> Iterator[HangingFs]:
    (tmp_path / "house/state/jobs").mkdir(parents=True)
    with hanging(tmp_path / "house/state/jobs/far", tmp_path / "behind", asked_on_close=False) as served:
        yield served


@pytest.fixture
def home(tmp_path: Path, far: HangingFs, code_copies: Path) -> Iterator[House]:
    """An installation with two trainings, of which the folder of one lies there."""
    with house(tmp_path / "house") as item:
        item.shares_imports, item.code_copies = True, code_copies
        item.write(item.by_hand("far") + item.by_hand("well"))
        yield item
        far.end()  # or what waits there cannot be ended


def both_train(home: House, env: dict[str, str] | None = None) -> int:
    """Return the pid of the training whose folder will hang."""
    home.start(env=env)
    home.step("well", 20)
    pid: int = home.step("far", 30)["pid"]
    return pid


def restart(home: House) -> None:
    """Kill the daemon, which may wait in the kernel for as long as that disk hangs, and start the next."""
    assert home.daemon is not None
    home.daemon.kill()
    home.start()


def named(home: House) -> bool:
    return any("state/jobs/far does not answer" in text for text in home.job("far")["degraded"])


def goes_on(home: House, job: str) -> None:
    assert home.step(job, home.steps_made(job)[-1] + 30)["attempt"] == 1


def test_the_next_daemon_starts_and_takes_the_training_up_once_its_folder_answers(home: House, far: HangingFs) -> None:
    pid = both_train(home)
    far.hang()
    restart(home)
    home.until(lambda: named(home), 20, "the folder that hangs to be named")
    goes_on(home, "well")
    far.go_on()
    goes_on(home, "far")
    home.until(lambda: not home.job("far")["degraded"], 20, "it to be followed")
    job = home.job("far")
    assert (job["phase"], job["pid"]) == ("running", pid)
    assert home.incidents("far") == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stop_reaches_the_training_while_its_folder_hangs(home: House, far: HangingFs, restarted: bool) -> None:
    """What runs is asked of the kernel; how it ended may be read later, or never."""
    pid = both_train(home)
    far.hang()
    if restarted:
        restart(home)
    assert home.client.post("/v1/jobs/far/stop") is not None
    # What it has open there may keep it in the kernel beyond SIGKILL; it makes no step any more.
    home.until(
        lambda: (process := process_table.read_process(pid)) is None or process.state in "DZX", 30, "the training's end"
    )
    made = home.steps_made("far")
    goes_on(home, "well")
    assert home.steps_made("far") == made
    assert home.job("far")["phase"] in ("stopping", "killing", "stopped")
    far.go_on()
    home.phase("far", "stopped")


def test_the_sweep_of_the_other_jobs_does_not_wait_for_it(tmp_path: Path, home: House, far: HangingFs) -> None:
    clock = SteppedClock(tmp_path)
    both_train(home, clock.environment)
    replay = home.state / "jobs/well/triage-1"
    replay.mkdir()
    made_unix_s = replay.stat().st_mtime - 3 * DAY_S
    os.utime(replay, (made_unix_s, made_unix_s))
    far.hang()
    clock.step_to(DAY_S // 2)  # whatever is done from time to time is done again after a step
    home.until(lambda: not replay.exists(), 30, "the sweep of the other job")
    goes_on(home, "well")
