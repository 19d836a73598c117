"""The machine fails under the daemon: its log is not read, it is stopped, the clock jumps, the disk is full or away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from house import PATIENCE_S, House

from tests.rigs.small_disk import mounted
from tests.rigs.stepped_clock import SteppedClock

STALL = "limit_s = 3\nlearn = false"
DAY_S = 86_400


def every_step_is_recorded_once(home: House, job: str = "one") -> None:
    """Assert that the training made each step once, and that the database holds them all."""
    made = home.steps_made(job)
    assert made == list(range(1, len(made) + 1))
    home.until(lambda: home.steps_recorded(job) >= len(made), 20, "every step to be recorded")
    recorded = home.steps_recorded(job)  # it goes on: what is made by then is read after what is recorded
    assert recorded <= len(home.steps_made(job))


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 65536):
            pass
    assert os.statvfs(path).f_bavail * 4096 < 65536


def absences_s(home: House) -> list[float]:
    """Return how long the daemon did not run, each time, as its record has it."""
    rows = home.query("SELECT body FROM events WHERE kind = 'daemon_away' ORDER BY id")
    return [json.loads(body)["away_s"] for (body,) in rows]


def goes_on_for(home: House, steps: int, job: str = "one") -> None:
    """Wait until the training and what is known of it have gone on for so many steps."""
    home.step(job, home.steps_made(job)[-1] + steps)


def test_a_control_socket_that_was_cleared_away_is_bound_again(home: House) -> None:
    """As by a cron job that removes old files, of which the socket of a long training is one."""
    home.write("")
    home.start()
    socket = home.state / "control.sock"
    socket.rename(home.folder / "old.sock")
    assert home.status() is None
    home.until(lambda: home.status() is not None, 30, "the daemon to answer at a new socket")
    (home.folder / "old.sock").rename(socket)  # as where its folder was moved away and back
    assert home.status() is None
    home.until(lambda: home.status() is not None, 30, "the daemon to answer at a third one")
    assert home.stop() == 0
    assert not (home.state / "control.sock").exists()


def test_a_daemon_whose_log_nobody_reads_goes_on(home: House) -> None:
    """As under `rocm-supervisord 2>&1 | less`, and under a journal that was stopped."""
    reading, writing = os.pipe()
    home.write(
        home.by_hand("one", "--wound", "kill:400,hang:600", stall=STALL) + home.by_hand("loud"), "log_level = 'debug'"
    )
    home.lay_code()
    home.daemon = subprocess.Popen(home.command(), stdout=writing, stderr=writing, start_new_session=True)
    os.set_blocking(writing, False)
    try:
        while True:  # what the daemon may write before it would wait
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
        os.close(writing)
    home.until(lambda: home.status() is not None, 30, "the daemon to answer")
    incident = home.resumed("one", count=2)
    assert (incident["rule"], incident["outcome"]) == ("stall", "resumed")
    assert home.client.get("/v1/status")["daemon"]["pid"] == home.daemon.pid
    os.set_blocking(reading, False)
    written = b""
    end = time.perf_counter() + PATIENCE_S
    while b"decision." not in written and time.perf_counter() < end:
        try:
            written += os.read(reading, 1 << 20)
        except BlockingIOError:
            time.sleep(0.05)
    os.close(reading)
    assert b"decision." in written, "what was logged meanwhile is written once somebody reads"


@pytest.mark.calm(reason="a stall of a few seconds would be found")
def test_a_daemon_that_was_stopped_takes_no_healthy_training_for_stalled(home: House) -> None:
    home.write(home.by_hand("one", stall=STALL))
    home.start()
    home.step("one", 50)
    assert home.daemon is not None
    home.daemon.send_signal(signal.SIGSTOP)
    at = home.steps_made("one")[-1]
    home.made("one", at + 200)  # 4 s and more
    home.daemon.send_signal(signal.SIGCONT)
    goes_on_for(home, 50)
    assert home.incidents() == []
    every_step_is_recorded_once(home)


@pytest.mark.calm(reason="a stall of a few seconds would be found")
def test_a_machine_that_stood_still_costs_no_training(home: House) -> None:
    """Daemon and training stop together, as in a virtual machine that is paused: the monotonic clock goes on."""
    home.write(home.by_hand("one", stall=STALL))
    home.start()
    home.step("one", 50)
    assert home.daemon is not None
    pids = [home.daemon.pid, *home.training_pids()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    subprocess.run(["sleep", "6"], check=True)
    # The daemon goes on first: whatever it sees before the training's next step must be no stall.
    home.daemon.send_signal(signal.SIGCONT)
    home.until(lambda: absences_s(home) != [], 20, "the daemon to know that it was away")
    for pid in pids[1:]:
        os.kill(pid, signal.SIGCONT)
    goes_on_for(home, 50)
    assert home.incidents() == []
    assert max(absences_s(home)) > 5
    every_step_is_recorded_once(home)


def test_a_training_that_hung_while_the_machine_stood_still_is_found_within_its_limit_after_that(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "hang:60", stall=STALL))
    home.start()
    home.made("one", 59)
    assert home.daemon is not None
    home.daemon.send_signal(signal.SIGSTOP)
    subprocess.run(["sleep", "4"], check=True)
    home.daemon.send_signal(signal.SIGCONT)
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"]) == ("stall", 59)


@pytest.mark.calm(reason="a stall of a few seconds would be found")
@pytest.mark.parametrize(
    "by_s", [-3600, 60 * DAY_S, -20 * 365 * DAY_S], ids=["hour back", "60 days on", "20 years back"]
)
def test_a_step_of_the_clock_kills_nobody_and_hides_nothing(home: House, tmp_path: Path, by_s: int) -> None:
    clock = SteppedClock(tmp_path)
    home.write(home.by_hand("one", "--wound", "hang:400", stall=STALL))
    home.start(env=clock.environment)
    home.step("one", 100)
    clock.step_to(by_s)
    goes_on_for(home, 100)
    assert home.incidents() == []
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"]) == ("stall", 399)
    assert home.client.get("/v1/status")["daemon"]["uptime_s"] < 600
    goes_on_for(home, 50)


def test_what_was_saved_before_the_clock_was_set_back_is_resumed_from(home: House, tmp_path: Path) -> None:
    """A machine that boots in local time is set back by hours once it knows better: its files are of the future."""
    clock, go = SteppedClock(tmp_path), tmp_path / "go"
    home.write(home.by_hand("one", "--wound", "nan:210", "--pause", f"205:{go}"))
    home.start(env=clock.environment)
    home.until(lambda: 200 in home.proven("one"), 30, "the save of step 200 to be proven")
    clock.step_to(-3600)
    home.until(lambda: "clock.stepped" in home.log.read_text(), 30, "the daemon to know of it")
    go.touch()
    incident = home.resumed("one")
    assert (incident["rule"], incident["outcome"]) == ("non_finite_loss", "resumed")
    assert incident["resumed_from"]["step"] == 200
    assert incident["downtime_s"] < 600


def test_what_was_saved_before_a_clock_that_was_set_back_while_no_daemon_ran_is_resumed_from(
    home: House, tmp_path: Path
) -> None:
    clock, go = SteppedClock(tmp_path), tmp_path / "go"
    home.write(home.by_hand("one", "--wound", "nan:210", "--pause", f"205:{go}"))
    home.start(env=clock.environment)
    home.until(lambda: 200 in home.proven("one"), 30, "the save of step 200 to be proven")
    home.kill()
    clock.step_to(-3600)
    home.start(env=clock.environment)
    go.touch()
    incident = home.resumed("one")
    assert (incident["rule"], incident["outcome"]) == ("non_finite_loss", "resumed")
    assert incident["resumed_from"]["step"] == 200


def test_a_daemon_that_starts_with_the_clock_years_ahead_deletes_nothing(home: House, tmp_path: Path) -> None:
    """A machine whose clock has no battery begins its first minutes anywhere."""
    clock = SteppedClock(tmp_path)
    home.write(home.by_hand("one", "--wound", "kill:60"))
    home.start()
    incident = home.resumed("one")
    home.stop_at_once(20)
    clock.step_to(20 * 365 * DAY_S)
    home.start(env=clock.environment)
    ahead_unix_s = time.time() + 10 * 365 * DAY_S  # noqa: TID251 - the machine's own clock

    def wrote() -> bool:  # pruning is the first that a daemon has its record asked for
        (row,) = home.query("SELECT count(*) FROM host_samples WHERE at_unix_s > ?", ahead_unix_s)
        return bool(row[0])

    home.until(wrote, 20, "the daemon to write with the clock ahead")
    assert home.incident("one")["id"] == incident["id"]
    assert home.query("SELECT count(*) FROM attempts WHERE number = 1") == [(1,)]
    home.until(lambda: "retention.held" in home.log.read_text(), 20, "the daemon to say that it deletes nothing")


@pytest.mark.mounts
def test_a_full_disk_stops_no_training_and_what_it_kept_from_the_record_is_caught_up(
    home: House, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", 40) as disk:
        home.state = disk / "state"
        home.client.path = str(disk / "state" / "control.sock")
        home.write(home.by_hand("one", "--wound", "kill:600", table="checkpoints = { keep = false }"))
        home.start()
        home.step("one", 100)
        fill(disk / "ballast")
        goes_on_for(home, 200)
        assert home.job("one")["phase"] == "running"
        (disk / "ballast").unlink()
        incident = home.resumed("one")
        assert (incident["rule"], incident["last_step"]) == ("crash", 599)
        goes_on_for(home, 50)
        made = home.steps_made("one")
        home.until(lambda: home.steps_recorded("one") >= len(made), 30, "every step to be recorded")
        home.leave()


@pytest.mark.mounts
def test_a_disk_that_became_read_only_stops_no_training(home: House, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 60) as disk:
        home.state = disk / "state"
        home.client.path = str(disk / "state" / "control.sock")
        home.write(home.by_hand("one", table="checkpoints = { keep = false }"))
        home.start()
        home.step("one", 100)
        # A file that is open for writing keeps the disk from a read-only remount; a bind mount does not ask.
        state = home.state / "jobs"
        subprocess.run(["mount", "--bind", str(state), str(state)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(state)], check=True)
        try:
            goes_on_for(home, 200)
            assert home.job("one")["phase"] == "running"
            assert home.incidents() == []
        finally:
            subprocess.run(["umount", "--lazy", str(state)], check=True)
        goes_on_for(home, 100)
        every_step_is_recorded_once(home)
        home.leave()
