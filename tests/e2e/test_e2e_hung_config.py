"""The file system of the configuration hangs: jobs are judged as before, and a reload and a start say what hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house

from tests.rigs.hanging_fs import HangingFs

pytestmark = [pytest.mark.mounts, pytest.mark.slow, pytest.mark.calm(reason="mostly waits for what hangs")]
STATUS_S = 1.0
RELOAD_S = 10.0


@pytest.fixture
def home(tmp_path: Path, far: HangingFs) -> Iterator[House]:
    """An installation whose configuration alone lies on that file system."""
    (tmp_path / "house").mkdir()
    with house(tmp_path / "house") as item:
        item.shares_imports, item.config = True, far.at / "config.toml"
        item.write(item.by_hand("one", "--wound", "hang:60", stall="limit_s = 3"))
        yield item
        far.end()


def refused(home: House) -> str:
    """Ask for a reload, and return why it is refused."""
    began_s = time.perf_counter()
    (problem,) = home.client.post("/v1/reload")["problems"]
    assert time.perf_counter() - began_s < RELOAD_S
    return str(problem)


def test_a_reload_says_what_hangs_and_jobs_are_judged_meanwhile(home: House, far: HangingFs) -> None:
    daemon = home.start()
    home.step("one", 5)
    far.hang()
    daemon.send_signal(signal.SIGHUP)
    until_s = time.perf_counter() + 3
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        assert home.status() is not None, home.read_output()
        assert time.perf_counter() - began_s < STATUS_S
        time.sleep(0.05)
    assert f"{far.at} does not answer" in refused(home)
    assert home.resumed("one")["rule"] == "stall"
    status = home.status()
    assert status is not None
    assert "does not answer" in status["daemon"]["problem"]
    far.go_on()
    assert home.client.post("/v1/reload")["problems"] == []


def test_a_start_meanwhile_runs_with_what_was_last_in_force_or_ends_to_be_tried_again(
    home: House, far: HangingFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.start()
    home.step("one", 5)
    home.kill()
    far.hang()
    ended = home.start(wait=False)
    assert ended.wait(60) == 69
    assert f"{far.at} does not answer" in home.log.read_text()
    monkeypatch.setenv("STATE_DIRECTORY", str(home.state))
    home.start()
    status = home.status()
    assert status is not None
    assert "running with the configuration that was last in force" in status["daemon"]["problem"]
    assert home.resumed("one")["rule"] == "stall"
