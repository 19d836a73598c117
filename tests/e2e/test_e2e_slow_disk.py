"""A disk whose commits take seconds, or fail, under the record: decisions, acts and answers come as they do else."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
from house import PATIENCE_S, House

from tests.rigs.hanging_fs import HangingFs

pytestmark = pytest.mark.mounts
mostly_waits = pytest.mark.calm(reason="compares durations with limits, and mostly waits for what hangs")
beside_others = pytest.mark.calm(reason="a stall of a few seconds would be found")

SYNC_S = 5.0
STALL_S = 2.0
IN_TIME_S = 0.5
ANSWER_S = 0.1
ACT_S = 4.0
"""From the decision to the end of the process: a second for the commit, evidence, and the training's own end."""
HANGS_AT = 150


@pytest.fixture
def home(home_beside_disk: House, disk: HangingFs) -> House:
    """An installation with its record on that disk, and a training that will hang by itself."""
    home_beside_disk.write(
        "[telemetry]\ninterval_s = 0.5\n"
        + home_beside_disk.by_hand("night", "--wound", f"hang:{HANGS_AT}", stall=f"limit_s = {STALL_S}"),
        head=f'database = "sqlite:///{disk.at}/supervisor.db"',
    )
    return home_beside_disk


def problem(home: House) -> object:
    """What the daemon says is wrong with it; "no answer" where it gives none."""
    status = home.status()
    return "no answer" if status is None else status["daemon"]["problem"]


def wait_for_stop(home: House) -> tuple[float, float, list[float]]:
    """Return how late the hang was decided and its process ended, and how long each answer took meanwhile; seconds."""
    answers: list[float] = []
    decided: float | None = None
    pid = home.job("night")["pid"]
    end = time.perf_counter() + 60
    while time.perf_counter() < end and Path(f"/proc/{pid}").exists():
        began = time.perf_counter()
        status = home.status()
        answers.append(time.perf_counter() - began)
        assert status is not None, home.read_output()
        if decided is None and status["jobs"][0]["phase"] == "stopping":
            decided = status["jobs"][0]["since"]
        time.sleep(0.02)
    hung = (home.folder / "night" / "steps.log").stat().st_mtime
    assert decided is not None, home.read_output()
    return decided - hung - STALL_S, time.time() - decided, answers  # noqa: TID251 - compared with the daemon's clock


def kill_under_hung_disk(home: House, disk: HangingFs) -> None:
    """SIGKILL to the daemon; a thread of it that waits for the disk ends once that answers, and does nothing more."""
    assert home.daemon is not None
    home.daemon.kill()
    disk.go_on()
    home.daemon.wait(PATIENCE_S)


@mostly_waits
def test_commits_that_take_seconds_delay_no_decision_no_stop_and_no_answer(home: House, disk: HangingFs) -> None:
    home.start()
    home.step("night", 20)
    disk.sync_s = SYNC_S
    late_s, ended_s, answers = wait_for_stop(home)
    assert disk.synced, "the record was synced to the disk meanwhile"
    assert late_s <= IN_TIME_S
    assert ended_s <= ACT_S
    assert sorted(answers)[int(len(answers) * 0.9)] <= ANSWER_S
    assert "act.before_commit" in home.read_output()
    home.until(lambda: "the disk is slow" in str(problem(home)), 20, "it to be told")
    disk.sync_s = 0.0
    home.resumed("night")
    home.until(lambda: problem(home) is None, 30, "the problem to be over")
    assert [incident["rule"] for incident in home.incidents("night")] == ["stall"]


@beside_others
def test_a_stop_of_the_user_outlives_a_daemon_that_dies_before_its_commit(home: House, disk: HangingFs) -> None:
    home.start()
    pid = home.step("night", 20)["pid"]
    disk.hang()
    home.client.post("/v1/jobs/night/stop")
    home.until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the training to end")
    assert "act.before_commit" in home.read_output()
    kill_under_hung_disk(home, disk)
    home.start()
    home.phase("night", "stopped")
    assert home.job("night")["attempt"] == 1
    assert "request.restored" in home.read_output(), "the record did not know"
    assert home.ctl("start", "night").returncode == 0
    home.step("night", 30, attempt=2)
    home.kill()
    home.start()
    assert home.step("night", 40, attempt=2)["phase"] != "stopped", "the stop was taken back"


@pytest.mark.long
@mostly_waits
def test_a_disk_that_never_answers_again_keeps_no_training_from_its_stop_and_its_next_attempt(
    home: House, disk: HangingFs
) -> None:
    home.start()
    home.step("night", 130)
    disk.hang()
    late_s, ended_s, answers = wait_for_stop(home)
    assert late_s <= IN_TIME_S
    assert ended_s <= ACT_S
    assert sorted(answers)[int(len(answers) * 0.9)] <= ANSWER_S
    home.until(lambda: (home.job("night")["step"] or 0) > HANGS_AT, 90, "it to step beyond where it hung")
    assert home.job("night")["attempt"] == 2
    assert "the disk does not answer" in str(problem(home))
    assert any("NotRecordedError: attempt 2 was launched" in item for item in home.job("night")["degraded"])
    assert "the disk does not answer" in home.ctl("doctor").stdout
    disk.go_on()
    home.until(lambda: problem(home) is None and not home.job("night")["degraded"], 60, "all of it to be recorded")
    assert [incident["rule"] for incident in home.incidents("night")] == ["stall"]


@beside_others
def test_an_attempt_that_was_launched_without_the_record_is_adopted_by_the_next_daemon(
    home: House, disk: HangingFs
) -> None:
    home.start()
    home.step("night", 130)
    disk.hang()
    home.until(lambda: (home.job("night")["step"] or 0) > HANGS_AT, 90, "it to step beyond where it hung")
    pids = home.training_pids()
    kill_under_hung_disk(home, disk)
    home.start()
    home.step("night", HANGS_AT + 20, attempt=2)
    assert home.training_pids() == pids, "the same shim and training, and no other"


@mostly_waits
def test_a_disk_that_fails_under_the_record_stops_no_supervision_and_is_reported(home: House, disk: HangingFs) -> None:
    home.start()
    home.step("night", 20)
    disk.failure = errno.EIO
    late_s, ended_s, answers = wait_for_stop(home)
    assert late_s <= IN_TIME_S
    assert ended_s <= ACT_S
    assert sorted(answers)[int(len(answers) * 0.9)] <= ANSWER_S
    home.until(lambda: "I/O error" in str(problem(home)), 20, "the disk that fails to be told")
    home.until(lambda: home.job("night")["attempt"] == 2, 40, "it to be resumed")
    home.until(lambda: (home.job("night")["step"] or 0) > HANGS_AT, 60, "it to step beyond where it hung")
    disk.failure = None
    home.until(lambda: problem(home) is None, 30, "the record to be written again")
    assert [incident["rule"] for incident in home.incidents("night")] == ["stall"]
