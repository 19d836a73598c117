"""Two calls of make that set up one environment: the second waits, says for what, and finds it done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None or shutil.which("flock") is None, reason="needs make and flock"),
]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
PYTHON = """\
#!/bin/bash
# Stands for `python -m venv --clear FOLDER`; the pip that it makes notes when it begins and ends, and waits between.
rm -rf "$4" && mkdir -p "$4/bin"
cp "$(dirname "$0")/pip" "$4/bin/pip"
"""
PIP = """\
#!/bin/bash
echo begins >> LOG
until [ -e GATE ]; do sleep 0.02; done
echo ends >> LOG
"""


class Makes:
    """Calls of make with an environment of their own, whose pip is held at a gate."""

    def __init__(self, folder: Path) -> None:
        self.venv, self.log, self.gate = folder / "venv", folder / "log", folder / "gate"
        self._python = folder / "python"
        self._running: list[subprocess.Popen[str]] = []
        for path, text in ((self._python, PYTHON), (folder / "pip", PIP)):
            path.write_text(text.replace("LOG", str(self.log)).replace("GATE", str(self.gate)))
            path.chmod(0o755)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Call make for the daemon's environment, in a process group of its own."""
        given = (f"VENV={self.venv}", f"PYTHON={self._python}", f"CACHE={self.venv.parent}/cache")
        env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        words = ["make", "--silent", *options, *given, f"{self.venv}/ready"]
        made = subprocess.Popen(words, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self._running.append(made)
        return made

    def noted(self) -> list[str]:
        """Return what the pips have noted."""
        return self.log.read_text().split() if self.log.exists() else []

    def end(self) -> None:
        """End whatever still runs."""
        self.gate.touch()
        for made in self._running:
            made.communicate(timeout=LIMIT_S)


@pytest.fixture
def makes(tmp_path: Path) -> Iterator[Makes]:
    made = Makes(tmp_path)
    yield made
    made.end()


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.perf_counter() + LIMIT_S
    while not holds():
        assert time.perf_counter() < until_s
        time.sleep(0.02)


def test_the_second_waits_says_for_what_and_finds_it_done(makes: Makes) -> None:
    first = makes.start()
    wait_until(lambda: makes.noted() == ["begins"])
    second = makes.start()
    assert second.stderr is not None
    assert second.stderr.readline() == f"waiting for another make, which sets up {makes.venv}\n"
    makes.gate.touch()
    assert (first.wait(LIMIT_S), second.wait(LIMIT_S)) == (0, 0)
    assert makes.noted() == ["begins", "ends"]
    assert (makes.venv / "ready").exists()


@pytest.mark.parametrize("whole", [True, False], ids=["with its pip", "without its pip"])
def test_a_first_that_was_killed_blocks_nothing(makes: Makes, whole: bool) -> None:
    first = makes.start()
    wait_until(lambda: makes.noted() == ["begins"])
    if whole:
        os.killpg(first.pid, signal.SIGKILL)
    else:
        first.kill()
    second = makes.start()
    if not whole:
        assert second.stderr is not None
        assert "waiting" in second.stderr.readline(), "that pip still writes there"
    makes.gate.touch()
    assert second.wait(LIMIT_S) == 0
    assert makes.noted().count("ends") == 1 if whole else makes.noted()[-2:] == ["begins", "ends"]
    assert (makes.venv / "ready").exists()


def test_what_is_asked_for_again_is_set_up_again(makes: Makes) -> None:
    makes.gate.touch()
    for options in ((), (), ("--always-make",)):
        assert makes.start(*options).wait(LIMIT_S) == 0
    assert makes.noted() == ["begins", "ends"] * 2
