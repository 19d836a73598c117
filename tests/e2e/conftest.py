"""One installation a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house

from tests.rigs.hanging_fs import HangingFs, hanging


@pytest.fixture
def home(tmp_path: Path, code_copies: Path) -> Iterator[House]:
    """An installation in a folder of its own; nothing of it runs on after the test."""
    with house(tmp_path) as item:
        item.shares_imports, item.code_copies = True, code_copies
        yield item


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingFs]:
    """A disk that can be slow, fail, or hang."""
    with hanging(tmp_path / "disk", tmp_path / "behind") as served:
        yield served


@pytest.fixture
def home_beside_disk(tmp_path: Path, code_copies: Path, disk: HangingFs) -> Iterator[House]:
    """An installation of which a test may lay parts on that disk; at its end the disk works again."""
    (tmp_path / "house").mkdir()
    with house(tmp_path / "house") as item:
        item.shares_imports, item.code_copies = True, code_copies
        yield item
        disk.go_on()
        disk.sync_s, disk.all_fails, disk.failure = 0.0, False, None
