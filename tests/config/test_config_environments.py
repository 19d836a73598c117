"""Other environments of a job: how its command runs in each, and what is refused."""

from __future__ import annotations

import os

import pytest

from supervisor.children.path_looks import Found, PathLooks
from supervisor.config import check_text
from supervisor.config.cross import cross_check
from supervisor.config.environments import INIT, command_in, contained, container_name, removal
from supervisor.config.problems import Level
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


@pytest.mark.slow
def test_a_command_whose_interpreter_is_not_known_is_refused_with_what_to_do() -> None:
    text = HEAD + 'command = ["bash", "run.sh"]\n[jobs.night.environments.b]\npython = "/opt/other/bin/python"\n'
    problem, absent = check_text(text, "some.toml").problems
    assert (problem.key, problem.line) == ("jobs.night.command", 2)
    assert absent.key == "jobs.night.environments.b.python"
    assert "its interpreter is not known" in problem.problem
    assert "torchrun" in (problem.allowed or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ("env = {A = '1'}", "jobs.night.environments.b", "names neither python nor image"),
        ('python = "/p"\nimage = "i"', "jobs.night.environments.b", "names both python and image"),
        ('python = "/p"\nmounts = ["/data"]', "jobs.night.environments.b.mounts", "needs an image"),
        (
            'python = "/p"\nenv = {ROCM_SUPERVISOR_JOB = "x"}',
            "jobs.night.environments.b.env.ROCM_SUPERVISOR_JOB",
            "set by",
        ),
        ('image = "i"\nengine = "docker"', "jobs.night.environments.b.engine", ""),
        ('image = "--privileged"', "jobs.night.environments.b.image", "is an option of podman"),
        ('python = "/absent/python"', "jobs.night.environments.b.python", "is not a file on this machine"),
        ('pyhton = "/p"\nimage = "i"', "jobs.night.environments.b.pyhton", ""),
    ],
)
def test_what_an_environment_cannot_be_is_named(table: str, key: str, words: str) -> None:
    problems = check_text(
        HEAD + f'command = ["python", "t.py"]\n[jobs.night.environments.b]\n{table}\n', "some.toml"
    ).problems
    found = {problem.key: problem for problem in problems}
    assert words in found[key].problem
    assert found[key].line is not None


class BareMachine(PathLooks):
    """A machine with no file at all."""

    def look(self, path: str | os.PathLike[str]) -> Found:
        raise FileNotFoundError(path)


@pytest.mark.slow
def test_a_machine_without_podman_is_warned_of() -> None:
    settings = check_text(
        HEAD + 'command = ["python", "t.py"]\n[jobs.night.environments.b]\nimage = "i"\n', "s"
    ).settings
    assert settings is not None
    problems = {problem.key: problem for problem in cross_check(settings, "s", BareMachine())}
    problem = problems["jobs.night.environments.b.image"]
    assert "needs podman, which is not in /usr/local/bin or /usr/bin" in problem.problem
    assert problem.level is Level.WARNING


def test_a_container_runs_in_the_foreground_with_the_folders_of_the_job() -> None:
    box = EnvironmentSettings(image="local/torch:1", mounts=["/data:/data:ro"], devices=["nvidia.com/gpu=all"])
    run = contained(
        box,
        command_in(box, ["python", "t.py"]),
        name="n",
        cwd="/w",
        env={"A": "1"},
        folders=["/s", "/w"],
        devices=["/dev/kfd"],
    )
    podman = run.index("podman")
    assert run[podman : podman + 5] == ["podman", "--cgroup-manager=cgroupfs", "run", "--rm", "--name"]
    assert [run[place + 1] for place, word in enumerate(run) if word == "--volume"] == [
        "/s:/s",
        "/w:/w",
        "/data:/data:ro",
    ]
    assert "--cgroups=disabled" in run
    assert [run[place + 1] for place, word in enumerate(run) if word == "--device"] == [
        "/dev/kfd",
        "nvidia.com/gpu=all",
    ]
    assert run[run.index("local/torch:1") + 1 :] == [*INIT, "python3", "t.py"]
    assert run[run.index("--env") + 1] == "A"  # its value is not on the command line, which everybody can read


def test_the_name_of_a_container_is_one_jobs_of_one_daemon() -> None:
    name = container_name("/var/lib/s/jobs/night", "night", "training")
    assert name.startswith("rocm-supervisor-night-")
    assert name == container_name("/var/lib/s/jobs/night", "night", "training")
    assert name != container_name("/home/me/s/jobs/night", "night", "training")
    assert removal(name)[-5:] == ["rm", "--force", "--ignore", "--time=0", name]


def test_the_variables_of_a_preset_are_the_job_s_unless_it_sets_them_itself() -> None:
    text = '[jobs.a]\ncommand = ["true"]\npreset = "gfx1031"\nenv = { A = "1" }\n'
    settings = check_text(text, "config.toml").settings
    assert settings is not None
    assert settings.jobs["a"].env == {"HSA_OVERRIDE_GFX_VERSION": "10.3.0", "A": "1"}
    own = check_text(text.replace('A = "1"', 'HSA_OVERRIDE_GFX_VERSION = "10.3.1"'), "config.toml").settings
    assert own is not None
    assert own.jobs["a"].env == {"HSA_OVERRIDE_GFX_VERSION": "10.3.1"}
    refused = check_text(text.replace("gfx1031", "gfx7"), "config.toml")
    assert [(problem.key, problem.problem) for problem in refused.problems] == [("jobs.a.preset", "is no preset")]
    assert '"gfx1031"' in (refused.problems[0].allowed or "")
