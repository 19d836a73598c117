"""Which threads of a process tree wait for a file system, and for which, as far as the kernel shows it.

A thread that waits for a disk or for NFS is in state D; one that waits for the server of FUSE sleeps, and only the
function in which it does distinguishes it. Nothing here asks anything of a file system but /proc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from supervisor.core.readings import KernelWait, StorageWait, is_of_storage
from supervisor.core.sanitize import one_line
from supervisor.sources.kernel_files import read_text

SERVED_CHANNELS = re.compile(r"request_wait_answer|_*fuse_(simple_)?request|ptlrpc_|cl_sync_io")
"""Where the kernel waits asleep for the answer of a server. A server of FUSE that waits for requests is elsewhere."""
SHOWN = re.compile(r"fs ([0-9]{1,10})")
"""The name of a shim in whose tree a process waits for a file system."""
BY_SHIM = "seen by its shim"
THREADS_LIMIT = 64
WAITS_KEPT = 16
FD_MAX = 1 << 20
PLACE_CHARACTERS = 300
FAMILIES = {
    "nfs": re.compile(r"_*(nfs|rpc)"),
    "fuse": re.compile(r"_*(fuse|request_wait_answer)"),
    "cifs": re.compile(r"_*(smb|cifs)"),
    "smb3": re.compile(r"_*(smb|cifs)"),
    "ceph": re.compile(r"_*ceph"),
    "lustre": re.compile(r"_*(ll_|cl_|ptlrpc|lustre)"),
    "9p": re.compile(r"_*(p9_|v9fs)"),
    "gpfs": re.compile(r"_*gpfs"),
    "afs": re.compile(r"_*afs"),
}
"""By the beginning of a file system's type: in which functions of the kernel its server is waited for."""


class StorageWatch:
    """The waits for file systems in one process tree, read repeatedly; a place is looked up once for each wait."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._places: dict[tuple[int, int], str | None] = {}
        self._waited: frozenset[tuple[int, int]] = frozenset()
        self.gpu_wait_pids: tuple[int, ...] = ()
        """The sleeping processes of the last reading whose main thread waits in a GPU's driver."""

    def read(self, waits: Iterable[KernelWait], sleeping: Mapping[int, str]) -> tuple[StorageWait, ...]:
        """Return the threads that wait for a file system, at most `WAITS_KEPT`, main threads first.

        `waits` are the known threads in state D; `sleeping` are processes, with their names, that hardly run and whose
        main thread is in state S. A process of which a thread waits in state D for a GPU is left out.
        """
        found = list(_of_processes(waits))
        gpu_waits = []
        for pid, name in sleeping.items():
            main = read_text(self._proc / str(pid) / "wchan")
            if is_of_storage((main,)) is False:
                gpu_waits.append(pid)
            else:
                found += self._read_threads(pid, name, main)
        self.gpu_wait_pids = tuple(gpu_waits)
        kept = sorted(found, key=lambda wait: wait.thread != wait.pid)[:WAITS_KEPT]
        return self._name_places(kept)

    def _read_threads(self, pid: int, name: str, main: str) -> list[StorageWait]:
        """Return the threads of a sleeping process that wait for a file system."""
        if SERVED_CHANNELS.match(main):
            return [StorageWait(pid=pid, name=name, thread=pid, channel=main)]
        found = []
        for thread in self._list_threads(pid):
            channel = read_text(thread / "wchan")
            served = SERVED_CHANNELS.match(channel) is not None
            of_storage = None if served else is_of_storage((channel,))
            if of_storage is not None and not _is_in_kernel(thread):
                continue
            if of_storage is False:
                return []
            if served or of_storage:
                found.append(StorageWait(pid=pid, name=name, thread=int(thread.name), channel=channel))
        return found

    def _list_threads(self, pid: int) -> list[Path]:
        try:
            threads = list(islice((self._proc / str(pid) / "task").iterdir(), THREADS_LIMIT))
        except OSError:
            return []
        return [thread for thread in threads if thread.name != str(pid)]

    def _name_places(self, waits: list[StorageWait]) -> tuple[StorageWait, ...]:
        """Return the waits with the file systems of those that lasted from one reading to the next."""
        keys = frozenset((wait.pid, wait.thread) for wait in waits)
        self._places = {key: place for key, place in self._places.items() if key in keys}
        for wait in waits:
            key = (wait.pid, wait.thread)
            # What was not found in one reading is looked for in the next: a thread may be about to make its call.
            if key in self._waited and self._places.get(key) is None:
                self._places[key] = find_place(wait, self._proc)
        self._waited = keys
        return tuple(replace(wait, place=self._places.get((wait.pid, wait.thread))) for wait in waits)


def is_blind_to(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the kernel does not show where a process waits, since it is another user's."""
    try:
        return os.geteuid() not in (0, os.stat(proc / str(pid)).st_uid)  # noqa: PTH116 - one call, each second
    except OSError:
        return False


def read_shown(names: Mapping[int, str], shim: int, in_kernel: Collection[int]) -> tuple[StorageWait, ...]:
    """Return the waits that a shim shows in its name (`runner/storage_look.py`): one, and all that are in state D."""
    found = SHOWN.fullmatch(names.get(shim, ""))
    if found is None or int(found[1]) not in names:
        return ()
    pids = sorted({int(found[1]), *in_kernel})[:WAITS_KEPT]
    return tuple(StorageWait(pid=pid, name=names.get(pid, ""), thread=pid, channel=BY_SHIM) for pid in pids)


def _of_processes(waits: Iterable[KernelWait]) -> Iterator[StorageWait]:
    """Yield the threads in state D that wait for a file system, of processes none of which waits for a GPU."""
    known = tuple(waits)
    of_gpus = {wait.pid for wait in known if wait.is_of_disk is False}
    for wait in known:
        if wait.is_of_disk and wait.pid not in of_gpus:
            channel = wait.channel or (wait.stack[0] if wait.stack else "")
            yield StorageWait(pid=wait.pid, name=wait.name, thread=wait.thread, channel=channel)


def _is_in_kernel(thread: Path) -> bool:
    return read_text(thread / "stat").rpartition(")")[2].strip()[:1] == "D"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    number: int
    place: str
    kind: str
    source: str

    @property
    def words(self) -> str:
        return one_line(f"{self.place} ({self.kind} of {self.source})", PLACE_CHARACTERS)


def find_place(wait: StorageWait, proc: Path = Path("/proc")) -> str | None:
    """Return the file system that a thread waits for, None where it is not known.

    It is that of the file which the thread's system call is about, where the daemon may read that; else the only mount
    whose kind fits the function in which it waits.
    """
    mounts = tuple(_list_mounts(read_text(proc / str(wait.pid) / "mountinfo")))
    fitting = [mount for mount in mounts if _fits(mount, wait.channel)]
    number = _find_mount(proc / str(wait.pid), wait.thread)
    by_file = next((mount for mount in mounts if mount.number == number), None)
    if by_file is not None and (by_file in fitting or not fitting):
        return by_file.words
    return fitting[0].words if len(fitting) == 1 else None


def _fits(mount: _Mount, channel: str) -> bool:
    return any(mount.kind.startswith(kind) and pattern.match(channel) for kind, pattern in FAMILIES.items())


def _find_mount(process: Path, thread: int) -> int | None:
    """Return the number of the mount that holds the open file which is the first argument of the system call."""
    fields = read_text(process / "task" / str(thread) / "syscall").split()
    with suppress(ValueError, IndexError):
        descriptor = int(fields[1], 16)
        if descriptor < FD_MAX:
            lines = read_text(process / "fdinfo" / str(descriptor)).splitlines()
            # None where the file is closed: close(2) takes its number from the process before it waits for a server.
            return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), None)
    return None


def _list_mounts(text: str) -> Iterator[_Mount]:
    """Yield the mounts of a `mountinfo` (proc(5)); white space and backslashes in it are octal escapes."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) > 5 and len(kinds) > 1 and fields[0].isdecimal():
            place, source = _unescape(fields[4]), _unescape(kinds[1])
            yield _Mount(number=int(fields[0]), place=place, kind=kinds[0], source=source)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
