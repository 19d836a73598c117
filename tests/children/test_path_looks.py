"""Paths are looked at in a child: a file system that answers nothing, not even to SIGKILL, holds no process of ours."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from supervisor.children.path_looks import PathLooks, SilentPathError
from tests.rigs.hanging_fs import HangingFs

LIMIT_S = 1.0
ENDS_WITHIN_S = 60.0


@pytest.fixture
def far(far: HangingFs) -> HangingFs:
    (far.real / "data").mkdir()
    return far


@pytest.fixture
def looks() -> Iterator[PathLooks]:
    with PathLooks(LIMIT_S) as found:
        yield found


def children_that_look() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended, and has no words any more where it was not waited for
            found += [child] * ("parts_of" in " ".join(child.cmdline()))
    return found


def test_what_lies_at_a_path_is_found_through_its_links(tmp_path: Path, looks: PathLooks) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    found = looks.look(tmp_path / "link" / ".." / "real" / "file")
    expected = (tmp_path / "real" / "file").stat()
    assert (found.mode, found.uid, found.gid) == (expected.st_mode, expected.st_uid, expected.st_gid)
    assert found.free_bytes > 0
    assert stat.S_ISDIR(looks.look(tmp_path / "link").mode)
    assert stat.S_ISDIR(looks.look("/").mode)
    for wrong, error in (("none", FileNotFoundError), ("real/file/below", NotADirectoryError), ("loop", OSError)):
        with pytest.raises(error):
            looks.look(tmp_path / wrong)
    with pytest.raises(OSError, match="Invalid argument"):
        looks.look("a\0b")
    assert len(children_that_look()) == 1


def test_a_name_may_be_of_any_bytes_and_one_that_no_file_can_have_is_refused(tmp_path: Path, looks: PathLooks) -> None:
    file, link = tmp_path / os.fsdecode(b"two\nlines, \xff and a space"), tmp_path / os.fsdecode(b"link\xfe")
    file.write_text("x")
    link.symlink_to(file)
    assert stat.S_ISREG(looks.look(link).mode)
    with pytest.raises(OSError, match="Invalid argument"):
        looks.look(tmp_path / "\ud800")
    assert looks.look(tmp_path).mode == tmp_path.stat().st_mode


def test_a_relative_path_begins_where_this_process_is(looks: PathLooks) -> None:
    assert looks.look(".").mode == Path.cwd().stat().st_mode


def test_a_child_that_was_killed_is_no_silent_file_system(tmp_path: Path, looks: PathLooks) -> None:
    looks.look(tmp_path)
    (child,) = children_that_look()
    child.kill()
    with pytest.raises(OSError, match=r"has ended|Broken pipe"):
        looks.look(tmp_path)
    assert looks.look(tmp_path).mode == tmp_path.stat().st_mode


@pytest.mark.mounts
def test_a_file_system_that_hangs_is_named_and_asked_once(tmp_path: Path, looks: PathLooks, far: HangingFs) -> None:
    (tmp_path / "training").symlink_to(far.at / "data")
    assert stat.S_ISDIR(looks.look(tmp_path / "training").mode)
    far.hang(beyond_sigkill=True)
    with pytest.raises(SilentPathError, match=f"{far.at} does not answer within 1 s"):
        looks.look(tmp_path / "training")
    with pytest.raises(SilentPathError, match=f"{far.at} does not answer within 1 s"):
        looks.look(far.at / "data" / "other")
    assert stat.S_ISDIR(looks.look(tmp_path).mode)
    assert len(children_that_look()) == 2  # that which is held, and that which answers


SCRIPT = """
import sys
from supervisor.config import check
print(check(__import__("pathlib").Path(sys.argv[1])).warnings[0].problem)
"""


@pytest.mark.mounts
def test_a_process_that_checked_a_configuration_on_such_a_disk_ends(tmp_path: Path, far: HangingFs) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[jobs.a]\ncommand = ["true"]\ncwd = "{far.at}/data"\n')
    far.hang(beyond_sigkill=True)
    asked = subprocess.Popen([sys.executable, "-c", SCRIPT, config], stdout=subprocess.PIPE, text=True)
    try:
        assert asked.stdout is not None
        assert f"{far.at} does not answer" in asked.stdout.readline()
        assert asked.wait(ENDS_WITHIN_S) == 0
    finally:
        far.go_on()
        asked.kill()


@pytest.mark.mounts
@pytest.mark.parametrize("what", ["the state directory", "the configuration"])
def test_doctor_ends_while_the_disk_of_what_it_needs_hangs(tmp_path: Path, far: HangingFs, what: str) -> None:
    config = (far.real if what == "the configuration" else tmp_path) / "config.toml"
    config.write_text(f'[supervisor]\nstate_dir = "{far.at}/state"\n')
    named = far.at / "config.toml" if what == "the configuration" else config
    far.hang(beyond_sigkill=True)
    doctor = [str(Path(sys.executable).with_name("rocm-supervisorctl")), "--config", str(named), "doctor"]
    asked = subprocess.Popen(doctor, stdout=subprocess.PIPE, text=True)
    try:
        assert asked.wait(ENDS_WITHIN_S) == 1
        assert asked.stdout is not None
        printed = asked.stdout.read()
        assert f"not asked: {far.at} does not answer within 1 s" in printed
        assert "sqlite" in printed
    finally:
        far.go_on()
        asked.kill()


@pytest.mark.mounts
def test_a_file_system_that_nobody_can_write_is_known_as_one(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts a file system of its own")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(tmp_path)], check=False)
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        with PathLooks() as looks:
            assert looks.look(tmp_path).read_only
            assert not looks.look(tmp_path.parent).read_only
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
