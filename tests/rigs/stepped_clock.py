"""A wall clock that a test can step, for a process and all that it starts; the machine's own clock stays as it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


class SteppedClock:
    """The clock; skips the test where there is no C compiler."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler (cc) is installed")
        self._offset = folder / "clock-offset"
        self._library = folder / "stepped_clock.so"
        build = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE)]
        subprocess.run(build, check=True, capture_output=True)
        self.step_to(0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that shall see this clock."""
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._offset)}

    def step_to(self, by_s: int) -> None:
        """Let the wall clock differ by so many seconds from the machine's, from now on."""
        part = self._offset.with_suffix(".part")
        part.write_text(f"{by_s}\n")
        part.rename(self._offset)
