"""A process that reads a file when it is asked to, for tests of who waits for a file system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading
from supervisor.sources.processes import TreeWatch

READ_LIMIT_S = 60.0

READS = """
import sys
opened = open(sys.argv[1]) if "opened" in sys.argv else None
print("ready", flush=True)
sys.stdin.readline()
(opened or open(sys.argv[1])).read()
print("read", flush=True)
sys.stdin.readline()
"""


class Reader:
    """The process, which has not read yet."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid
        self._wait_for("ready")

    def begin(self) -> None:
        """Have it read the file."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def wait_until_read(self) -> None:
        """Wait until it has read the file."""
        self._wait_for("read")

    def _wait_for(self, line: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == line


@contextmanager
def reader_of(path: Path, *, at_end: Callable[[], object], opened: bool = False) -> Iterator[Reader]:
    """Start one, and kill it at the end; it has the file open before it is to read, or opens it then.

    `at_end` has the file system answer: of one that does not, not even SIGKILL ends who waits.
    """
    words = [sys.executable, "-c", READS, str(path), "opened" if opened else ""]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Reader(process)
        finally:
            process.kill()
            at_end()


def read_until(
    watch: TreeWatch, at_s: float, is_reached: Callable[[ProcessReading], object], what: str
) -> tuple[ProcessReading, float]:
    """Return the first reading, each a second after the one before, that shows something, and the time of the next."""
    until_s = perf_counter() + READ_LIMIT_S
    while perf_counter() < until_s:
        reading, at_s = watch.read(Moment(at_s, at_s)), at_s + 1.0
        if is_reached(reading):
            return reading, at_s
    raise AssertionError(f"it was never seen {what}")
