"""How long something took without the time that its threads waited for a core, which other work decides.

A limit of a duration then means the same beside other work as on an idle machine, where threads wait for microseconds.
The kernel counts the waits of each thread (`/proc/PID/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


class OwnTime:
    """The time since it was made, less what threads of this process and of another waited for a core meanwhile.

    Of each, the thread that waited longest counts: in this process others may wait with the interpreter's lock, or be
    what the process that answers asks in its turn.
    """

    def __init__(self, answering: int) -> None:
        self._processes = "self", str(answering)
        self._waited_s = [_read_waits_s(process) for process in self._processes]
        self._began_s = time.perf_counter()

    def read_s(self) -> float:
        """Return the seconds so far."""
        took_s = time.perf_counter() - self._began_s
        longest_s = map(_find_longest_s, map(_read_waits_s, self._processes), self._waited_s)
        return max(0.0, took_s - sum(longest_s))


def _find_longest_s(waits_s: dict[str, float], before_s: dict[str, float]) -> float:
    return max((waited_s - before_s.get(thread, 0.0) for thread, waited_s in waits_s.items()), default=0.0)


def _read_waits_s(process: str) -> dict[str, float]:
    """Return how long each thread of a process has waited for a core; of none if it has ended."""
    waits_s: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                waits_s[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return waits_s
