"""A leader by hand, one a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from boss_by_hand import Boss


@pytest.fixture
def boss() -> Iterator[Boss]:
    """One that listens, and whose links are closed after the test."""
    item = Boss()
    yield item
    for link in item.links:
        link.close()
    item.listening.close()
