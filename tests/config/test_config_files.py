"""A configuration is one file, or one and those in `conf.d` beside it: merged, checked and judged as one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.cli.app import App
from supervisor.cli.main import cli
from supervisor.cli.paths import read_table
from supervisor.config import ConfigError, check, check_text, files, load
from supervisor.config.difference import difference
from supervisor.config.load import check_alone
from supervisor.config.positions import find_lines

JOB = '[jobs.{}]\ncommand = ["true"]\n'


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A configuration with one job, and an empty folder for more beside it."""
    (tmp_path / "conf.d").mkdir()
    path = tmp_path / "config.toml"
    path.write_text("[supervisor]\nagent = true\n\n" + JOB.format("night"))
    return path


def add(main: Path, name: str, text: str) -> Path:
    path = main.parent / "conf.d" / name
    path.write_text(text)
    return path


def test_files_of_the_folder_add_jobs_receivers_and_keys(main: Path) -> None:
    add(main, "20-day.toml", JOB.format("day") + "[alerts.desk]\nurl_env = 'DESK'\n")
    add(main, "10-times.toml", "[supervisor]\nlog_level = 'debug'\n[telemetry]\ninterval_s = 2\n")
    settings = load(main)
    assert set(settings.jobs) == {"night", "day"}
    assert set(settings.alerts) == {"desk"}
    assert (settings.supervisor.log_level, settings.telemetry.interval_s) == ("debug", 2.0)
    names = [Path(file).name for file in check(main).files]
    assert names == ["config.toml", "10-times.toml", "20-day.toml"]


def test_many_keys_that_two_files_define_are_found_in_one_reading_of_each(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred are noted; to look through a large text for each took a minute, in which a reload was not answered."""
    texts: list[str] = []

    def find_and_count(text: str) -> Mapping[tuple[str, ...], int]:
        texts.append(text)
        return find_lines(text)

    monkeypatch.setattr(files, "find_lines", find_and_count)
    keys = "".join(f"k{number} = 1\n" for number in range(1000))
    main.write_text(keys)
    add(main, "a.toml", keys)
    problem = check(main).problems[99]
    assert problem.problem == f"is defined twice: here and at {main}:100"
    assert len(texts) == 2


def test_other_files_of_the_folder_are_not_read(main: Path) -> None:
    for name in ("day.toml.disabled", ".day.toml", "README"):
        add(main, name, "this is no TOML")
    assert set(load(main).jobs) == {"night"}


@pytest.mark.parametrize(
    ("text", "key", "here", "first"),
    [
        ("\n" + JOB.format("night"), "jobs.night", 2, "config.toml:4"),
        ("[jobs.night]\ncwd = '/'\n", "jobs.night", 1, "config.toml:4"),
        ("[supervisor]\nlog_level = 'info'\nagent = false\n", "supervisor.agent", 3, "config.toml:2"),
        ("supervisor = 3\n", "supervisor", 1, "config.toml:1"),
    ],
)
def test_what_is_defined_twice_is_an_error_that_names_both_lines(
    main: Path, text: str, key: str, here: int, first: str
) -> None:
    second = add(main, "a.toml", text)
    with pytest.raises(ConfigError) as caught:
        load(main)
    (problem,) = caught.value.problems
    assert (problem.key, problem.file, problem.line) == (key, str(second), here)
    assert str(problem).endswith(f"is defined twice: here and at {main.parent}/{first}; remove one of the two")


def test_a_receiver_in_two_files_of_the_folder_is_an_error(main: Path) -> None:
    first = add(main, "a.toml", "[alerts.desk]\nurl_env = 'A'\n")
    add(main, "b.toml", "# the same again\n[alerts.desk]\nurl_env = 'B'\n")
    (problem,) = check(main).problems
    assert (Path(problem.file).name, problem.line) == ("b.toml", 2)
    assert f"{first}:1" in problem.problem


def test_a_problem_is_reported_at_the_file_and_line_that_it_is_in(main: Path) -> None:
    add(main, "a.toml", "[jobs.day]\ncommand = ['true']\ngrace_s = 'long'\n")
    add(main, "b.toml", "\n[jobs.noon]\ncommand = ['x', '{checkpoint}']\n")
    add(main, "c.toml", "[jobs.dusk]\ncwd = '/'\n")
    add(main, "d.toml", "[jobs.dawn]\ncommand = ['x', '--resume-from-step={number}']\n")
    found = {problem.key: (Path(problem.file).name, problem.line) for problem in check(main).problems}
    assert found["jobs.day.grace_s"] == ("a.toml", 3)
    assert found["jobs.noon.command"] == ("b.toml", 3)
    assert found["jobs.dusk.command"] == ("c.toml", 1)
    assert found["jobs.dawn.command"] == ("d.toml", 2)


def test_a_file_that_is_no_toml_is_named_with_its_line(main: Path) -> None:
    broken = add(main, "a.toml", "[jobs.day\n")
    checked = check(main)
    assert checked.settings is None
    assert (checked.problems[0].file, checked.problems[0].line) == (str(broken), 1)


def test_a_pipe_or_a_dangling_link_in_the_folder_is_refused(main: Path) -> None:
    os.mkfifo(main.parent / "conf.d" / "a.toml")
    assert "is not a regular file" in str(check(main).problems[0])
    (main.parent / "conf.d" / "a.toml").unlink()
    (main.parent / "conf.d" / "a.toml").symlink_to("nowhere.toml")
    assert "cannot be read" in str(check(main).problems[0])


def test_the_mode_of_the_file_with_the_secret_is_what_counts(main: Path) -> None:
    main.chmod(0o644)
    secret = add(main, "desk.toml", "[alerts.desk]\nurl = 'https://hooks.example/T0/B0/sesame'\n")
    secret.chmod(0o640)
    assert check(main).problems == ()
    secret.chmod(0o644)
    (warning,) = check(main).warnings
    assert (warning.file, warning.key) == (str(secret), "alerts.desk.url")


def test_the_merged_text_has_the_same_settings(main: Path) -> None:
    words = "['a \\\"word\\\" \\u00e9 \\u007f', '']".replace("'", '"')
    text = f"[jobs.day]\ncommand = ['x']\nresume.command = {words}\nenv = {{A = 'b'}}\nsnapshot_every_s = 5\n"
    add(main, "a.toml", text + "[telemetry]\ninterval_s = 0.25\n")
    checked = check(main)
    assert checked.text is not None
    assert check_text(checked.text, str(main)).settings == checked.settings


def test_a_configuration_of_one_file_is_kept_as_it_is_written(main: Path) -> None:
    assert check(main).text == main.read_text()


@pytest.mark.slow
def test_config_check_covers_the_folder(main: Path) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli, ["--config", str(main), *words], obj=App())
        return result.exit_code, result.stdout, result.stderr

    second = add(main, "a.toml", JOB.format("day"))
    assert run("config", "check")[:2] == (0, f"{main} and 1 file in conf.d: ok, jobs: 2, alerts: 0\n")
    second.write_text(JOB.format("night"))
    code, _, words = run("config", "check")
    assert (code, words.startswith(f"{second}:1: jobs.night: is defined twice")) == (1, True)
    (problem,) = json.loads(run("config", "check", "--json")[1])["problems"]
    assert (problem["file"], problem["line"]) == (str(second), 1)


def test_a_job_added_in_the_folder_is_a_difference_for_a_reload(main: Path) -> None:
    before = load(main)
    add(main, "a.toml", JOB.format("day"))
    assert any("jobs.day" in change for change in difference(before, load(main)).applied)


def test_a_kept_configuration_is_read_without_what_lies_next_to_it(main: Path) -> None:
    add(main, "a.toml", JOB.format("day"))
    checked = check_alone(main)
    assert checked.settings is not None
    assert set(checked.settings.jobs) == {"night"}


def test_the_command_line_finds_the_state_directory_in_the_folder_too(main: Path) -> None:
    add(main, "a.toml", "[supervisor]\nstate_dir = '/srv/state'\n" + JOB.format("day"))
    assert read_table(main, "supervisor") == {"agent": True, "state_dir": "/srv/state"}
    assert set(read_table(main, "jobs")) == {"night", "day"}
