"""A file system that hangs under one training: the daemon says so, waits for nothing, and judges the others in time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house

from tests.rigs.core_waits import OwnTime
from tests.rigs.hanging_fs import HangingFs

pytestmark = pytest.mark.mounts
compares_tenths = pytest.mark.alone(reason="compares durations of tenths of a second with limits")
mostly_waits = pytest.mark.calm(reason="compares durations with limits, and mostly waits for what hangs")

STALL_S = 2.0
IN_TIME_S = 0.5
ANSWER_S = 0.1
HANGS_AT = 100
DOCTOR_LIMIT_S = 60
ENDS_IN_S = 10


@pytest.fixture
def home(tmp_path: Path, code_copies: Path, far: HangingFs) -> Iterator[House]:
    """An installation with a training that lives on that file system, and one that does not and will hang by itself."""
    (tmp_path / "house").mkdir()
    with house(tmp_path / "house") as item:
        item.shares_imports, item.code_copies = True, code_copies
        (item.folder / "far").symlink_to(far.at)
        lives_there = f'cwd = "{far.at}"\ncheckpoints = {{ paths = ["{far.at}/*.safetensors"] }}'
        item.write(
            "[telemetry]\ninterval_s = 0.5\n"
            + item.by_hand("far", table=lives_there, stall="limit_s = 600", deadline="enabled = false")
            + item.by_hand("well", "--wound", f"hang:{HANGS_AT}", stall=f"limit_s = {STALL_S}")
        )
        yield item
        far.end()  # or the training that waits there cannot be ended


def slowest_answer_s(home: House, times: int = 20) -> float:
    """Return how long all but the slowest tenth of answers took at most, without waits for a core."""
    assert home.daemon is not None
    took = []
    for _ in range(times):
        asked = OwnTime(home.daemon.pid)
        assert home.status() is not None, home.read_output()
        took.append(asked.read_s())
        time.sleep(0.05)
    return sorted(took)[int(len(took) * 0.9)]


def judged_late_s(home: House) -> float:
    """Return how long after its limit the training that hung by itself was judged."""
    home.until(lambda: bool(home.incidents("well")), 30, "the training that hung to be judged")
    stood_since = (home.folder / "well" / "steps.log").stat().st_mtime
    (incident,) = home.incidents("well")
    assert incident["rule"] == "stall"
    late_s: float = incident["at"] - stood_since - STALL_S
    return late_s


def named(home: House) -> list[str]:
    degraded: list[str] = home.job("far")["degraded"]
    return [item for item in degraded if "has not answered" in item]


def hung_under_one(home: House, far: HangingFs) -> House:
    """Both train, and then the file system hangs under one of them."""
    home.start()
    home.step("far", 30)
    home.step("well", 20)
    far.hang(beyond_sigkill=True)
    return home


@compares_tenths
def test_the_others_are_judged_in_time_while_one_trainings_disk_hangs(home: House, far: HangingFs) -> None:
    hung_under_one(home, far)
    assert slowest_answer_s(home) <= ANSWER_S
    assert judged_late_s(home) <= IN_TIME_S
    home.resumed("well")
    far.go_on()


@pytest.mark.long
@mostly_waits
def test_a_disk_that_hangs_is_named_and_once_it_answers_its_training_goes_on(home: House, far: HangingFs) -> None:
    hung_under_one(home, far)
    home.until(lambda: bool(named(home)), 40, "the disk that hangs to be named")
    home.resumed("well")
    assert "supervision degraded" in home.ctl("status").stdout
    doctor = home.ctl("doctor", limit_s=DOCTOR_LIMIT_S)
    assert "has not" in doctor.stdout
    assert f"{far.at} does not answer within 1 s" in doctor.stdout
    assert slowest_answer_s(home) <= ANSWER_S
    far.go_on()
    home.until(lambda: not named(home), 30, "the disk that answers again to be told")
    # It may have been judged itself meanwhile, and resumed from what lies there.
    home.until(lambda: home.job("far")["phase"] == "running", 60, "the training on that disk to run")
    step = home.job("far")["step"] or 0
    home.until(lambda: (home.job("far")["step"] or 0) > step + 20, 30, "it to go on")


@compares_tenths
def test_a_daemon_that_starts_while_a_disk_hangs_is_ready_and_judges_the_others(home: House, far: HangingFs) -> None:
    home.start()
    home.step("far", 30)
    home.step("well", 20)
    home.kill()
    far.hang()
    began = time.perf_counter()
    home.start()
    assert time.perf_counter() - began < 15
    assert slowest_answer_s(home) <= ANSWER_S
    home.until(lambda: bool(home.incidents("well")), 30, "the training that hung to be judged")
    home.resumed("well")


@mostly_waits
def test_a_daemon_starts_while_the_address_of_a_receiver_hangs(home: House, far: HangingFs) -> None:
    address = far.at / "address"
    address.write_text("http://127.0.0.1:9/")
    home.write(f'[alerts.owner]\nkind = "webhook"\nurl_file = "{address}"\n' + home.by_hand("well"))
    far.hang()
    home.start()
    home.step("well", 20)
    status = home.status()
    assert status is not None
    assert f"alerts.owner.url_file: {far.at} does not answer within 1 s" in str(status["daemon"])


@pytest.mark.long
@mostly_waits
def test_a_daemon_that_is_ended_or_killed_on_such_a_disk_has_a_successor(home: House, far: HangingFs) -> None:
    hung_under_one(home, far)
    home.until(lambda: bool(named(home)), 40, "the disk that hangs to be named")
    assert home.daemon is not None
    assert home.stop_at_once(ENDS_IN_S) == 0
    assert re.search(r'daemon.ended left_running=\[.*"far"', home.log.read_text()), home.read_output()
    home.start()
    home.until(lambda: bool(named(home)), 40, "the disk to be named by a daemon that began while it hung")
    killed = home.daemon
    killed.kill()  # as a watchdog does: what is left of it waits in the kernel, with all its files open
    home.start()
    home.until(lambda: bool(home.incidents("well")), 30, "the training that hung to be judged")
    home.resumed("well")
    far.go_on()
    killed.wait(60)
