"""The index of a -wal file, the -shm file that SQLite maps: one that was cut off is rebuilt before it is touched.

A page that a mapped file has lost ends the process by SIGBUS. Restored to its size, and empty, it is what SQLite finds
after a power cut: it is built again from the -wal file, which holds all that was committed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

log = logging.getLogger(__name__)


class WalIndex:
    """The -shm file of a database that this process writes; for all its threads."""

    def __init__(self, database: Path) -> None:
        self._file = f"{database}-shm"
        self._seen: tuple[int, int, int] | None = None
        """Device, inode and the most bytes that it was seen to have."""
        self._in_transaction = threading.RLock()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Restore it where it was cut off; no other thread does so in the body, in which a transaction may be open.

        A transaction that ends on an empty index would have readers miss what the -wal file holds.
        """
        with self._in_transaction:
            self.restore()
            try:
                yield
            finally:
                self._note_size()

    def restore(self) -> None:
        """Restore it where it was cut off, once no transaction of the writer is open."""
        if self._is_cut():
            with self._in_transaction:
                if self._is_cut():
                    self._empty()

    def forget(self) -> None:
        """Forget its size: the writer closes it, and whoever opens it next may begin with a shorter one."""
        with self._in_transaction:
            self._seen = None

    def _is_cut(self) -> bool:
        seen, found = self._seen, self._find()
        return seen is not None and found is not None and found[:2] == seen[:2] and found[2] < seen[2]

    def _note_size(self) -> None:
        seen, found = self._seen, self._find()
        if found is not None and (seen is None or found[:2] != seen[:2] or found[2] > seen[2]):
            self._seen = found

    def _find(self) -> tuple[int, int, int] | None:
        try:
            facts = os.stat(self._file)  # noqa: PTH116 - for every query: a Path takes three times as long
        except OSError:
            return None
        return facts.st_dev, facts.st_ino, facts.st_size

    def _empty(self) -> None:
        """Give it its size, with nothing in it. By name: closing a descriptor of it would release SQLite's locks."""
        assert self._seen is not None
        with suppress(OSError):  # a disk that is read-only or gone: what the map has lost stays lost
            os.truncate(self._file, 0)  # what is left of its header would be believed
            os.truncate(self._file, self._seen[2])
            log.error("store.index_restored", extra={"fields": {"file": self._file, "bytes": self._seen[2]}})


_WRITTEN: WeakValueDictionary[str, WalIndex] = WeakValueDictionary()
"""Those of the databases that this process writes, by absolute path."""


def open_index(database: Path) -> WalIndex:
    """Return the index of a database that this process writes, the same for each caller that keeps it."""
    key = os.path.abspath(database)  # noqa: PTH100 - `resolve` asks the disk, which may hang
    return _WRITTEN.setdefault(key, WalIndex(Path(key)))


def restore_index(database: Path) -> None:
    """Restore the index of a database where this process writes it; another process's is left alone."""
    index = _WRITTEN.get(os.path.abspath(database))  # noqa: PTH100 - as above
    if index is not None:
        index.restore()
