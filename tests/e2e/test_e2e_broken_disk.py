"""A disk that answers every request with an I/O error, under all of the state: trainings go on and are judged."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from house import House

from tests.rigs.hanging_fs import HangingFs
from tests.rigs.laid_code import lay_code

pytestmark = [pytest.mark.mounts, pytest.mark.calm(reason="a stall of a few seconds would be found")]

HANGS_AT = 400
FAILURES = ("Input/output error", "disk I/O error", "unable to open database file")
"""What is told of a record on such a disk; the last after the first try to open it again, within two seconds."""


@pytest.fixture
def home(home_beside_disk: House, disk: HangingFs, tmp_path: Path, code_copies: Path) -> House:
    """An installation with all its state on that disk, but for the socket, and a training that will hang by itself."""
    item = home_beside_disk
    item.state = disk.at / "state"
    lay_code(code_copies, disk.real / "state")
    item.client.path = str(tmp_path / "control.sock")
    job = item.by_hand("one", "--wound", f"hang:{HANGS_AT}", table="checkpoints.keep = false", stall="limit_s = 2")
    item.write(f"[telemetry]\ninterval_s = 0.5\n{job}", head=f'socket = "{item.client.path}"')
    return item


def problem(home: House) -> str:
    status = home.status()
    assert status is not None, home.read_output()
    return str(status["daemon"]["problem"])


@pytest.mark.long
def test_a_disk_that_fails_under_all_of_the_state_stops_no_supervision_and_loses_nothing(
    home: House, disk: HangingFs
) -> None:
    home.start()
    home.step("one", 100)
    disk.failure, disk.all_fails = errno.EIO, True
    home.until(lambda: any(text in problem(home) for text in FAILURES), 30, "it to be told")
    home.until(lambda: home.job("one")["phase"] == "backoff", 60, "the training that hung to be stopped meanwhile")
    assert len(home.steps_made("one")) == HANGS_AT - 1, "it went on while the disk failed"
    assert home.job("one")["attempt"] == 1, "no attempt is spent on a disk that fails"
    disk.failure, disk.all_fails = None, False
    home.until(lambda: problem(home) == "None", 60, "the disk that works again to be told")
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"]) == ("stall", HANGS_AT - 1)
    home.until(
        lambda: home.query("SELECT SUM(steps) FROM step_metrics WHERE attempt = 1") == [(HANGS_AT - 1,)],
        60,
        "every step of the first attempt to be recorded",
    )
    home.until(lambda: not home.job("one")["degraded"], 60, "nothing to be degraded any more")
    assert "store.file_replaced" not in home.log.read_text(), "nobody had replaced the record"


def _waits_for_disk(home: House) -> bool:
    return any("cannot be written" in why for why in home.job("one")["degraded"])


@pytest.mark.long
def test_a_disk_that_can_be_read_and_not_written_spends_no_attempt_on_launches(home: House, disk: HangingFs) -> None:
    """What to resume from is found, and no attempt can be laid out: it waits for the disk in the one that hung."""
    home.start()
    home.step("one", 100)
    disk.failure = errno.EIO
    home.until(lambda: home.job("one")["phase"] == "backoff", 60, "the training that hung to be stopped")
    home.until(lambda: _waits_for_disk(home) or home.job("one")["attempt"] > 1, 30, "the disk to be named")
    refused = disk.failed
    home.until(lambda: disk.failed > refused + 4, 60, "many more requests to be refused")
    assert home.job("one")["attempt"] == 1
    assert len(home.steps_made("one")) == HANGS_AT - 1
    disk.failure = None
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"], home.job("one")["attempt"]) == ("stall", HANGS_AT - 1, 2)


@pytest.mark.long
def test_steps_that_a_node_cannot_read_stop_no_training_and_a_hang_is_found_once_they_can_be_read(
    home: House, disk: HangingFs
) -> None:
    """A node opens the files of an attempt for each read, which such a disk refuses."""
    home.config.write_text(home.config.read_text().replace('launcher = "direct"', 'launcher = "held"'))
    home.start()
    home.step("one", 50)
    disk.failure, disk.all_fails = errno.EIO, True
    home.until(lambda: any("recorder.bin" in why for why in home.job("one")["degraded"]), 30, "it to be named")
    home.until(lambda: len(home.steps_made("one")) == HANGS_AT - 1, 60, "the training to go on")
    looks = disk.failed
    home.until(lambda: disk.failed > looks + 200, 60, "many looks")
    assert (home.job("one")["phase"], home.job("one")["attempt"]) == ("running", 1)
    disk.failure, disk.all_fails = None, False
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"]) == ("stall", HANGS_AT - 1)
    home.until(lambda: not home.job("one")["degraded"], 60, "nothing to be degraded any more")
