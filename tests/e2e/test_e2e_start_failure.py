"""A training that cannot start is given up within seconds, with the line that says why."""

from __future__ import annotations

import sys

import pytest
from house import House

RESUME = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--weights")
path = parser.parse_args().weights
raise KeyError("epoch_of_the_run")
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import timmm_that_is_nowhere", "ModuleNotFoundError: No module named 'timmm_that_is_nowhere'"),
        ("open('/nowhere/data.yaml')", "No such file or directory: '/nowhere/data.yaml'"),
        ("import argparse; argparse.ArgumentParser(prog='t.py').parse_args(['--epocs'])", "t.py: error: unrecognized"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_program_that_cannot_start_is_given_up_after_the_second_try(home: House, program: str, words: str) -> None:
    script = home.folder / "program.py"
    script.write_text(program)
    home.write(home.job_of("one", [sys.executable, str(script)]))
    home.start()
    home.phase("one", "failed", limit_s=40)
    kinds = [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = 'one' ORDER BY id")]
    assert kinds == ["launch", "retry", "launch", "give_up"]
    assert words in home.job("one")["reason"]
    assert "before its first step in the same way twice" in home.job("one")["reason"]


def test_a_command_that_does_not_exist_is_given_up_after_the_second_try(home: House) -> None:
    home.write(home.job_of("one", ["pyhton", "train.py"]))
    home.start()
    home.phase("one", "failed", limit_s=40)
    kinds = [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = 'one' ORDER BY id")]
    assert kinds == ["launch", "retry", "launch", "give_up"]
    assert "command 'pyhton' of the job: not found" in home.job("one")["reason"]
    assert "correct `command`" in home.job("one")["reason"]


def test_a_resume_command_that_loads_no_checkpoint_is_reported_to_be_at_fault(home: House) -> None:
    script = home.folder / "resume.py"
    script.write_text(RESUME)
    resume = f'resume.command = ["{sys.executable}", "{script}", "--weights", "{{checkpoint}}"]'
    home.write(home.by_hand("one", "--wound", "kill:60", table=resume))
    home.start()
    home.phase("one", "failed", limit_s=60)
    reason = home.job("one")["reason"]
    assert "the resume command is at fault" in reason
    assert "epoch_of_the_run" in reason
    kinds = [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = 'one' ORDER BY id")]
    assert kinds.count("launch") == 4
    began, ended = home.query("SELECT min(at_unix_s), max(at_unix_s) FROM decisions WHERE job = 'one' AND attempt > 1")[
        0
    ]
    assert ended - began <= 40
