"""What the tests of the sources share: the simulated card."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "rigs"))

from amdgpu_tree import AmdgpuTree


@pytest.fixture
def tree(tmp_path: Path) -> AmdgpuTree:
    """The sysfs of a machine with one RX 5600 XT."""
    return AmdgpuTree.build(tmp_path / "tree")
