"""A marker file that names the algorithm being tried: a later process learns from it which one crashed or hung.

Each process writes into a file of its own, STEM.trying-PID, and holds a record lock on it: the kernel drops that when
the process ends, however it ends, and no child inherits it. A file without a lock that still names an algorithm is an
unfinished trial: the process crashed, or hung and was killed.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
from contextlib import contextmanager
from typing import Iterator, List, Optional, Set, Tuple

LIMIT_BYTES = 4096

Tried = Tuple[str, str, str]


class CrashMarker:
    """The process's own file `stem`.trying-PID, made at the first trial; `stem` None: no file."""

    def __init__(self, stem: Optional[str]) -> None:
        self._stem = stem
        self._file: Optional[int] = None
        self._pid = 0
        self._survived: Set[Tuple[str, str]] = set()

    def unanswered(self) -> List[Tried]:
        """Return the trials, as (pass, layer, name), whose process has ended, and remove their files."""
        found = []
        for path in glob.glob(glob.escape(self._stem) + ".trying-*") if self._stem else ():
            if self._file is not None and path == self._own_path():
                continue
            try:
                tried = _left_in(path)
            except OSError:  # another process holds it, or has just removed it
                continue
            if tried is not None:
                found.append(tried)
        return found

    @contextmanager
    def about(self, kind: str, layer: str, name: str) -> Iterator[None]:
        """Mark the trial for the duration of the block. A folder that cannot be written changes nothing."""
        self._write_marker(json.dumps([kind, layer, name]), sync=(kind, name) not in self._survived)
        try:
            yield
            self._survived.add((kind, name))
        finally:
            self._write_marker("", sync=False)

    def _own_path(self) -> str:
        return f"{self._stem}.trying-{os.getpid()}"

    def _write_marker(self, text: str, *, sync: bool) -> None:
        """Replace the file's text; synced for an algorithm's first trial, which may crash the host."""
        if self._stem is None:
            return
        try:
            if self._file is None or self._pid != os.getpid():
                self._file, self._pid = _open_locked(self._own_path()), os.getpid()
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode("ascii"), 0)
            if sync:
                os.fsync(self._file)
        except OSError:
            self._stem = None


def _open_locked(path: str) -> int:
    """Return the file, locked; where another process removes it in between, a new one."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            if os.stat(path).st_ino == os.fstat(file).st_ino:
                return file
        except FileNotFoundError:
            pass
        os.close(file)


def _left_in(path: str) -> Optional[Tried]:
    """Return the trial in the file of an ended process, and remove it; raise OSError for a running one's."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        text = os.pread(file, LIMIT_BYTES, 0)
        os.unlink(path)
    finally:
        os.close(file)
    try:
        kind, layer, name = json.loads(text)
    except (ValueError, TypeError):
        return None
    return (kind, layer, name) if all(isinstance(part, str) for part in (kind, layer, name)) else None
