"""What the user asks for comes true, stays true over a restart of the daemon, and outranks the rules."""

import os
import signal

import pytest
from house import House

STUBBORN = "kill!:30"


def test_a_stopped_job_saved_its_last_step_and_stays_stopped_over_a_restart_of_the_daemon(home: House) -> None:
    home.write(home.by_hand("one", "--save-every", "1000"))
    home.start()
    home.step("one", 20)
    done = home.ctl("stop", "one", "--wait")
    assert done.returncode == 0, done.stderr
    assert home.job("one")["phase"] == "stopped"
    assert home.training_pids() == []
    last = home.steps_made("one")[-1]
    home.kill()
    home.start()
    assert home.job("one")["phase"] == "stopped"
    assert home.ctl("status").returncode == 3
    assert home.ctl("start", "one", "--wait").returncode == 0
    home.step("one", last + 5, attempt=2)
    assert home.steps_made("one")[: last + 3] == list(range(1, last + 4))
    assert home.incidents() == []


def test_a_restart_goes_on_from_the_step_it_stopped_at_and_costs_no_budget(home: House) -> None:
    home.write(home.by_hand("one", "--save-every", "1000"))
    home.start()
    home.step("one", 20)
    done = home.ctl("restart", "one", "--wait")
    assert done.returncode == 0, done.stderr
    job = home.step("one", 40, attempt=2)
    assert job["restarts"] == 0
    made = home.steps_made("one")
    assert made == list(range(1, len(made) + 1))


def test_a_fresh_start_begins_at_step_one_and_resumes_from_nothing_of_before(home: House) -> None:
    """What the first training saved is further ahead, and belongs to another run."""
    home.write(home.by_hand("one", "--save-every", "20"))
    home.start()
    home.step("one", 85)
    assert home.ctl("stop", "one", "--wait").returncode == 0
    last = len(home.steps_made("one"))
    done = home.ctl("start", "one", "--fresh")
    assert done.returncode == 0, done.stderr
    os.kill(home.step("one", 45, attempt=2)["pid"], signal.SIGKILL)
    incident = home.resumed("one")
    saved, last_step = incident["resumed_from"]["step"], incident["last_step"]
    # One that was killed in the step after which it saves has saved before that.
    assert saved in {last_step // 20 * 20, (last_step - 1) // 20 * 20}
    made = home.steps_made("one")[last:]
    assert made[: incident["last_step"] + 1] == [*range(1, incident["last_step"] + 1), saved + 1]


@pytest.mark.parametrize("signals", [False, True], ids=["by its user", "with the daemon"])
def test_a_job_stopped_while_it_is_launched_does_not_run_on(home: House, signals: bool) -> None:
    first_step_s = () if signals else ("--every-s", "20")  # it is launched for so long
    home.write(home.by_hand("one", *first_step_s, table="autostart = false\ngrace_s = 600\nsave_s = 600"))
    home.start()
    home.client.post("/v1/jobs/one/start")
    if signals:
        assert home.stop() == 0
    else:
        home.until(lambda: home.job("one")["phase"] == "starting", 10, "the launch to begin")
        home.client.post("/v1/jobs/one/stop")
        home.phase("one", "stopped", limit_s=20)
    assert home.training_pids() == []


def test_a_job_stopped_while_it_is_stalled_stays_stopped(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "deaf:30", table="save_s = 0.5\ngrace_s = 8", stall="limit_s = 2"))
    home.start()
    home.phase("one", "stopping")
    done = home.ctl("stop", "one", "--wait")
    assert done.returncode == 0, done.stderr
    assert home.job("one")["phase"] == "stopped"
    assert home.training_pids() == []
    incident = home.incident("one")
    assert (incident["rule"], incident["outcome"]) == ("stall", "stopped")
    assert home.ctl("start", "one", "--wait").returncode == 0
    home.step("one", 31, attempt=2)


def test_a_job_stopped_between_two_attempts_stays_stopped_and_resumes_when_started(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "kill:60") + "[jobs.one.budget]\nbackoff_s = [600.0]\n")
    home.start()
    home.phase("one", "backoff")
    assert home.ctl("stop", "one", "--wait").returncode == 0
    assert home.job("one")["phase"] == "stopped"
    assert home.ctl("start", "one", "--wait").returncode == 0
    home.step("one", 65, attempt=2)
    assert home.steps_made("one")[59] == 51


def test_a_job_without_autostart_waits_to_be_started(home: House) -> None:
    home.write(home.by_hand("one", table="autostart = false"))
    home.start()
    assert home.job("one")["phase"] == "stopped"
    assert home.ctl("start", "one", "--wait").returncode == 0
    home.step("one", 3)


def test_what_makes_no_sense_is_refused_with_a_reason(home: House) -> None:
    home.write(home.by_hand("one"))
    home.start()
    home.step("one", 3)
    twice = home.ctl("start", "one")
    assert (twice.returncode, "already" in twice.stderr) == (5, True), twice.stderr
    unknown = home.ctl("stop", "two")
    assert (unknown.returncode, "two" in unknown.stderr) == (1, True), unknown.stderr


def test_a_training_that_always_dies_at_the_same_step_is_given_up_with_the_reason(home: House) -> None:
    home.write(home.by_hand("one", "--wound", STUBBORN) + "[jobs.one.budget]\nrestarts = 2\nbackoff_s = [0.0]\n")
    home.start()
    job = home.phase("one", "failed", limit_s=60)
    assert job["attempt"] == 3
    assert "2 restarts in a row without progress" in job["reason"]
    assert "SIGKILL" in job["reason"]
    incidents = home.incidents("one")
    assert [incident["outcome"] for incident in incidents] == ["resumed", "resumed", "gave_up"]
    home.kill()
    home.start()
    assert home.job("one")["phase"] == "failed"
    (home.folder / "config.toml").write_text(home.config.read_text().replace(STUBBORN, "kill:20"))
    assert home.ctl("reload").returncode == 0
    assert home.ctl("start", "one", "--wait").returncode == 0
    home.step("one", 35, attempt=4)
    made = home.steps_made("one")
    assert made[25 - made[-1] :][0] == 26, "by the attempt that still runs, however long ago"


def test_the_account_of_restarts_outlives_the_daemon(home: House) -> None:
    plain = "[jobs.one.remedies]\nenabled = false\n[jobs.one.budget]\nrestarts = 3\nbackoff_s = [0.0]\n"
    home.write(home.by_hand("one", "--wound", STUBBORN) + plain)
    home.start()
    for attempt in (2, 3):
        home.step("one", 1, attempt=attempt)
        home.kill()
        home.start()
    job = home.phase("one", "failed", limit_s=60)
    assert (job["attempt"], job["restarts"]) == (4, 3)


def test_progress_gives_the_budget_back(home: House) -> None:
    """Four crashes, each further on than the one before, with a budget of two in a row."""
    wounds = "kill!:30,exit!:60,empty!:90,truncated!:120"
    once = wounds.replace("!", "")
    home.write(
        home.by_hand("one", "--wound", once, "--steps", "140") + "[jobs.one.budget]\nrestarts = 2\nbackoff_s = [0.0]\n"
    )
    home.start()
    job = home.phase("one", "finished", limit_s=60)
    assert job["restarts"] == 4
