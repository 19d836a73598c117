"""The shim's look at who in its tree waits for what only the kernel knows of, which it shows in its own name.

Where a process waits in the kernel is shown to its own user and to root alone (ptrace(2)), and a daemon of the system
is neither to a training. A name is read by everybody, and to change it asks nothing of a disk, which may be the one
that hangs. `fs PID` says that PID waits for a file system, and that whatever of the tree is in state D does; else
`timer PID` or `peer PID` that PID will be woken from outside of the tree (`sources/outside_waits.py`).
"""

# As in the shim: a pathlib would be memory that every attempt pays for as long as it runs.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
from collections.abc import Callable, Collection

SHOWN = "fs "
SHOWN_TIMER, SHOWN_PEER = "timer ", "peer "
PROCESSES_LIMIT = 256
OF_FILE_SYSTEMS = (
    "fuse", "request_wait_answer", "nfs", "rpc", "smb", "cifs", "ceph", "ll_", "cl_", "ptlrpc", "lustre", "gpfs", "p9_",
    "v9fs", "autofs", "ext4", "xfs", "btrfs", "zfs", "txg_", "jbd2", "folio", "wait_on_page", "io_schedule", "blk",
    "bio_", "submit_bio", "wait_on_buffer", "nvme", "scsi", "afs_", "bch2_", "gfs2", "ocfs2", "f2fs", "iomap",
    "filemap", "inode_dio_wait", "balance_dirty_pages", "rq_qos_wait", "wbt_wait",
)  # fmt: skip
"""Beginnings of the kernel's functions, as of core/readings.py; a test compares them."""
OF_SERVERS = ("request_wait_answer", "fuse_request", "fuse_simple_request", "ptlrpc_", "cl_sync_io")
"""Where a process waits asleep, as sources/storage_waits.py has it."""
OF_LOCKS = ("rwsem_", "down_", "mutex_", "percpu_rwsem_")
OUTSIDE_WAITS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sources", "outside_waits.py")  # noqa: PTH100, PTH118, PTH120 - as above

Woken = Callable[[Collection[int], Collection[int]], tuple[tuple[int, ...], tuple[int, ...]]]


def load_outside_look(proc: str) -> Woken:
    """Return what finds the processes that are woken from outside, by a file that a shim has no path to the package of.

    Raises OSError or ImportError where the file is not there or cannot be run.
    """
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415 - for shims that look alone

    spec = spec_from_file_location("outside_waits", OUTSIDE_WAITS)
    if spec is None or spec.loader is None:
        raise ImportError(OUTSIDE_WAITS)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    read: Woken = module.OutsideWatch(proc).read
    return read


class StorageLook:
    """Looks at the tree below a process from time to time, and keeps its name up to date."""

    def __init__(self, root: int, proc: str = "/proc") -> None:
        self._root, self._proc = root, proc
        self._name = self._shown = self._read(root, "comm")
        self._read_woken = load_outside_look(proc)

    def look(self) -> None:
        """Show who waits, or the usual name where none does, or one waits for something else."""
        pid = self.find_waiting()
        name = self._name_woken() if pid is None else f"{SHOWN}{pid}"
        if name != self._shown:
            self._shown = name
            try:
                with open(f"{self._proc}/{self._root}/comm", "w") as file:
                    file.write(name)
            except OSError:
                pass  # it is a hint: without it a wait has the limits of any standstill

    def find_waiting(self) -> int | None:
        """Return the first process, parents before children, that waits for a file system, if none waits for more."""
        first: int | None = None
        for pid in self._list_tree():
            state, where = self._read_state(pid), self._read(pid, "wchan").lstrip("_")
            if state == "D":
                if where.startswith(OF_LOCKS):
                    continue
                if not where.startswith(OF_FILE_SYSTEMS):
                    return None
            elif state != "S" or not where.startswith(OF_SERVERS):
                continue
            first = pid if first is None else first
        return first

    def _name_woken(self) -> str:
        """Return the name for the first process that will be woken from outside, the usual one where none will."""
        tree = self._list_tree()
        timed, asking = self._read_woken([pid for pid in tree if self._read_state(pid) == "S"], tree)
        return f"{SHOWN_TIMER}{timed[0]}" if timed else f"{SHOWN_PEER}{asking[0]}" if asking else self._name

    def _list_tree(self) -> list[int]:
        found = [self._root]
        for pid in found:  # grows while it is walked
            try:
                for thread in os.listdir(f"{self._proc}/{pid}/task"):
                    found += map(int, self._read(pid, f"task/{thread}/children").split())
            except (OSError, ValueError):
                continue
            if len(found) > PROCESSES_LIMIT:
                break
        return found[1 : PROCESSES_LIMIT + 1]

    def _read_state(self, pid: int) -> str:
        return self._read(pid, "stat").rpartition(")")[2].strip()[:1]

    def _read(self, pid: int, name: str) -> str:
        try:
            with open(f"{self._proc}/{pid}/{name}", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""
