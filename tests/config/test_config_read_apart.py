"""A configuration is read in a process of its own: with the same result, and without work for the one that asks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from supervisor.config import Settings, check, read_apart
from supervisor.config.difference import CHANGES_NAMED, difference

pytestmark = pytest.mark.slow
KEYS = 20_000


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of all kinds of settings, in two files, with a warning."""
    path = tmp_path / "config.toml"
    path.write_text(
        f"[supervisor]\nstate_dir = '{tmp_path}'\n[jobs.yolo]\ncommand = ['true']\ncwd = '{tmp_path}/later'\n"
        "[jobs.yolo.rules.stall]\nlimit_s = 7\nact = 'shadow'\n[jobs.yolo.env]\nA = 'b'\n"
    )
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/desk.toml").write_text("[alerts.desk]\nurl_env = 'DESK'\nkind = 'slack'\n")
    return path


def test_what_is_read_apart_is_what_is_read_here(config: Path) -> None:
    checked, changes = read_apart.read_apart(config, Settings())
    assert checked == check(config)
    assert checked.settings is not None
    assert [warning.key for warning in checked.warnings] == ["jobs.yolo.cwd"]
    assert changes == difference(Settings(), checked.settings)
    config.write_text("[jobs")
    assert read_apart.read_apart(config, Settings()) == (check(config), read_apart.NO_CHANGES)


def test_a_large_configuration_takes_this_process_next_to_no_time(config: Path) -> None:
    """While one thread works, each other one waits for the interpreter's lock whenever it wants to go on."""
    config.write_text("[kernel_log]\n" + "".join(f"k{number} = 1\n" for number in range(KEYS)))
    began_s = time.process_time()
    here = check(config)
    here_s = time.process_time() - began_s
    began_s = time.process_time()
    assert read_apart.read_apart(config, Settings())[0] == here
    assert time.process_time() - began_s < here_s / 4


def test_changes_beyond_what_is_read_are_counted(config: Path) -> None:
    config.write_text(
        "[jobs.yolo]\ncommand = ['true']\n[jobs.yolo.env]\n"
        + "".join(f"K{number} = 'a'\n" for number in range(CHANGES_NAMED + 5))
    )
    before = check(config).settings
    assert before is not None
    config.write_text(config.read_text().replace("'a'", "'b'"))
    changes = read_apart.read_apart(config, before)[1].needs_restart
    assert len(changes) == CHANGES_NAMED + 1
    assert changes[-1] == "and 5 more"


def test_a_reading_that_does_not_end_or_begin_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_apart, "LIMIT_S", 0.01)
    (problem,) = read_apart.read_apart(config, Settings())[0].problems
    assert "was not read: not within 0 s; see to its file system" in str(problem)
    monkeypatch.setattr(read_apart, "module_command", lambda _name: ("/nonexistent/python",))
    (problem,) = read_apart.read_apart(config, Settings())[0].problems
    assert "was not read: no process could be started for it" in str(problem)
    monkeypatch.setattr(read_apart, "LIMIT_S", 60.0)
    monkeypatch.setattr(read_apart, "module_command", lambda _name: ("/bin/sh", "-c", "echo why >&2; exit 3"))
    (problem,) = read_apart.read_apart(config, Settings())[0].problems
    assert "was not read: the process that reads it ended with 3: why" in str(problem)
    monkeypatch.setattr(read_apart, "module_command", lambda _name: ("/bin/echo", "of another version"))
    (problem,) = read_apart.read_apart(config, Settings())[0].problems
    assert "was not read: what is installed is not what this daemon runs" in str(problem)
    assert "restart the daemon" in str(problem)
