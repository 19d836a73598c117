"""Reads an attempt's process tree, from its shim down, and where its threads wait in the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from supervisor.core.moments import Moment
from supervisor.core.readings import KernelWait, ProcessReading, ProcessUse, is_of_storage
from supervisor.sources.frozen import find_frozen
from supervisor.sources.kernel_files import read_text
from supervisor.sources.outside_waits import OutsideWatch
from supervisor.sources.storage_waits import StorageWatch, is_blind_to, read_shown

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
    names = [line.split("] ", 1)[-1].split("+", 1)[0].strip() for line in text.splitlines()]
    called = [name for name in names if name]
    # A driver that reads pages of a disk is found further out, and is what the wait is of.
    driver = next((name for name in called[FRAMES_KEPT:] if is_of_storage((name,)) is False), None)
    return (*called[:FRAMES_KEPT], *([] if driver is None else [driver]))


WAITING = (psutil.STATUS_DISK_SLEEP, psutil.STATUS_ZOMBIE)
"""States in which threads may wait in the kernel."""
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
WAITS_FOR_CHILD = "do_wait"
"""Where in the kernel a process waits for a change of a child, or of what it traces."""
LARGEST_KEPT = 8
QUIET_PERCENT = 5.0
"""Percent of one processor: context switches are counted only for a tree that uses no more."""
COUNTED_PROCESSES = 64
SHOWN_TIMER, SHOWN_PEER = "timer", "peer"
"""What a shim's name begins with that shows who will be woken from outside (`runner/storage_look.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """What one reading finds of one process."""

    pid: int
    parent: int
    created_unix_s: float
    name: str
    status: str
    """One of psutil's."""
    rss_bytes: int
    used_s: float
    """Of a processor."""
    waits: tuple[KernelWait, ...]
    has_terminal: bool
    """Looked up for a stopped process alone."""
    is_held: bool
    """Whether a tracer holds it, which is no signal's stop."""

    @property
    def key(self) -> tuple[int, float]:
        return self.pid, self.created_unix_s

    @property
    def is_stopped(self) -> bool:
        return self.status in STOPPED

    def as_use(self, cpu_percent: float | None) -> ProcessUse:
        """Return what is kept of a process of the largest use."""
        return ProcessUse(pid=self.pid, name=self.name, rss_bytes=self.rss_bytes, cpu_percent=cpu_percent)


class TreeWatch:
    """One process tree, read repeatedly; processor use is known from the second reading on.

    The shim is a child subreaper, so orphans of the training stay in the tree.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s: dict[tuple[int, float], float] = {}
        self._at: Moment | None = None
        self._switches: dict[tuple[int, int], int] = {}
        self._storage = StorageWatch()
        self._outside = OutsideWatch()

    def read(self, now: Moment) -> ProcessReading:
        """Read the tree; `processes` is 0 if the root has ended.

        `rss_bytes` counts shared pages once per process, so it is larger than the memory that data-loader workers
        take. `cpu_percent` is relative to one processor: a tree that keeps four busy has 400. State D and the stopped
        state are those of a process's main thread.
        """
        listed = _list_tree(self._pid, tuple(self._used_s))
        processes = [found for process in listed if (found := _read_process(process)) is not None]
        used_s = {process.key: process.used_s for process in processes}
        alive = [process for process in processes if process.status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)]
        percent = self._cpu_percent(used_s, now)
        is_quiet = percent is not None and percent <= QUIET_PERCENT
        switches_per_s = self._switches_per_s([process.pid for process in alive], now) if is_quiet else None
        uses = [process.as_use(self._cpu_percent({process.key: process.used_s}, now)) for process in processes]
        quiet = {use.pid: use.name for use in uses if use.cpu_percent is not None and use.cpu_percent <= QUIET_PERCENT}
        frozen = find_frozen(list(quiet)[:COUNTED_PROCESSES])
        stopped = [process for process in processes if process.is_stopped or process.pid in frozen]
        others = [process for process in processes if process.pid not in frozen]
        sleeping = [pid for pid in _pids_of(others, psutil.STATUS_SLEEPING) if pid in quiet][:COUNTED_PROCESSES]
        waits = tuple(replace(wait, is_frozen=process.pid in frozen) for process in processes for wait in process.waits)
        of_storage = self._storage.read(waits, {pid: quiet[pid] for pid in sleeping})
        if not of_storage and is_blind_to(self._pid):
            in_kernel = {process.pid for process in processes if process.status == psutil.STATUS_DISK_SLEEP}
            of_storage = read_shown({process.pid: process.name for process in processes}, self._pid, in_kernel)
        timed, asking = self._read_outside(sleeping, alive)
        self._used_s, self._at = used_s, now
        return ProcessReading(
            at=now,
            processes=len(processes),
            rss_bytes=sum(process.rss_bytes for process in processes) if processes else None,
            cpu_percent=percent if processes else None,
            uninterruptible_pids=_pids_of(others, psutil.STATUS_DISK_SLEEP),
            served_pids=tuple(wait.pid for wait in of_storage if wait.thread == wait.pid and wait.pid in sleeping),
            storage_waits=of_storage,
            gpu_wait_pids=self._storage.gpu_wait_pids,
            timed_pids=timed,
            asking_pids=asking,
            largest=tuple(sorted(uses, key=lambda process_use: -(process_use.cpu_percent or 0.0))[:LARGEST_KEPT]),
            pids=tuple(process.pid for process in alive) if processes else None,
            waits=waits,
            stopped_pids=tuple(process.pid for process in stopped),
            traced_pids=tuple(process.pid for process in stopped if process.is_held),
            terminal_pids=tuple(process.pid for process in stopped if process.has_terminal),
            frozen_pids=frozen,
            switches_per_s=switches_per_s,
            parents=tuple((process.pid, process.parent) for process in alive),
        )

    def _read_outside(self, sleeping: list[int], alive: list[_Process]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return who sleeps by a timer and who waits for a peer outside of the tree, by its shim where it shows it."""
        if not is_blind_to(self._pid):
            return self._outside.read(sleeping, [process.pid for process in alive])
        shim = next((process.name for process in alive if process.pid == self._pid), "")
        kind, _, number = shim.partition(" ")
        shown = tuple(pid for pid in sleeping if str(pid) == number)
        return (shown if kind == SHOWN_TIMER else ()), (shown if kind == SHOWN_PEER else ())

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


def _read_process(process: psutil.Process) -> _Process | None:
    """Return what is known of a process, None if it has ended."""
    try:
        with process.oneshot():
            times, status, name = process.cpu_times(), process.status(), process.name()
            return _Process(
                pid=process.pid,
                parent=process.ppid(),
                created_unix_s=process.create_time(),
                name=name,
                status=status,
                rss_bytes=process.memory_info().rss,
                used_s=times.user + times.system,
                waits=waits_of(process.pid, name) if status in WAITING else (),
                has_terminal=status in STOPPED and _has_terminal(process.pid),
                is_held=status == psutil.STATUS_TRACING_STOP and not _is_tracer_waiting(process.pid),
            )
    except psutil.Error:
        return None


def _pids_of(processes: Iterable[_Process], status: str) -> tuple[int, ...]:
    return tuple(process.pid for process in processes if process.status == status)


def _is_tracer_waiting(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether what traces a stopped process waits for a change of it, as strace does while a signal has stopped that.

    The state is `t` as under a debugger that holds it; but a debugger waits for its user, or runs a command for him,
    which is a child that it does not trace. Where the kernel does not show what it waits for, it holds it.
    """
    tracer = _find_tracer(pid, proc)
    if tracer is None or read_text(proc / tracer / "wchan").strip() != WAITS_FOR_CHILD:
        return False
    children = read_text(proc / tracer / "task" / tracer / "children").split()
    return all(_find_tracer(int(child), proc) == tracer for child in children)


def _find_tracer(pid: int, proc: Path) -> str | None:
    """Return the number of the process that traces another one, None where none does."""
    lines = read_text(proc / str(pid) / "status").splitlines()
    tracer = next((line.split()[1] for line in lines if line.startswith("TracerPid:")), "0")
    return None if tracer == "0" else tracer


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
