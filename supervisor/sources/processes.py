"""Reads an attempt's process tree, from its shim down; it signals nothing and follows nobody out of the tree."""

from __future__ import annotations

import psutil

from supervisor.core.moments import Moment
from supervisor.core.readings import KernelWait, ProcessReading, ProcessUse
from supervisor.sources.kernel_waits import waits_of

LARGEST_KEPT = 8


class TreeWatch:
    """One tree, read again and again: processor use is known from the second reading on.

    The shim is a child subreaper: what the training orphans stays in the tree.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s: dict[tuple[int, float], float] = {}
        self._at: Moment | None = None

    def read(self, now: Moment) -> ProcessReading:
        """Read the tree; `processes` is 0 once the root is gone.

        `rss_bytes` counts pages that processes share once for each of them, so data-loader workers weigh more than
        they take. `cpu_percent` is that of one processor: a tree that keeps four busy has 400. State D is that of a
        process's main thread, and so is being stopped.
        """
        rss_bytes, count, waiting = 0, 0, []
        alive: list[int] = []
        stopped: list[int] = []
        waits: list[KernelWait] = []
        used_s: dict[tuple[int, float], float] = {}
        uses: list[ProcessUse] = []
        for process in _tree(self._pid):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    own_bytes, name = process.memory_info().rss, process.name()
                    status = process.status()
                    if status == psutil.STATUS_DISK_SLEEP:
                        waiting.append(process.pid)
                    elif status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                        stopped.append(process.pid)
                    key = process.pid, process.create_time()
            except psutil.Error:
                continue
            if status in (psutil.STATUS_DISK_SLEEP, psutil.STATUS_ZOMBIE):
                waits += waits_of(process.pid, name)
            if status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                alive.append(process.pid)
            count, rss_bytes, used_s[key] = count + 1, rss_bytes + own_bytes, times.user + times.system
            share = self._cpu_percent({key: used_s[key]}, now)
            uses.append(ProcessUse(pid=process.pid, name=name, rss_bytes=own_bytes, cpu_percent=share))
        percent = self._cpu_percent(used_s, now)
        self._used_s, self._at = used_s, now
        return ProcessReading(
            at=now,
            processes=count,
            rss_bytes=rss_bytes if count else None,
            cpu_percent=percent if count else None,
            uninterruptible_pids=tuple(waiting),
            largest=tuple(sorted(uses, key=lambda one: -(one.cpu_percent or 0.0))[:LARGEST_KEPT]),
            pids=tuple(alive) if count else None,
            waits=tuple(waits),
            stopped_pids=tuple(stopped),
        )

    def _cpu_percent(self, used_s: dict[tuple[int, float], float], now: Moment) -> float | None:
        if self._at is None or now.seconds_since(self._at) <= 0:
            return None
        # A process that was not there before began since: all its time falls into the interval.
        spent_s = sum(max(0.0, used - self._used_s.get(process, 0.0)) for process, used in used_s.items())
        return 100 * spent_s / now.seconds_since(self._at)


def read_tree(pid: int, now: Moment) -> ProcessReading:
    """Read the tree once; its processor use stays unknown."""
    return TreeWatch(pid).read(now)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except (psutil.Error, ValueError):
        return []
