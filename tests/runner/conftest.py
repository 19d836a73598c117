"""Checkpoints of real trainings, written once a run of the suite, by one process of each training environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints_written import write_checkpoints


@pytest.fixture
def written(train_python: Path, make_folder_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return make_folder_once(
        f"checkpoints {train_python.parts[-3]}", lambda folder: write_checkpoints(train_python, folder)
    )


@pytest.fixture
def made(written: Path) -> Path:
    """Checkpoints of every format; `trained.pt` is that of a real training."""
    return written / "made"


@pytest.fixture
def trained(written: Path) -> Path:
    """`before.pt` and `after.pt` of one training, an epoch apart, and `after.pt` spoilt in every way."""
    return written / "spoilt"
