"""Reads an attempt's process tree, from its shim down, and where its threads wait in the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from supervisor.core.moments import Moment
from supervisor.core.readings import KernelWait, ProcessReading, ProcessUse
from supervisor.sources.kernel_files import read_text

THREADS_LIMIT = 256
WAITS_LIMIT = 8
FRAMES_KEPT = 6


def waits_of(pid: int, name: str, proc: Path = Path("/proc")) -> tuple[KernelWait, ...]:
    """Return the threads in state D, at most `WAITS_LIMIT`; () if the process has ended.

    A zombie, whose main thread has ended, may still have other threads: such a thread keeps the GPU in use. The channel
    is the kernel function that the thread waits in; only root can read the stack.
    """
    found: list[KernelWait] = []
    try:
        threads = [path for path, _ in zip((proc / str(pid) / "task").iterdir(), range(THREADS_LIMIT), strict=False)]
    except OSError:
        return ()
    for thread in threads:
        if len(found) < WAITS_LIMIT and _read_state(thread) == "D":
            channel = read_text(thread / "wchan").strip()
            found.append(
                KernelWait(
                    pid=pid,
                    name=name,
                    thread=int(thread.name),
                    channel=channel if channel not in ("", "0") else None,
                    stack=_parse_frames(read_text(thread / "stack")),
                    switches=_count_switches(read_text(thread / "status")),
                )
            )
    return tuple(found)


def switches_of(pid: int, proc: Path = Path("/proc")) -> dict[tuple[int, int], int]:
    """Return the context switches of each thread by (process, thread); {} if the process has ended."""
    try:
        threads = [path for path, _ in zip((proc / str(pid) / "task").iterdir(), range(THREADS_LIMIT), strict=False)]
    except OSError:
        return {}
    found = {(pid, int(path.name)): _count_switches(read_text(path / "status")) for path in threads}
    return {key: number for key, number in found.items() if number is not None}


def _read_state(thread: Path) -> str:
    """Return the state's letter: the field after the name, which is in brackets and may contain brackets (proc(5))."""
    return read_text(thread / "stat").rpartition(")")[2].strip()[:1]


def _count_switches(status: str) -> int | None:
    """Return a thread's voluntary and involuntary context switches together; None if the kernel does not count them."""
    found = [line.split()[1] for line in status.splitlines() if "voluntary_ctxt_switches:" in line]
    return sum(map(int, found)) if len(found) == 2 and all(map(str.isdecimal, found)) else None


def _parse_frames(text: str) -> tuple[str, ...]:
    """Return the functions of a kernel stack, innermost first: each line is `[<0>] function+0x1/0x2`."""
    names = (line.split("] ", 1)[-1].split("+", 1)[0].strip() for line in text.splitlines())
    return tuple(name for name in names if name)[:FRAMES_KEPT]


LARGEST_KEPT = 8
QUIET_PERCENT = 5.0
"""Percent of one processor: context switches are counted only for a tree that uses no more."""
COUNTED_PROCESSES = 64


class TreeWatch:
    """One process tree, read repeatedly; processor use is known from the second reading on.

    The shim is a child subreaper, so orphans of the training stay in the tree.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s: dict[tuple[int, float], float] = {}
        self._at: Moment | None = None
        self._switches: dict[tuple[int, int], int] = {}

    def read(self, now: Moment) -> ProcessReading:
        """Read the tree; `processes` is 0 if the root has ended.

        `rss_bytes` counts shared pages once per process, so it is larger than the memory that data-loader workers
        take. `cpu_percent` is relative to one processor: a tree that keeps four busy has 400. State D and the stopped
        state are those of a process's main thread.
        """
        rss_bytes, count, waiting = 0, 0, []
        alive: list[int] = []
        stopped: list[int] = []
        traced: list[int] = []
        on_terminal: list[int] = []
        waits: list[KernelWait] = []
        used_s: dict[tuple[int, float], float] = {}
        uses: list[ProcessUse] = []
        parents: list[tuple[int, int]] = []
        for process in _list_tree(self._pid, tuple(self._used_s)):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    own_bytes, name = process.memory_info().rss, process.name()
                    status, parent = process.status(), process.ppid()
                    if status == psutil.STATUS_DISK_SLEEP:
                        waiting.append(process.pid)
                    elif status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                        stopped.append(process.pid)
                        traced += [process.pid] if status == psutil.STATUS_TRACING_STOP else []
                        on_terminal += [process.pid] if _has_terminal(process.pid) else []
                    key = process.pid, process.create_time()
            except psutil.Error:
                continue
            if status in (psutil.STATUS_DISK_SLEEP, psutil.STATUS_ZOMBIE):
                waits += waits_of(process.pid, name)
            if status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                alive.append(process.pid)
                parents.append((process.pid, parent))
            count, rss_bytes, used_s[key] = count + 1, rss_bytes + own_bytes, times.user + times.system
            share = self._cpu_percent({key: used_s[key]}, now)
            uses.append(ProcessUse(pid=process.pid, name=name, rss_bytes=own_bytes, cpu_percent=share))
        percent = self._cpu_percent(used_s, now)
        switches_per_s = self._switches_per_s(alive, now) if percent is not None and percent <= QUIET_PERCENT else None
        self._used_s, self._at = used_s, now
        return ProcessReading(
            at=now,
            processes=count,
            rss_bytes=rss_bytes if count else None,
            cpu_percent=percent if count else None,
            uninterruptible_pids=tuple(waiting),
            largest=tuple(sorted(uses, key=lambda process_use: -(process_use.cpu_percent or 0.0))[:LARGEST_KEPT]),
            pids=tuple(alive) if count else None,
            waits=tuple(waits),
            stopped_pids=tuple(stopped),
            traced_pids=tuple(traced),
            terminal_pids=tuple(on_terminal),
            switches_per_s=switches_per_s,
            parents=tuple(parents),
        )

    def _switches_per_s(self, pids: list[int], now: Moment) -> float | None:
        """Return the context switches per second of all threads since the last reading.

        They distinguish an idle tree from one that waits for network or disk and uses hardly any processor time.
        """
        counts = {key: number for pid in pids[:COUNTED_PROCESSES] for key, number in switches_of(pid).items()}
        before, self._switches = self._switches, counts
        if self._at is None or not before or len(pids) > COUNTED_PROCESSES:
            return None
        made = sum(max(0, number - before.get(key, 0)) for key, number in counts.items())
        return made / now.seconds_since(self._at)

    def _cpu_percent(self, used_s: dict[tuple[int, float], float], now: Moment) -> float | None:
        if self._at is None or now.seconds_since(self._at) <= 0:
            return None
        # A process that was not in the previous reading was started since: all its time belongs to the interval.
        spent_s = sum(max(0.0, used - self._used_s.get(process, 0.0)) for process, used in used_s.items())
        return 100 * spent_s / now.seconds_since(self._at)


def _has_terminal(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a controlling terminal, by the seventh field of its stat."""
    fields = read_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    return len(fields) > 4 and fields[4] != "0"


def _list_tree(pid: int, known: Iterable[tuple[int, float]]) -> list[psutil.Process]:
    """Return the processes of the tree below `pid`, itself first; `known` is the previous reading's (pid, created)."""
    try:
        root = psutil.Process(pid)
        if (below := pids_below(pid)) is None:
            return [root, *root.children(recursive=True)]
        # A process older than the root has reused the number of a process that has ended.
        found = {item.pid: item for item in _open_processes(below) if item.create_time() >= root.create_time()}
    except (psutil.Error, ValueError):
        return []
    found[pid] = root
    kept = dict(known)
    # The kernel may omit a living process from the list while its sibling or parent ends.
    for process in _open_processes(entry for entry in kept if entry not in found):
        with suppress(psutil.Error):
            if process.create_time() == kept[process.pid] and process.ppid() in found:
                found[process.pid] = process
    return [root, *(process for number, process in found.items() if number != pid)]


def _open_processes(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with suppress(psutil.Error, ValueError):
            yield psutil.Process(pid)


def pids_below(pid: int, proc: Path = Path("/proc")) -> list[int] | None:
    """Return all descendants of a process, parents first; None if the kernel does not list children.

    Reading children (CONFIG_PROC_CHILDREN) costs in proportion to the tree; without it, every process of the machine
    must be asked for its parent. The kernel may omit some children while others start or end.
    """
    if not (proc / f"{pid}/task/{pid}/children").exists():
        return None
    found, at, seen = [pid], 0, {pid}
    while at < len(found):
        for child in _list_children(found[at], proc):
            if child not in seen:
                seen.add(child)
                found.append(child)
        at += 1
    return found[1:]


def _list_children(pid: int, proc: Path) -> list[int]:
    """Return the children of all threads of a process; [] if it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"{proc}/{pid}/task"):  # noqa: PTH208 - a path for each thread costs more than reading it
            found += _read_children(f"{proc}/{pid}/task/{thread}/children")
    except OSError:
        pass
    return found


def _read_children(path: str) -> list[int]:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - the same
            return [int(part) for part in file.read().split()]
    except (OSError, ValueError):
        return []
