"""Fixtures of the agent's room."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_by_hand import Attempt, interpreters


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path / "attempt")


@pytest.fixture(params=interpreters(), ids=lambda path: path.parts[-3])
def python(request: pytest.FixtureRequest) -> Path:
    """Each bare interpreter in turn: no torch, no packages."""
    return Path(str(request.param))
