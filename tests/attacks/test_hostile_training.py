"""A short seeded attack by a hostile training, beside a healthy one; `make attacks` runs long ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")
ACTIONS = 150
"""About half a minute."""


@pytest.mark.long
@pytest.mark.calm(reason="compares durations with limits")
@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a pid namespace of its own")
@pytest.mark.parametrize("seed", [1])
def test_no_invariant_is_broken_by_a_hostile_training(seed: int, tmp_path: Path) -> None:
    words = ["--actions", str(ACTIONS), "--seed", str(seed), "--restart-every-s", "15", "--keep", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, str(CAMPAIGN), *words], capture_output=True, text=True, timeout=600, check=False
    )
    broken = "".join(line for line in ran.stdout.splitlines(keepends=True) if line.startswith("BROKEN"))
    assert ran.returncode == 0, broken + ran.stdout[-8000:] + ran.stderr[-2000:]
    assert f"  {'actions':<36} {ACTIONS}" in ran.stdout, "the attack did not come to its end"
