"""Where the kernel lets children not be kept apart from the daemon's files, that is said, and trainings run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House

from tests.rigs import refused_calls


class Filtered(House):
    """Its daemon runs as in a container that refuses what it is not known to need."""

    def command(self) -> list[str]:
        """What starts the daemon."""
        return [sys.executable, refused_calls.__file__, *super().command()]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    item = Filtered(tmp_path)
    item.write(item.by_hand("one"))
    try:
        yield item
    finally:
        item.leave()


@pytest.mark.skipif(platform.machine() not in refused_calls.UNSHARE, reason="not a known machine")
def test_children_that_share_the_daemons_files_are_reported_and_trainings_run(home: House) -> None:
    home.start()
    home.step("one", 20)
    assert "children.share_files" in home.log.read_text()
    doctor = home.ctl("doctor").stdout
    assert "child processes inherit the daemon's open files" in doctor
    assert "Operation not permitted" in doctor
