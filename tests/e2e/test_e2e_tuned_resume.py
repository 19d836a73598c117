"""What a tune has adopted holds after every start of the same command, also where a resume has its own."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from house import TRAINING, House

from supervisor.core import attempt_files as fo
from supervisor.runner import tuned

ADOPTED = {"adopted": [{"knob": "workers", "value": 2}]}


@pytest.mark.parametrize("tuned_before", [True, False], ids=["tuned", "never tuned"])
def test_after_two_faults_without_progress_a_launch_is_without_what_was_adopted(
    home: House, *, tuned_before: bool
) -> None:
    """It may be the reason. The log says so, and says nothing where nothing was adopted."""
    home.write(home.by_hand("one", "--wound", "kill!:30", table="budget.backoff_s = [0.0]\nbudget.restarts = 2\n"))
    command = [sys.executable, str(TRAINING), "--folder", str(home.folder / "one"), "--wound", "kill!:30"]
    (home.folder / "one").mkdir()
    (home.state / "jobs" / "one").mkdir(parents=True, mode=0o700)
    if tuned_before:
        tuned.keep(home.state / "jobs" / "one", command, ADOPTED, {})
    home.start()
    home.phase("one", "failed", limit_s=60)
    attempts = [home.state / "jobs" / "one" / str(number) for number in range(1, home.job("one")["attempt"] + 1)]
    assert [(attempt / fo.TUNE).exists() for attempt in attempts] == [tuned_before, tuned_before, False]
    assert ("tuned.left_out" in home.log.read_text()) == tuned_before


@pytest.mark.parametrize("leads_to_it", [True, False], ids=["the same command", "another command"])
def test_what_was_adopted_is_given_to_a_training_that_goes_on_by_its_resume_command(
    home: House, leads_to_it: bool
) -> None:
    command = [sys.executable, str(TRAINING), "--folder", str(home.folder / "one")]
    saved = f'checkpoints = {{ paths = ["{home.folder}/one/*.safetensors"] }}\n'
    resume = f"resume.command = {json.dumps([*command, '--until', '{checkpoint}.end'])}\n"
    home.write(home.job_of("one", command, saved + resume))
    home.start()
    home.step("one", 40)
    home.until(lambda: bool(home.proven("one")), 30, "a proven checkpoint")
    tuned.keep(home.state / "jobs" / "one", command if leads_to_it else [*command, "--steps", "9"], ADOPTED, {})
    os.kill(home.job("one")["pid"], signal.SIGKILL)
    home.step("one", 60, attempt=2)
    second = home.state / "jobs" / "one" / "2"
    assert "--until" in json.loads((second / fo.LAUNCH).read_text())["argv"]
    assert (second / fo.TUNE).exists() == leads_to_it
    if leads_to_it:
        assert json.loads((second / fo.TUNE).read_text())["settings"] == {"workers": 2}
