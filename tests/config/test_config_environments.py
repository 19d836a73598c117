"""Other environments of a job: how its command runs in each, and what is refused."""

from __future__ import annotations

import pytest

from supervisor.config import check_text
from supervisor.config.environments import command_in
from supervisor.config.settings import EnvironmentSettings

OTHER = EnvironmentSettings(python="/opt/other/bin/python")
HEAD = "[jobs.night]\n"


@pytest.mark.parametrize(
    ("command", "there"),
    [
        (["python3", "-u", "t.py"], ["/opt/other/bin/python", "-u", "t.py"]),
        (["/venv/bin/python3.11", "t.py"], ["/opt/other/bin/python", "t.py"]),
        (["env", "A=1", "python", "t.py"], ["env", "A=1", "/opt/other/bin/python", "t.py"]),
        (
            ["/v/bin/torchrun", "-n", "2", "t.py"],
            ["/opt/other/bin/python", "-m", "torch.distributed.run", "-n", "2", "t.py"],
        ),
        (["bash", "run.sh"], ["bash", "run.sh"]),
    ],
)
def test_the_interpreter_of_a_command_is_exchanged(command: list[str], there: list[str]) -> None:
    assert command_in(OTHER, command) == there


def test_a_command_whose_interpreter_is_not_known_is_refused_with_what_to_do() -> None:
    text = HEAD + 'command = ["bash", "run.sh"]\n[jobs.night.environments.b]\npython = "/opt/other/bin/python"\n'
    (problem,) = check_text(text, "some.toml").problems
    assert (problem.key, problem.line) == ("jobs.night.command", 2)
    assert "its interpreter is not known" in problem.problem
    assert "torchrun" in (problem.allowed or "")


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ("env = {A = '1'}", "jobs.night.environments.b.python", "missing"),
        (
            'python = "/p"\nenv = {ROCM_SUPERVISOR_JOB = "x"}',
            "jobs.night.environments.b.env.ROCM_SUPERVISOR_JOB",
            "set by",
        ),
        ('pyhton = "/p"\npython = "/q"', "jobs.night.environments.b.pyhton", ""),
    ],
)
def test_what_an_environment_cannot_be_is_named(table: str, key: str, words: str) -> None:
    problems = check_text(
        HEAD + f'command = ["python", "t.py"]\n[jobs.night.environments.b]\n{table}\n', "some.toml"
    ).problems
    found = {problem.key: problem for problem in problems}
    assert words in found[key].problem
    assert found[key].line is not None
