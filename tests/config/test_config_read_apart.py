"""A configuration is read in a process of its own: with the same result, and without work for the one that asks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from supervisor.config import Settings, check, read_apart
from supervisor.config.difference import CHANGES_NAMED, difference
from supervisor.shipped import module_command

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


def test_a_link_to_a_file_without_an_end_is_refused_and_the_next_reading_is_of_the_good_one(config: Path) -> None:
    good = config.read_text()
    os.mkfifo(config.parent / "pipe")
    for endless in ("/proc/kmsg", "/dev/zero", "pipe"):
        config.unlink()
        config.symlink_to(endless)
        (problem,) = read_apart.read_apart(config, Settings())[0].problems
        assert str(config) in str(problem)
        assert "has no end" in str(problem) or "is not a regular file" in str(problem) or "Permission" in str(problem)
    config.unlink()
    config.write_text(good)
    assert read_apart.read_apart(config, Settings())[0].settings is not None


def test_a_reading_ends_with_the_daemon_that_asked_for_it(config: Path) -> None:
    """It waits for the settings in force, as another waits for what it reads; its parent is not who asked."""
    reading = Popen([*module_command(read_apart.__name__), str(config), "1"], stdin=PIPE, stdout=PIPE)
    with reading:
        assert reading.wait(60) == 1
        assert reading.stdout is not None
        assert reading.stdout.read() == b""
