"""One box with the project installed, shared by the tests of this room; skipped with the reason where none boots."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rigs.installed_box import InstalledBox, installed_box, may_boot


@pytest.fixture(scope="session")
def installed() -> Iterator[InstalledBox]:
    reason = may_boot()
    if reason:
        pytest.skip(reason)
    with installed_box() as item:
        yield item
