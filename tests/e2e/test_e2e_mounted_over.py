"""A training has a file system mounted over its own folder that never answers: its supervision alone is degraded."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House

from tests.rigs.hanging_fs import HangingFs

pytestmark = [pytest.mark.mounts, pytest.mark.calm(reason="whole daemons, whose ends have limits of seconds")]

ENDS_IN_S = 10


class OwnLog(House):
    """A house of which a failure shows the daemon's log alone: what is served by this process is not asked by it."""

    def read_output(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]


@pytest.fixture
def home(tmp_path: Path, code_copies: Path) -> Iterator[House]:
    item = OwnLog(tmp_path)
    item.shares_imports, item.code_copies = True, code_copies
    yield item
    item.leave()


@pytest.fixture
def over(home: House, tmp_path: Path) -> Iterator[HangingFs]:
    """What is mounted over the folder of the training `far` while it trains, which may wait there itself; it hangs."""
    far = home.by_hand(
        "far", stall="limit_s = 600\nrest_limit_s = 600\ndata_wait_limit_s = 600", deadline="enabled = false"
    )
    home.write(far + home.by_hand("well"))
    home.start()
    home.step("far", 30)
    home.step("well", 20)
    run = home.state / "jobs" / "far" / "1" / "run"
    shutil.copytree(run, tmp_path / "copy")
    try:
        served = HangingFs(tmp_path / "copy", run)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    served.hang()
    yield served
    served.end()


@pytest.mark.usefixtures("over")
def test_what_is_mounted_over_a_trainings_folder_holds_up_neither_the_daemon_nor_its_successor(home: House) -> None:
    assert home.ctl("stop", "far").returncode == 0  # it waits there itself, beyond SIGKILL
    home.phase("far", "killing")
    assert home.daemon is not None
    assert home.stop_at_once(ENDS_IN_S) == 0
    assert re.search(r'daemon.ended left_running=\[.*"far"', home.log.read_text()), home.read_output()
    made = home.steps_made("well")[-1]
    home.start()
    home.step("well", made + 20)
    home.kill()
