"""A disk of a few megabytes, so that a test can fill it: a file system in memory, mounted for the time of the test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(at: Path, megabytes: int) -> Iterator[Path]:
    """Mount one at a folder that is made for it; skips the test where it may not."""
    if os.geteuid() != 0:
        pytest.skip("mounts a small file system of its own, for which it must be root")
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(at)]
    made_it = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made_it.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made_it.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
