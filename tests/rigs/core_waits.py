"""How long something took without the time that its threads waited for a core, which other work decides.

A limit of a duration then means the same beside other work as on an idle machine, where threads wait for microseconds.
The kernel counts the waits of each thread (`/proc/PID/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path


class OwnTime:
    """The time since it was made, less what this thread and those of another process waited for a core meanwhile.

    Of the other process, which answers this one, the thread that waited longest counts.
    """

    def __init__(self, answering: int) -> None:
        self._answering = answering
        self._mine_s, self._theirs_s = self._read_waits_s()
        self._began_s = time.perf_counter()

    def read_s(self) -> float:
        """Return the seconds so far."""
        took_s = time.perf_counter() - self._began_s
        mine_s, theirs_s = self._read_waits_s()
        longest_s = max(
            (waited_s - self._theirs_s.get(thread, 0.0) for thread, waited_s in theirs_s.items()), default=0.0
        )
        return max(0.0, took_s - (mine_s - self._mine_s) - longest_s)

    def _read_waits_s(self) -> tuple[float, dict[str, float]]:
        """Return how long this thread has waited for a core, and each of the other process; of none if it has ended."""
        theirs_s: dict[str, float] = {}
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{self._answering}/task").iterdir():
                with contextlib.suppress(OSError):
                    theirs_s[thread.name] = _read_wait_s(thread)
        return _read_wait_s(Path(f"/proc/self/task/{threading.get_native_id()}")), theirs_s


def _read_wait_s(thread: Path) -> float:
    return int((thread / "schedstat").read_text().split()[1]) / 1e9
