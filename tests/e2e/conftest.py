"""One installation a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    """An installation in a folder of its own; nothing of it runs on after the test."""
    with house(tmp_path) as item:
        item.shares_imports = True
        yield item
