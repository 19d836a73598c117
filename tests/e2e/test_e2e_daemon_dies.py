"""The daemon is killed, at any moment: the training does not notice, and the next daemon knows all that happened."""

import json
import os
import signal
import time
from functools import partial

import psutil
import pytest
from house import PATIENCE_S, House


def training_pid(home: House, attempt: int = 1) -> int:
    """Return the pid of the training, as its shim left word of it."""
    note = json.loads((home.state / "jobs" / "one" / str(attempt) / "run" / "shim.json").read_text())
    return int(note["training_pid"])


def every_step_is_recorded_once(home: House) -> None:
    """Assert, after the job's end, that the database holds as many steps as the training made."""
    home.until(lambda: home.steps_recorded("one") >= len(home.steps_made("one")), 10, "the steps to be recorded")
    assert home.steps_recorded("one") == len(home.steps_made("one"))


def gone(home: House, pid: int) -> None:
    """Wait, without a daemon, until a process and every other of the attempt is gone."""
    home.until(lambda: not psutil.pid_exists(pid), 20, "the training to be gone", daemon=False)
    home.nothing_runs()


def decisions(home: House) -> list[str]:
    """Return the kinds of decisions about the job, the first first."""
    return [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = 'one' ORDER BY id")]


def decided(home: House, *kinds: str) -> None:
    """Assert, once a commit has come that on a busy machine takes longer than the status, which decisions there are."""
    home.until(lambda: len(decisions(home)) >= len(kinds), 10, "the decisions to be recorded")
    assert decisions(home) == list(kinds)


def test_a_training_outlives_three_daemons_and_no_step_is_lost_or_counted_twice(home: House) -> None:
    end = home.folder / "end"
    home.write(home.by_hand("one", "--until", str(end)))
    home.start()
    pid = home.step("one", 10)["pid"]
    for _ in range(3):
        home.kill()
        seen = home.steps_made("one")[-1]
        home.made("one", seen + 10)
        home.start()
        job = home.step("one", seen + 11)
        assert (job["phase"], job["attempt"], job["pid"]) == ("running", 1, pid)
    end.touch()
    home.phase("one", "finished")
    made = home.steps_made("one")
    assert made == list(range(1, len(made) + 1))
    every_step_is_recorded_once(home)
    decided(home, "launch", "finish")
    assert home.incidents() == []


@pytest.mark.calm(reason="a stall of a few seconds would be found")
def follows(home: House, step: int) -> bool:
    """Whether the daemon has seen that step; one that SIGBUS has ended is started again, as systemd does."""
    assert home.daemon is not None
    if home.daemon.poll() is not None:
        assert home.daemon.poll() == -signal.SIGBUS
        home.start()
    status = home.status()
    return status is not None and (status["jobs"][0]["step"] or 0) >= step


@pytest.mark.parametrize("lost", ["cut off", "removed"])
def test_the_mapped_index_of_the_record_is_lost_under_the_daemon_and_no_step_is(home: House, lost: str) -> None:
    """Cut off in the midst of a commit it ends the daemon by SIGBUS, and the next one goes on."""
    end = home.folder / "end"
    home.write(home.by_hand("one", "--until", str(end)))
    home.start()
    pid, index = home.step("one", 10)["pid"], home.state / "supervisor.db-shm"
    for _ in range(5):
        seen = home.steps_made("one")[-1]
        if lost == "removed":
            index.unlink(missing_ok=True)
        else:
            os.truncate(index, 0)
        home.until(partial(follows, home, seen + 20), 30, "its steps to be followed", daemon=False)
    job = home.step("one", home.steps_made("one")[-1])
    assert (job["phase"], job["attempt"], job["pid"]) == ("running", 1, pid)
    end.touch()
    home.phase("one", "finished")
    every_step_is_recorded_once(home)
    decided(home, "launch", "finish")
    assert home.incidents() == []
    home.stop()
    assert home.query("PRAGMA integrity_check") == [("ok",)]


def test_a_daemon_that_was_away_for_longer_than_a_stall_may_last_finds_none(home: House) -> None:
    end = home.folder / "end"
    home.write(home.by_hand("one", "--until", str(end), stall="limit_s = 1.5"))
    home.start()
    pid = home.step("one", 10)["pid"]
    home.kill()
    home.made("one", home.steps_made("one")[-1] + 120)
    home.start()
    assert home.step("one", 140)["pid"] == pid
    home.kill()
    end.touch()
    gone(home, pid)
    home.until(lambda: time.time() - last_word(home) > 2, 20, "the end to be long ago", daemon=False)  # noqa: TID251
    home.start()
    home.phase("one", "finished")
    decided(home, "launch", "finish")
    every_step_is_recorded_once(home)


def last_word(home: House) -> float:
    """Return when the training made its last step, Unix seconds."""
    return (home.folder / "one" / "steps.log").stat().st_mtime


def test_a_training_that_finishes_while_no_daemon_is_there_has_finished(home: House) -> None:
    home.write(home.by_hand("one", "--steps", "60"))
    home.start()
    pid = home.step("one", 5)["pid"]
    home.kill()
    gone(home, pid)
    home.start()
    home.phase("one", "finished")
    every_step_is_recorded_once(home)
    assert home.steps_made("one") == list(range(1, 61))


def test_a_training_that_crashes_while_no_daemon_is_there_is_resumed_by_the_next(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "kill:60", "--steps", "100"))
    home.start()
    pid = home.step("one", 5)["pid"]
    home.kill()
    gone(home, pid)
    home.start()
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"], incident["resumed_from"]["step"]) == ("crash", 59, 50)
    home.phase("one", "finished")
    every_step_is_recorded_once(home)


def test_a_training_killed_together_with_its_daemon_and_its_shim_is_resumed(home: House) -> None:
    """What a power cut leaves: no exit status, nobody to ask."""
    home.write(home.by_hand("one", "--steps", "150"))
    home.start()
    home.step("one", 60)
    pids = home.training_pids()
    home.kill()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    home.nothing_runs()
    last = home.steps_made("one")[-1]
    home.start()
    incident = home.resumed("one")
    assert incident["outcome"] == "resumed"
    assert incident["last_step"] == last
    assert incident["resumed_from"]["step"] == last // 25 * 25
    home.phase("one", "finished")
    every_step_is_recorded_once(home)


def test_a_shim_killed_alone_leaves_no_second_training_next_to_the_first(home: House) -> None:
    home.write(home.by_hand("one"))
    home.start()
    home.step("one", 30)
    shim, training = home.training_pids()[:2]
    os.kill(shim, signal.SIGKILL)
    home.step("one", 26, attempt=2)
    assert not psutil.pid_exists(training) or psutil.Process(training).status() == psutil.STATUS_ZOMBIE
    assert len(home.training_pids()) == 2


def test_a_daemon_killed_while_it_stops_a_stalled_training_finishes_the_job_in_its_next_life(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "deaf:60", table="save_s = 0.5\ngrace_s = 3", stall="limit_s = 2"))
    home.start()
    home.until(lambda: "stop" in decisions(home), 30, "the order to stop")
    home.kill()
    home.start()
    incident = home.resumed("one", limit_s=60)
    assert (incident["rule"], incident["last_step"], incident["resumed_from"]["step"]) == ("stall", 59, 50)
    assert len(home.training_pids()) == 2
    assert decisions(home).count("stop") == 1
    assert decisions(home).count("launch") == 2


@pytest.mark.parametrize("phase", ["starting", "backoff"])
def test_a_daemon_killed_around_a_launch_leaves_exactly_one_training(home: House, phase: str) -> None:
    """In `starting` the decision is recorded and its act under way; in `backoff` the next one is about to be made."""
    backoff = "[jobs.one.budget]\nbackoff_s = [1.0]\n"
    home.write(home.by_hand("one", "--wound", "kill:60") + backoff)
    home.start()
    launched = (home.state / "jobs" / "one" / "1" / "launch.json").exists
    begun = {"starting": launched, "backoff": lambda: "retry" in decisions(home)}
    home.until(begun[phase], 30, f"{phase} to begin")
    home.kill()
    home.start()
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"], incident["resumed_from"]["step"]) == ("crash", 59, 50)
    assert len(home.training_pids()) == 2
    decided(home, "launch", "retry", "launch")


@pytest.mark.parametrize("moment", range(5))
def test_a_daemon_killed_at_any_moment_of_a_crash_reports_it_once(home: House, moment: int) -> None:
    home.write(home.by_hand("one", "--wound", "kill:60", "--steps", "120", "--every-s", "0.01"))
    home.start()
    attempts = home.state / "jobs" / "one"
    files = (attempts / name for name in ("1/run/exit.json", "1/evidence", "2/launch.json", "2/run/shim.json"))
    moments = [lambda: len(home.steps_made("one")) >= 59, *(file.exists for file in files)]
    home.until(moments[moment], 30, f"moment {moment}")
    home.kill()
    home.start()
    incident = home.resumed("one")
    assert (incident["rule"], incident["last_step"], incident["resumed_from"]["step"]) == ("crash", 59, 50)
    home.phase("one", "finished")
    assert home.steps_made("one") == [*range(1, 60), *range(51, 121)]
    every_step_is_recorded_once(home)


def test_a_daemon_that_is_ordered_to_end_saves_the_last_step_and_the_next_goes_on_from_there(home: House) -> None:
    home.write(home.by_hand("one", "--steps", "150", "--save-every", "1000"))
    home.start()
    home.step("one", 30)
    assert home.stop() == 0
    assert home.training_pids() == []
    last = home.steps_made("one")[-1]
    home.start()
    home.phase("one", "finished")
    assert home.steps_made("one") == list(range(1, 151))
    assert (home.folder / "one" / f"state-{last:06}.safetensors").exists()
    assert home.incidents() == []
    assert home.job("one")["restarts"] == 0
    every_step_is_recorded_once(home)


def test_a_daemon_asked_twice_leaves_at_once_and_the_training_goes_on(home: House) -> None:
    home.write(home.by_hand("one", "--save-takes-s", "600", table="save_s = 600"))
    daemon = home.start()
    pid = home.step("one", 30)["pid"]
    daemon.send_signal(signal.SIGTERM)
    home.phase("one", "stopping")
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE_S) == 0
    assert psutil.pid_exists(pid)


def test_a_daemon_that_ends_between_two_attempts_starts_none(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "kill!:30") + "[jobs.one.budget]\nbackoff_s = [600.0]\n")
    home.start()
    home.phase("one", "backoff")
    assert home.stop() == 0
    assert home.training_pids() == []
    home.start()
    assert home.job("one")["phase"] == "backoff"
