"""What the process of the daemon sets up first: one heap, its signals, the locks of its state directory and database.

Threads come and go with every attempt. glibc gives each of them one of several heaps, and a heap keeps the memory that
its threads have freed: over many restarts the memory of the daemon would grow by what unused heaps hold. Of the one
heap glibc returns only the end by itself; `return_freed_memory` returns the pages within.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from supervisor.children.killed import was_killed
from supervisor.children.path_looks import PathLooks, find_silent, wait_until_answered
from supervisor.children.prompt_thread import PromptThread
from supervisor.config.derive import SOCKET
from supervisor.daemon.process.systemd import Notifier
from supervisor.own_places import make_way

log = logging.getLogger(__name__)

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
"""From glibc's malloc.h."""
MAPPED_FROM_BYTES = 128 * 1024
"""glibc's own value at the start of a process."""
STANDARD_FILES = 3
LOCK = "daemon.lock"
FOLDERS = ("jobs", "code", "requests")
"""What a daemon makes in its state directory."""
DATABASE_FILES = ("", "-wal", "-shm", "-journal", ".ballast", ".renewing", ".renewed")
LOCK_LOOKS, LOCK_LOOK_S = 21, 0.05
"""A second is waited for a daemon that was killed just now."""
SAY_EVERY_S = 10.0


class StateLockedError(RuntimeError):
    """Another daemon works on this state or writes this database."""


class EarlyHangup:
    """The handler of SIGHUP during the start, which the signal would end: the configuration is read again after it."""

    came = False

    def __call__(self, _number: int, _frame: object) -> None:
        """Note the signal."""
        self.came = True


def open_standard_files() -> None:
    """Open /dev/null in the place of each standard file that this process was started without.

    Else the next file that it opens would have that number, the database for one, and what is printed would go there.
    To be called before the first file.
    """
    for number in range(STANDARD_FILES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def lock_state(state: Path) -> int:
    """Lock the state directory for this process; return the descriptor that holds the lock.

    Raises StateLockedError naming the process that has it, OSError where the directory cannot be written.
    """
    return _lock(state / LOCK, f"{state} is in use by", "supervisor.state_dir")


def lock_database(path: Path) -> int | None:
    """Lock a database for this process; return the descriptor that holds the lock, None where none can be made.

    Another state directory may name the same file, and two that write it would take each other's trainings for their
    own. Raises StateLockedError naming the process that has it.
    """
    real = Path(os.path.realpath(path))  # `resolve` of a link to itself is no OSError
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        return _lock(real.with_name(f"{real.name}.lock"), f"{path} is written by", "supervisor.database")
    except OSError as error:  # opening the database will say what is wrong, or it can be read alone
        log.warning("database.not_locked", extra={"fields": {"file": str(path), "error": error.strerror}})
        return None


def _lock(file: Path, in_use: str, setting: str) -> int:
    guard = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Of two that start one takes a lock over; the other finds its pid there, never that of the one before it.
        fcntl.flock(guard, fcntl.LOCK_EX)
        _clear_place(file)  # by a folder there no daemon would start, and opening a pipe waits for its writer
        descriptor = _take_lock(file, in_use, setting)
        _write_holder(descriptor, file)
    finally:
        os.close(guard)
    return descriptor


def clear_places(state: Path, database: Path) -> None:
    """Move aside what is of another kind than what a daemon makes in its state directory; it makes that another time.

    Links to its folders and to its database are its administrator's. A database elsewhere is named by a setting, and
    what is no file there is no mistake to be corrected by a rename.
    """
    for name in FOLDERS:
        _clear_place(state / name, _is_folder_or_link)
    if database.parent == state:
        for place in (database.with_name(database.name + suffix) for suffix in DATABASE_FILES):
            _clear_place(place, _is_file_or_link if place == database or place.exists() else stat.S_ISREG)
    _clear_place(state / SOCKET, stat.S_ISSOCK)


def _is_folder_or_link(mode: int) -> bool:
    return stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _is_file_or_link(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _clear_place(place: Path, is_right: Callable[[int], bool] = stat.S_ISREG) -> None:
    try:
        make_way(place, is_right)
    except OSError as error:  # whoever needs the place will say what is wrong
        log.warning("state.place_not_cleared", extra={"fields": {"place": str(place), "error": error.strerror}})


def _write_holder(descriptor: int, file: Path) -> None:
    """Write whose lock it is, for messages alone: a daemon begins on a full disk, and trainings are supervised."""
    pid = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(descriptor, pid, 0)  # in the place of the last pid, for which there is room
        os.ftruncate(descriptor, len(pid))
    except OSError as error:
        fields = {"file": str(file), "error": error.strerror}
        log.warning("state.lock_without_pid", extra={"fields": fields})


def _take_lock(file: Path, in_use: str, setting: str) -> int:
    looks, killed = LOCK_LOOKS, None
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or killed or "unknown"
            os.close(descriptor)
        else:
            if killed is not None:
                fields = {"file": str(file), "from_pid": killed}
                log.warning("state.lock_taken_over", extra={"fields": fields})
            return descriptor
        if killed is None and holder.isdecimal() and was_killed(int(holder)):
            file.unlink()  # what is left of that process keeps the file, and with it the lock
            looks, killed = LOCK_LOOKS, holder
            continue
        looks -= 1
        if not looks:
            raise StateLockedError(f"{in_use} another rocm-supervisord (pid {holder}); stop that one, or set {setting}")
        time.sleep(LOCK_LOOK_S)  # what was killed just now takes some time to end


def wait_for_state(state: Path, notifier: Notifier, database: Path | None = None) -> None:
    """Wait while the file system of state directory or database does not answer, and say so to the log and to systemd.

    Whoever touches it waits in the kernel, where often no signal reaches it; asking is another process's.
    """
    with PathLooks() as looks:
        state_silent = find_silent(looks, state)
        database_silent = None if database is None else find_silent(looks, database)
    if state_silent is not None:
        _await_answer("state", "state directory", state, state_silent, notifier)
    if database is not None and database_silent is not None:
        _await_answer("database", "database", database, database_silent, notifier)


def _await_answer(what: str, words: str, path: Path, silent: str, notifier: Notifier) -> None:
    answered = threading.Event()

    def wait_for_answer() -> None:
        wait_until_answered(path)
        answered.set()

    PromptThread(wait_for_answer, words).start()
    log.error("%s.silent", what, extra={"fields": {what: str(path), "why": silent}})
    while not answered.is_set():
        notifier.status(f"waits for its {words}: {silent}; trainings go on")
        notifier.extend_timeout(3 * SAY_EVERY_S)
        answered.wait(SAY_EVERY_S)
    log.warning("%s.answers", what, extra={"fields": {what: str(path)}})


def keep_one_heap() -> bool:
    """Have every thread from now on take its memory from the first heap; return whether the C library supports that.

    Large blocks stay outside of it. glibc takes blocks of a size that was freed once from the heap from then on, and in
    what they leave there small ones come to lie: over 500 restarts it grew by 8 MB.
    """
    if not _is_glibc():
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_ARENA_MAX, 1)) and bool(libc.mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))


def return_freed_memory() -> None:
    """Return the heap's unused pages to the kernel where the C library is glibc; takes 0.1 ms where there are none.

    The start alone leaves 1.3 MB of them, and a large answer to `history` all that it took.
    """
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):
        return False
