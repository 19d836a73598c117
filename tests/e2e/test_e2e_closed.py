"""A folder of checkpoints that is closed to the daemon is told while it stands, and a relaunch stops and says so.

The daemon runs without the rights by which root looks everywhere, as the service's user does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House

WITHOUT = "-dac_override,-dac_read_search"
NOBODY = 65534


class Narrow(House):
    """A daemon that may look only where its user may."""

    def command(self) -> list[str]:
        """What starts it."""
        return ["setpriv", f"--bounding-set={WITHOUT}", f"--inh-caps={WITHOUT}", *super().command()]


@pytest.fixture
def narrow(tmp_path: Path, code_copies: Path) -> Iterator[Narrow]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to take rights away")
    home = Narrow(tmp_path)
    home.code_copies = code_copies
    try:
        yield home
    finally:
        home.leave()


def theirs(home: House) -> Path:
    """Make the folder of somebody else, with a checkpoint in it, open to all."""
    folder = home.folder / "theirs"
    folder.mkdir()
    (folder / "last.safetensors").write_bytes(b"saved")
    os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o755)
    return folder


def configured(home: House, *options: str) -> None:
    table = f'checkpoints.paths = ["{home.folder}/theirs/*.safetensors"]\nbudget.backoff_s = [0.0]\n'
    home.write(home.by_hand("one", "--every-s", "0.1", *options, table=table))


def flags(home: House) -> list[str]:
    return [flag for flag in home.job("one")["flags"] if "checkpoints cannot be read" in flag]


@pytest.mark.calm(reason="compares a duration with a limit")
def test_a_folder_that_is_closed_in_mid_run_is_reported_within_10_s_until_it_is_open(narrow: Narrow) -> None:
    folder = theirs(narrow)
    configured(narrow)
    narrow.start()
    narrow.step("one", 3)
    assert flags(narrow) == []
    folder.chmod(0o700)
    narrow.until(lambda: bool(flags(narrow)), 10, "the closed folder to be told", strictly=True)
    (output,) = flags(narrow)
    assert f"{folder} is closed to the daemon: `chmod g+rx {folder}`" in output
    assert f"chmod g+rx {folder}" in narrow.ctl("doctor").stdout
    folder.chmod(0o755)
    narrow.until(lambda: not flags(narrow), 10, "the open folder not to be told any more", strictly=True)


def test_a_pattern_that_is_a_folder_is_reported_in_the_first_attempt(home: House) -> None:
    (home.folder / "one").mkdir()
    home.write(home.by_hand("one", "--every-s", "0.1", table=f'checkpoints.paths = ["{home.folder}/one"]'))
    home.start()
    home.until(lambda: bool(home.query("SELECT 1 FROM flags WHERE rule = 'checkpoint_unseen'")), 60, "the warning")
    (output,) = [flag for flag in home.job("one")["flags"] if "checkpoints are not found" in flag]
    assert f'write "{home.folder}/one/*' in output
    assert f"is the folder {home.folder}/one" in output
    assert home.job("one")["phase"] in ("starting", "running")


def test_a_relaunch_that_cannot_look_stops_and_says_so_and_goes_on_once_it_can(narrow: Narrow) -> None:
    folder = theirs(narrow)
    configured(narrow, "--wound", "kill:30", "--save-every", "1000")
    narrow.start()
    narrow.step("one", 3)
    folder.chmod(0o700)
    job = narrow.phase("one", "failed", limit_s=40)
    assert "checkpoints cannot be read, and a start could overwrite them" in job["reason"]
    assert f"chmod g+rx {folder}" in job["reason"]
    assert narrow.steps_made("one")[-1] in (29, 30)
    folder.chmod(0o755)
    narrow.ctl("start", "one")
    narrow.step("one", 5, attempt=2)


def test_what_lies_there_is_copied_before_a_training_begins_next_to_it(narrow: Narrow) -> None:
    folder = theirs(narrow)
    configured(narrow)
    narrow.start()
    narrow.step("one", 3)
    (copy,) = narrow.state.glob("jobs/one/existing/1/*/last.safetensors")
    assert copy.read_bytes() == (folder / "last.safetensors").read_bytes()
    assert copy.stat().st_mode & 0o077 == 0 or copy.parent.stat().st_mode & 0o077 == 0
    (output,) = narrow.job("one")["flags"]
    text = "started without a checkpoint handed to it, although 1 unproven checkpoints exist; copies of 1 are kept in"
    assert text in output
