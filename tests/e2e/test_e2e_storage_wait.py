"""A training whose data lie on a file server that does not answer is left to wait; one that hangs is not."""

from __future__ import annotations

import pytest
from house import House

from tests.rigs.hanging_fs import HangingFs

pytestmark = [pytest.mark.mounts, pytest.mark.calm(reason="mostly waits for what hangs")]

LIMIT_S = 2.0
RULES = {"stall": f"limit_s = {LIMIT_S}", "gpu_idle": f"hold_s = {LIMIT_S}", "deadline": "enabled = false"}


def reads_from(home: House, disk: HangingFs, storage_wait: str, *options: str) -> None:
    """Begin a training each step of which reads a file of that server, and beside it one that reads none."""
    (disk.at / "data").write_text("x")
    far = home.by_hand("far", "--reads", str(disk.at / "data"), *options, storage_wait=storage_wait, **RULES)
    home.write("[telemetry]\ninterval_s = 0.2\n" + far + home.by_hand("well", "--wound", "hang:100", **RULES))
    home.start()
    home.step("far", 30)


def test_it_is_reported_goes_on_when_the_server_answers_and_another_that_hangs_is_resumed(
    home_beside_disk: House, disk: HangingFs
) -> None:
    home = home_beside_disk
    reads_from(home, disk, "warn_s = 1.0")
    pid = home.step("far", 31)["pid"]
    disk.hang()

    def severities() -> list[tuple[str]]:
        return home.query("SELECT severity FROM flags WHERE job = 'far' AND rule = 'storage_wait'")

    home.until(lambda: bool(severities()), 60, "the wait to be reported")
    home.resumed("well", limit_s=90)
    made = home.steps_made("far")[-1]
    disk.go_on()
    home.until(lambda: home.steps_made("far")[-1] > made + 20, 60, "it to go on")
    job = home.job("far")
    assert (job["phase"], job["pid"], job["attempt"]) == ("running", pid, 1)
    assert home.incidents("far") == []
    assert severities() == [("warning",)]
    (message,) = home.query("SELECT reason FROM decisions WHERE job = 'far' AND rule = 'storage_wait'")
    assert f"process {pid} (python) waits for" in str(message[0])


def test_at_its_own_limit_it_is_stopped(home_beside_disk: House, disk: HangingFs) -> None:
    home = home_beside_disk
    reads_from(home, disk, "limit_s = 4.0")
    disk.hang()
    home.until(lambda: bool(home.incidents("far")), 60, "the limit to be reached")
    assert home.incident("far")["rule"] == "storage_wait"
    assert "waits for" in home.incident("far")["message"]
    disk.go_on()
    home.resumed("far", limit_s=90)


def test_one_that_waits_in_the_kernel_for_something_else_is_resumed_whatever_else_waits_for_that_server(
    home_beside_disk: House, disk: HangingFs
) -> None:
    home = home_beside_disk
    reads_from(home, disk, "warn_s = 1.0", "--wound", "driver:60")
    home.until(lambda: home.steps_made("far")[-1] == 59, 60, "it to hang as in a driver")
    disk.hang()
    home.until(lambda: bool(home.incidents("far")), 60, "the hang to be found")
    assert home.incident("far")["rule"] == "stall"
    disk.go_on()
    home.resumed("far", limit_s=90)
