"""Which sleeping processes of a tree will be woken from outside of it: by a timer, or by a peer that owes an answer.

A pause that a program makes by itself, and the answer of a server that a step waits for, leave a whole job at rest as a
deadlock does. The kernel distinguishes them: where a thread waits, and whether a connection of its process leads out of
the tree. It imports nothing of ours: a shim does the same look for a daemon that the kernel does not show it to.
"""

# As in the shim: a pathlib would be memory that every attempt pays for as long as it runs.
# ruff: noqa: PTH115, PTH123, PTH208

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

TIMERS = ("hrtimer_nanosleep", "do_nanosleep", "clock_nanosleep", "common_nsleep")
"""Where a thread sleeps for as long as it asked to; one that waits for a lock with a time limit is elsewhere."""
FOR_PEERS = (
    "poll_schedule_timeout", "do_poll", "do_sys_poll", "do_select", "do_epoll_wait", "ep_poll", "wait_woken",
    "sk_wait_data", "tcp_recvmsg", "inet_stream_connect", "__inet_stream_connect", "inet_wait_for_connect",
)  # fmt: skip
"""Where a thread waits for a socket of TCP, alone or among others."""
CONNECTED = ("01", "02")
"""Of the states in /proc/net/tcp: established, and a connection that is being made."""
TABLES = ("net/tcp", "net/tcp6")
TABLE_BYTES = 1 << 20
PROCESSES_LIMIT = 64
THREADS_LIMIT = 64
DESCRIPTORS_LIMIT = 4096

Connection = tuple[str, str]
"""The local and the remote end, as the kernel writes them."""


class OutsideWatch:
    """The waits for timers and peers in one process tree, read repeatedly."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._runs: dict[int, str] = {}

    def read(self, sleeping: Collection[int], tree: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the processes that sleep by a timer, and those that wait for a peer outside of `tree`.

        `sleeping` are those whose main thread is in state S and hardly runs. One that looks for something again and
        again, and sleeps in between, sleeps by no timer here: its main thread must not have run since the last reading.
        """
        found = {pid: self._read(pid, "wchan") for pid in list(sleeping)[:PROCESSES_LIMIT]}
        runs = {pid: self._count_runs(pid) for pid, channel in found.items() if channel.startswith(TIMERS)}
        timed = tuple(pid for pid, count in runs.items() if count and count == self._runs.get(pid))
        self._runs = runs
        asking = [pid for pid, channel in found.items() if pid not in runs and self._waits_for_socket(pid, channel)]
        return timed, self._find_outside(asking, tree) if asking else ()

    def _waits_for_socket(self, pid: int, channel: str) -> bool:
        """Whether a thread of a process waits for a socket: the main thread may wait for another that does."""
        return channel.startswith(FOR_PEERS) or any(
            self._read(pid, f"task/{thread}/wchan").startswith(FOR_PEERS) for thread in self._list(pid, "task")
        )

    def _find_outside(self, asking: Collection[int], tree: Collection[int]) -> tuple[int, ...]:
        """Return those of `asking` that have a connection whose other end is not one of the tree's."""
        sockets = {pid: self._list_sockets(pid) for pid in asking}
        if not any(sockets.values()):
            return ()
        connections: dict[str, Connection] = {}
        for pid, own in sockets.items():
            if own - connections.keys():
                connections |= self._list_connections(pid)
        rest = [self._list_sockets(pid) for pid in tree if pid not in sockets]
        inside = {connections[inode] for own in (*sockets.values(), *rest) for inode in own if inode in connections}
        outside = {inode for inode, (local, remote) in connections.items() if (remote, local) not in inside}
        return tuple(pid for pid, own in sockets.items() if own & outside)

    def _list_sockets(self, pid: int) -> frozenset[str]:
        """Return the inodes of a process's sockets; none where it may not be read."""
        found = []
        for name in self._list(pid, "fd", DESCRIPTORS_LIMIT):
            try:
                target = os.readlink(f"{self._proc}/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.append(target[8:-1])
        return frozenset(found)

    def _list_connections(self, pid: int) -> dict[str, Connection]:
        """Return the connections of TCP in a process's network by the inodes of their sockets."""
        lines = (line.split() for table in TABLES for line in self._read(pid, table).splitlines())
        return {row[9]: (row[1], row[2]) for row in lines if len(row) > 9 and row[3] in CONNECTED}

    def _count_runs(self, pid: int) -> str:
        """Return how often the main thread has left the processor, "" where the kernel does not count."""
        return " ".join(line for line in self._read(pid, f"task/{pid}/status").splitlines() if "_ctxt_switches" in line)

    def _list(self, pid: int, folder: str, limit: int = THREADS_LIMIT) -> Iterator[str]:
        try:
            names = os.listdir(f"{self._proc}/{pid}/{folder}")
        except OSError:
            return
        yield from names[:limit]

    def _read(self, pid: int, name: str) -> str:
        try:
            with open(f"{self._proc}/{pid}/{name}", errors="replace") as file:
                return file.read(TABLE_BYTES).strip()
        except OSError:
            return ""
