"""Brings the database file to the present schema before anything is written; an unknown one is refused unchanged."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from supervisor import programs
from supervisor.shipped import module_command
from supervisor.store import files
from supervisor.store.errors import StoreError

REVISIONS = ("0001_initial", "0002_event_fields", "0003_samples", "0004_tiers")
"""Every revision in migrations/versions, oldest first; reading them there would cost the daemon Alembic's memory."""
HEAD = REVISIONS[-1]
UPGRADE_LIMIT_S = 1800.0
TABLES = Path(__file__).with_name("schema.sql")
"""The tables of tables.py as SQL, written by `make frozen-names`; a test checks that the migrations build the same."""
MEASURED = ("gpu_samples", "host_samples")
"""Tables whose columns follow from the measured fields of readings: one declared since needs no migration."""
_VERSION_TABLE = (
    "CREATE TABLE alembic_version "
    "(version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


def revision_of(connection: sqlite3.Connection) -> str | None:
    """Return the schema revision of an open file, None for an empty one; raise ValueError for another program's."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "alembic_version" not in names:
        if names:
            raise ValueError(f"it holds other tables ({', '.join(sorted(names)[:3])}) and no alembic_version")
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


def refusal(path: Path, revision: str) -> str | None:
    """Return why a file of this revision cannot be used here, or None."""
    if revision in REVISIONS:
        return None
    return (
        f"{path} has schema {revision}, written by a newer or a pre-release version; this version reads "
        f"{', '.join(REVISIONS)}. The file was not changed. Install the version that wrote it, put back a copy "
        f"{path.name}.before-*, or move the file away: the daemon then creates a new database and finds running "
        "trainings by their attempt folders"
    )


def unreadable(path: Path, connection: sqlite3.Connection) -> str | None:
    """Return why this version cannot read an open file, with the remedy, or None. Raises sqlite3.Error."""
    try:
        revision = revision_of(connection)
    except ValueError as error:
        return f"{path} is not a database of this program: {error}"
    if revision is None:
        return f"{path} is empty: the daemon has recorded nothing yet"
    refused = refusal(path, revision)
    if refused is None and revision != HEAD:
        return f"{path} has the older schema {revision}: start the daemon to upgrade it"
    return refused


def bring_to_head(path: Path) -> str | None:
    """Create the tables in an empty file or upgrade an older one; return what was done, None where nothing was.

    A column of a measured field that was declared since is added, which changes no revision: its rows are unknown, and
    an older version passes over it. Raises StoreError where the schema is unknown or another program's, and where the
    upgrade failed; the file then stays as it was.
    """
    revision = _revision_in(path)
    if revision is None:
        create(path)
        return None
    refused = refusal(path, revision)
    if refused is not None:
        raise StoreError(refused)
    done = None if revision == HEAD else upgrade(path, revision)
    add_measured_columns(path)
    return done


def _revision_in(path: Path) -> str | None:
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        with closing(files.open_reader(path)) as connection:
            return revision_of(connection)
    except ValueError as error:
        raise StoreError(
            f"{path} is not a database of this program: {error}; set another file in the configuration"
        ) from error


def create(path: Path) -> None:
    """Create every table in an empty file, all of them or none."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # auto_vacuum can only be set before the first table.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN;\n{TABLES.read_text(encoding='utf-8')}{_VERSION_TABLE};\n")
        connection.execute("INSERT INTO alembic_version VALUES (?)", (HEAD,))
        connection.execute("COMMIT")


def add_measured_columns(path: Path) -> None:
    """Add the columns that the tables of samples lack, all of them or none; a file that lacks none is only read."""
    with closing(files.open_reader(path)) as connection:
        missing = list(_list_missing_columns(connection))
    if missing:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(f"BEGIN IMMEDIATE;\n{''.join(missing)}COMMIT;\n")


def _list_missing_columns(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the statement that adds each column of a table of samples that an open file lacks."""
    with closing(sqlite3.connect(":memory:")) as present:
        present.executescript(TABLES.read_text(encoding="utf-8"))
        for table in MEASURED:
            columns = f"PRAGMA table_info({table})"
            known = {name for _, name, *_ in connection.execute(columns)}
            for _, name, kind, *_ in present.execute(columns):
                if name not in known:
                    yield f"ALTER TABLE {table} ADD COLUMN {name} {kind};\n"


def upgrade(path: Path, revision: str) -> str:
    """Copy the file, then upgrade it in a child process, whose memory goes with it; return what was done."""
    try:
        kept = files.copy_before_upgrade(path, HEAD)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{path} was not upgraded: copying it first failed: {error}; free disk space in {path.parent}"
        ) from error
    root = Path(__file__).resolve().parents[2]
    command = [*module_command("supervisor.store.upgrade"), str(path.absolute())]
    try:
        done = programs.run(command, UPGRADE_LIMIT_S, environment=os.environ, cwd=root)
    except OSError as error:
        raise StoreError(f"the upgrade of {path} did not start: {error}; the copy made before it is {kept}") from error
    if done.status is None:
        why = f"it took more than {UPGRADE_LIMIT_S:.0f} s"
        raise StoreError(f"the upgrade of {path} did not end: {why}; the copy made before it is {kept}")
    if done.status != 0:
        why = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.status}"])[-1]
        raise StoreError(
            f"{path} could not be upgraded from {revision} to {HEAD}: {why}; the copy made before it is {kept}"
        )
    return f"upgraded {path.name} from schema {revision} to {HEAD}; the copy made before it is {kept.name}"
