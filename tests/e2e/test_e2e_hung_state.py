"""The state directory's file system hangs: trainings go on, the daemon says what hangs, and follows again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house

from tests.rigs.hanging_fs import HangingFs
from tests.rigs.laid_code import lay_code

pytestmark = [
    pytest.mark.mounts,
    pytest.mark.long,
    pytest.mark.calm(reason="a training that waits for what hangs is a stall after its limit"),
]

STATUS_S = 1.0
HUNG_S = 35
"""Longer than a training that waits for nothing may rest."""


@pytest.fixture
def home(tmp_path: Path, far: HangingFs, code_copies: Path) -> Iterator[House]:
    """An installation whose state lies on that file system; the training's own folder and the socket do not."""
    (tmp_path / "house").mkdir()
    lay_code(code_copies, far.real / "state")
    with house(tmp_path / "house") as item:
        item.shares_imports, item.state = True, far.at / "state"
        item.client.path = str(item.folder / "control.sock")
        job = item.by_hand("one", "--save-every", "100000", stall="limit_s = 600")
        item.write(job, head=f'socket = "{item.client.path}"')
        yield item
        far.end()  # or the training that waits there cannot be ended


def trains(home: House) -> int:
    """Start, wait for some steps, and return the pid of the training."""
    home.start()
    pid: int = home.step("one", 30)["pid"]
    return pid


def find_problem(home: House) -> str:
    began_s = time.perf_counter()
    status = home.status()
    assert status is not None, home.read_output()
    assert time.perf_counter() - began_s < STATUS_S
    return status["daemon"]["problem"] or ""


def hung_s(home: House) -> int:
    """Return for how many seconds the disk has not answered, by the daemon's own words."""
    found = re.search(r"a commit has not ended for (\d+) s", find_problem(home))
    return int(found[1]) if found else 0


def goes_on(home: House, far: HangingFs, pid: int) -> None:
    """Let it answer, and assert that the same training is followed."""
    far.go_on()
    home.until(lambda: home.status() is not None and not home.job("one")["degraded"], 60, "it to be followed")
    made = home.steps_made("one")[-1]
    home.until(lambda: (home.job("one")["step"] or 0) > made, 60, "its steps")
    job = home.job("one")
    assert (job["phase"], job["pid"], job["attempt"]) == ("running", pid, 1)
    assert home.incidents("one") == []


def test_a_daemon_whose_state_hangs_names_it_and_leaves_the_training_alone(home: House, far: HangingFs) -> None:
    pid = trains(home)
    far.hang()
    made = len(home.steps_made("one"))
    home.until(lambda: "the disk does not answer" in find_problem(home), 40, "the disk to be named")
    assert len(home.steps_made("one")) > made, "it makes steps meanwhile"
    goes_on(home, far, pid)


def test_a_training_that_waits_for_the_state_itself_is_not_stopped_for_it(home: House, far: HangingFs) -> None:
    """It reports a checkpoint, and waits for the disk of the report."""
    home.config.write_text(home.config.read_text().replace("100000", "25"))
    pid = trains(home)
    far.hang()
    home.until(lambda: hung_s(home) >= HUNG_S, 2 * HUNG_S, "the disk to hang for longer")
    assert home.job("one")["phase"] == "running"
    goes_on(home, far, pid)


def test_a_daemon_that_starts_meanwhile_says_what_it_waits_for_and_takes_the_training_up(
    home: House, far: HangingFs
) -> None:
    pid = trains(home)
    far.hang()
    assert home.daemon is not None
    home.daemon.kill()  # what is left of it may wait in the kernel until the disk answers
    home.start(wait=False)
    home.until(lambda: f"{far.at} does not answer" in home.log.read_text(), 40, "the disk to be named")
    goes_on(home, far, pid)
