"""The database as files: its path, integrity check, copies and ballast.

What damages a file or takes its place is met here first: each function opens the file for itself.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from supervisor.store.errors import StoreError
from supervisor.store.wal_index import restore_index

Identity: TypeAlias = tuple[tuple[int, int] | None, tuple[int, int] | None]
"""Device and inode of a file and of its -wal file; None where there is none."""
SUPPORTED = "sqlite:////absolute/path/supervisor.db"
BALLAST_BYTES = 4 * 1024 * 1024
COPIES_KEPT = 3
SALVAGED = (
    "jobs",
    "attempts",
    "remedies",
    "incidents",
    "checkpoints",
    "decisions",
    "flags",
    "alerts",
    "notes",
    "step_metrics",
    "step_tiers",
    "events",
    "gpus",
    "gpu_tiers",
    "process_tiers",
    "gpu_samples",
    "host_samples",
    "process_samples",
)
"""Every table, in the order in which they are copied from a damaged file."""


def database_path(url: str) -> Path:
    """Return the file of a `sqlite:///` URL.

    Raises StoreError for every other database: what one machine's supervisor records must not depend on a network.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme.split("+", maxsplit=1)[0] != "sqlite":
        raise StoreError(f"database {scheme or url!r} is not supported; this version supports SQLite: {SUPPORTED}")
    path = rest.removeprefix("/")
    if not path or path == ":memory:" or "?" in path:
        raise StoreError(f"database {url!r} names no file; write {SUPPORTED}")
    return Path(path)


def uri(path: Path, options: str) -> str:
    """Return the SQLite URI of a file, `options` such as `mode=ro`."""
    return f"file:{quote(str(path.absolute()))}?{options}"


def check_kind(path: Path) -> None:
    """Raise sqlite3.OperationalError where something that is no file has taken the place of a database or its -wal.

    To open a pipe waits for whoever writes into it, in the kernel, and no busy timeout of SQLite ends that.
    """
    for place in (path, path.with_name(path.name + "-wal")):
        try:
            kind = place.stat().st_mode
        except OSError:  # SQLite says what is wrong, or creates it
            continue
        if not stat.S_ISREG(kind):
            raise sqlite3.OperationalError(f"{place} is no file: something else has taken its place; move that away")


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a file for reading only; it works while the daemon writes, after it ended, and on a read-only file system.

    Raises sqlite3.Error. A database in WAL mode whose last writer closed it has no -wal file; a user without write
    access to the folder can then read it only as immutable, which holds until it is written again.
    """
    check_kind(path)
    restore_index(path)
    last: sqlite3.Error | None = None
    options = ["mode=ro"] if has_wal(path) else ["mode=ro", "immutable=1"]
    for option in options:
        connection = sqlite3.connect(uri(path, option), uri=True, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("PRAGMA busy_timeout = 2000")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            connection.close()
            last = error
        else:
            return connection
    assert last is not None
    raise last


def has_wal(path: Path) -> bool:
    """Whether the file has a -wal file: a writer has it open, or ended without closing it; True if that is unknown."""
    try:
        return path.with_name(path.name + "-wal").exists()
    except OSError:  # opening the file will say what is wrong
        return True


def damage(path: Path) -> str | None:
    """Return the damage that SQLite finds in the file, None where it is intact or only busy.

    Reads the entire file, at the disk's speed.
    """
    try:
        with closing(sqlite3.connect(uri(path, "mode=rw"), uri=True, timeout=5)) as connection:
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if answer == ("ok",) else str(answer[0] if answer else "no answer")


def renewed_path(path: Path) -> Path:
    """Return where the complete replacement of a damaged file lies until it takes its place."""
    return path.with_name(path.name + ".renewed")


def replace_damaged(path: Path, unix_s: float) -> Path:
    """Rename a damaged file, and what belongs to it, to `.corrupt-UNIX`, and its replacement to it; return that name.

    The file itself comes after its -wal file, which must never belong to another. To be called again where it was cut
    short.
    """
    aside = path.with_name(f"{path.name}.corrupt-{int(unix_s)}")
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    renewed_path(path).rename(path)
    return aside


def remove(path: Path) -> None:
    """Remove a database, and what belongs to it, if there is one."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Write a file to the disk, not only to the kernel's cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def salvage(damaged: Path, into: Path) -> dict[str, int]:
    """Copy the readable rows of a damaged file into an intact one of the present schema; return rows by table.

    Raises sqlite3.Error where they cannot be written, as on a full disk: `into` is then of no use.
    """
    with closing(sqlite3.connect(into, isolation_level=None)) as target:
        target.execute(
            "PRAGMA journal_mode = OFF"
        )  # nothing is to be rolled back, and a -wal file may need as much room
        saved = {table: _salvage_table(damaged, target, table) for table in SALVAGED}
        target.execute("PRAGMA journal_mode = WAL")
    return {table: count for table, count in saved.items() if count}


def _salvage_table(damaged: Path, target: sqlite3.Connection, table: str) -> int:
    """Copy rows until the damage is met; forwards and then backwards, since the damage may lie between.

    By the primary key first and then, where the damage may be in its index, in the order of the file.
    """
    keys = [f'"{row[1]}"' for row in target.execute(f"PRAGMA table_info({table})") if row[5]]
    before = target.total_changes
    for columns in (keys, ["rowid"]):
        for order in ("ASC", "DESC"):
            ordered = ", ".join(f"{column} {order}" for column in columns)
            if _salvage_in_order(damaged, target, table, ordered):
                return target.total_changes - before
    return target.total_changes - before


def _salvage_in_order(damaged: Path, target: sqlite3.Connection, table: str, order: str) -> bool:
    """Copy a table's rows in one order; return whether no damage was met. Raises sqlite3.Error of the target only."""
    # A connection of its own for each try: SQLite may refuse everything once it has met damage.
    with closing(sqlite3.connect(uri(damaged, "mode=rw"), uri=True)) as source:
        try:
            rows = source.execute(f"SELECT * FROM {table} ORDER BY {order}")  # noqa: S608 - our own names
        except sqlite3.Error:
            return False
        known = {row[1] for row in target.execute(f"PRAGMA table_info({table})")}
        names = [item[0] for item in rows.description]
        shared = [index for index, name in enumerate(names) if name in known]
        columns = ", ".join(f'"{names[index]}"' for index in shared)
        insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({', '.join('?' * len(shared))})"  # noqa: S608
        target.execute("BEGIN")
        while True:
            try:
                row = rows.fetchone()
            except sqlite3.Error:
                break
            if row is None:
                break
            target.execute(insert, [row[index] for index in shared])
        target.execute("COMMIT")
        return row is None


def copy(path: Path, target: Path) -> None:
    """Write a compact, consistent copy of the database to `target`, which is replaced completely or not at all.

    Readers and the writer go on meanwhile. Raises OSError or sqlite3.Error.
    """
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        with closing(open_reader(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(part),))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def copy_before_upgrade(path: Path, revision: str) -> Path:
    """Copy the file to `.before-REVISION` and keep the newest three such copies; raise OSError or sqlite3.Error."""
    target = path.with_name(f"{path.name}.before-{revision}")
    copy(path, target)
    copies = sorted(path.parent.glob(f"{path.name}.before-*"), key=lambda item: item.stat().st_mtime_ns, reverse=True)
    for old in copies[COPIES_KEPT:]:
        old.unlink(missing_ok=True)
    return target


def identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file, None where there is none. Raises OSError where the disk does not tell."""
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself has taken its place: the disk does tell that
            return None
        raise
    return (facts.st_dev, facts.st_ino)


def identity_with_wal(path: Path) -> Identity:
    """Return `identity` of the file and of its -wal file. Raises OSError where the disk does not tell."""
    return identity(path), identity(path.with_name(path.name + "-wal"))


class Ballast:
    """A file that reserves disk space: on a full disk even DELETE fails until this space is released."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".ballast")

    def take(self) -> None:
        """Allocate the file where the disk has at least as much free space beyond it."""
        with suppress(OSError):
            if self._is_taken():
                return
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize < 2 * BALLAST_BYTES:
                return
            self.release()  # of another length, or a pipe or a link, which is not to be opened
            with self._path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)

    def _is_taken(self) -> bool:
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == BALLAST_BYTES

    def release(self) -> bool:
        """Delete the file; return whether it existed."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
