"""Each trouble of a training is found by the right rule, and the training goes on from the right step."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from house import House

STALL = "limit_s = 3"


def complete(incident: dict[str, Any]) -> None:
    """Assert that an incident tells all that it cost."""
    assert incident["outcome"] == "resumed"
    assert incident["severity"] == "critical"
    assert incident["downtime_s"] > 0
    assert incident["lost_steps"] == incident["last_step"] - incident["resumed_from"]["step"]
    assert Path(incident["evidence"]).is_dir()


def gone_over(home: House, name: str, incident: dict[str, Any]) -> None:
    """Assert that the first attempt ended where it is said to have, and the second began after the checkpoint."""

    def turns() -> list[int]:
        steps = home.steps_made(name)
        return [n for n in range(1, len(steps)) if steps[n] != steps[n - 1] + 1]

    home.until(lambda: bool(turns()), 20, "the training to write down its step")  # the daemon may know of it before
    made, turn = home.steps_made(name), turns()[0]
    assert made[turn - 1] == incident["last_step"]
    assert made[turn] == incident["resumed_from"]["step"] + 1


@pytest.mark.parametrize(
    ("wound", "words"),
    [("kill", "killed by SIGKILL"), ("exit", "7")],
)
def test_a_training_that_dies_is_resumed_from_its_last_checkpoint(home: House, wound: str, words: str) -> None:
    home.write(home.by_hand("one", "--wound", f"{wound}:60"))
    home.start()
    incident = home.resumed("one")
    complete(incident)
    assert incident["rule"] == "crash"
    assert words in incident["message"]
    assert (incident["last_step"], incident["resumed_from"]["step"], incident["lost_steps"]) == (59, 50, 9)
    gone_over(home, "one", incident)


def test_a_training_that_a_signal_has_stopped_saves_and_loses_no_step(home: House) -> None:
    home.write(home.by_hand("one", stopped_process="hold_s = 6\nmin_readings = 3\ncontinue_first = false"))
    home.start()
    os.kill(home.step("one", 30)["pid"], signal.SIGSTOP)
    incident = home.resumed("one")
    complete(incident)
    assert (incident["rule"], incident["lost_steps"]) == ("stopped_process", 0)
    assert "SIGCONT" in incident["message"]


def test_a_training_that_a_signal_has_stopped_is_continued_without_a_restart(home: House) -> None:
    home.write(home.by_hand("one", stopped_process="hold_s = 6\nmin_readings = 3"))
    home.start()
    pid = home.step("one", 30)["pid"]
    os.kill(pid, signal.SIGSTOP)
    made = home.steps_made("one")[-1]
    home.made("one", made + 100)
    assert [item["message"] for item in home.incidents()] == [], home.read_output()[-3000:]
    assert home.job("one")["pid"] == pid
    ((reason, rule),) = home.query("SELECT reason, rule FROM decisions WHERE kind = 'continue'")
    assert rule == "stopped_process"
    assert f"SIGCONT is sent to {pid}" in reason
    assert home.query("SELECT severity FROM flags WHERE rule = 'stopped_process'") == [("warning",)]
    home.until(lambda: bool(home.query("SELECT 1 FROM events WHERE kind = 'continued'")), 20, "the record of SIGCONT")


def test_a_hang_is_found_by_the_step_counter_and_its_evidence_shows_where(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "hang:60", stall=STALL))
    home.start()
    incident = home.resumed("one")
    complete(incident)
    assert incident["rule"] == "stall"
    assert incident["decision"] == "stop"
    assert (incident["last_step"], incident["resumed_from"]["step"]) == (59, 50)
    assert incident["downtime_s"] >= 3
    gone_over(home, "one", incident)
    stacks = [path.read_text() for path in Path(incident["evidence"]).glob("stacks*.txt")]
    assert any("wait_for_ever" in stack for stack in stacks), list(Path(incident["evidence"]).iterdir())


def test_a_hang_right_after_validation_at_full_load_is_found_by_the_step_counter(home: House) -> None:
    """The owner's nights of 14 and 15 November: 100 % CPU, and nobody knew for 7.8 hours."""
    home.write(home.by_hand("one", "--wound", "spin:60", stall=STALL))
    home.start()
    incident = home.resumed("one")
    complete(incident)
    assert incident["rule"] == "stall"
    assert "stage step" in incident["message"]
    stacks = [path.read_text() for path in Path(incident["evidence"]).glob("stacks*.txt")]
    assert any("in spin" in stack for stack in stacks)


def test_a_hang_before_the_first_batch_of_a_resume_is_found_and_resumed_again(home: House) -> None:
    """The owner's 18 November: the epoch's header, and then nothing, three resumes in a row."""
    timeout = "warmup_limit_s = 2"
    home.write(home.by_hand("one", "--wound", "kill:60", "--stuck-when-resumed", start_timeout=timeout))
    home.start()
    home.step("one", 70, attempt=3)
    stuck, killed = home.incidents()[::-1][:2]
    assert (killed["rule"], killed["outcome"]) == ("crash", "overtaken")
    assert (stuck["rule"], stuck["outcome"], stuck["resumed_from"]["step"]) == ("start_timeout", "resumed", 50)
    assert home.steps_made("one")[57:61] == [58, 59, 51, 52]


def test_a_training_deaf_to_sigterm_is_killed_after_its_grace(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "deaf:60", table="save_s = 0.5", stall="limit_s = 2"))
    home.start()
    incident = home.resumed("one", limit_s=60)
    complete(incident)
    assert incident["rule"] == "stall"
    assert incident["resumed_from"]["step"] == 50
    kinds = [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = 'one' ORDER BY id")]
    assert kinds == ["launch", "stop", "kill", "retry", "launch"]


def test_a_loss_that_became_nan_is_resumed_from_before_it(home: House) -> None:
    """From step 60 on losses are NaN, so the checkpoint of step 60 holds the harm already.

    Of what is not proven yet the newest three are kept: what is saved before the end must not be so many.
    """
    home.write(home.by_hand("one", "--wound", "nan:60", "--save-every", "20", "--every-s", "0.05"))
    home.start()
    incident = home.resumed("one")
    complete(incident)
    assert incident["rule"] == "non_finite_loss"
    assert incident["resumed_from"]["step"] == 40
    gone_over(home, "one", incident)


def test_a_checkpoint_saved_in_the_last_moment_is_not_missed(home: House) -> None:
    """The first checkpoint of all, a step before the end: to miss it would be to begin anew."""
    home.write(home.by_hand("one", "--wound", "kill:26"))
    home.start()
    incident = home.resumed("one")
    complete(incident)
    assert (incident["last_step"], incident["resumed_from"]["step"], incident["lost_steps"]) == (25, 25, 0)


def test_two_troubles_one_after_the_other_are_two_incidents(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "kill:40,exit:80", "--steps", "120"))
    home.start()
    home.phase("one", "finished")
    first, second = home.incidents("one")
    complete(first)
    complete(second)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert home.job("one")["restarts"] == 2
    assert home.steps_made("one")[-1] == 120


def test_a_rule_in_shadow_records_what_it_would_have_done_until_it_is_promoted(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "hang:60", stall=f'{STALL}\nact = "shadow"'))
    home.start()
    home.until(lambda: home.job("one")["shadows"] == 1, 30, "the stall to be noted")
    job = home.job("one")
    assert job["phase"] == "running"
    assert job["flags"][0].startswith("stall (in shadow): no step for")
    nearest = home.client.get("/v1/status")["jobs"][0]["watched"][0]
    assert (nearest["rule"], nearest["limit"], nearest["share"], nearest["shadow"]) == ("stall", 3.0, 1.0, True)
    assert home.incidents("one") == []
    output = home.ctl("history", "one", "--shadow").stdout
    assert "would act  stall: no step for 3 s" in output
    assert "shadow  no step, in stage step" in home.ctl("status", "one").stdout
    home.config.write_text(home.config.read_text().replace('act = "shadow"', "act = true"))
    assert home.ctl("reload").returncode == 0
    incident = home.resumed("one")
    complete(incident)
    assert incident["rule"] == "stall"
    assert incident["diagnosis"]["causes"]
    assert "    likely  " in home.ctl("show", incident["id"]).stdout
    assert home.job("one")["shadows"] == 1
    assert "rule.promoted" in home.log.read_text()
    assert home.query("SELECT count(*) FROM events WHERE kind = 'rule_changed'") == [(1,)]
