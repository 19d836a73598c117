"""Brings the database file to the present schema before anything is written; an unknown one is refused unchanged."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from supervisor.shipped import module_command
from supervisor.store import files
from supervisor.store.errors import StoreError
from supervisor.store.tables import metadata

REVISIONS = ("0001_initial", "0002_event_fields", "0003_samples", "0004_tiers")
"""Every revision in migrations/versions, oldest first; reading them there would cost the daemon Alembic's memory."""
HEAD = REVISIONS[-1]
UPGRADE_LIMIT_S = 1800.0
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


def bring_to_head(path: Path) -> str | None:
    """Create the tables in an empty file or upgrade an older one; return what was done, None where nothing was.

    Raises StoreError where the schema is unknown or another program's, and where the upgrade failed; the file then
    stays as it was.
    """
    revision = _revision_in(path)
    if revision is None:
        create(path)
        return None
    refused = refusal(path, revision)
    if refused is not None:
        raise StoreError(refused)
    return None if revision == HEAD else upgrade(path, revision)


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
    """Create every table of tables.py; a test checks that the migrations build the same."""
    # auto_vacuum can only be set before the first table.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.begin() as transaction:
        metadata.create_all(transaction)
        transaction.exec_driver_sql(_VERSION_TABLE)
        transaction.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (HEAD,))
    engine.dispose()


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
        child = subprocess.run(
            command, cwd=root, capture_output=True, text=True, errors="replace", timeout=UPGRADE_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"the upgrade of {path} did not end: {error}; the copy made before it is {kept}") from error
    if child.returncode != 0:
        why = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise StoreError(
            f"{path} could not be upgraded from {revision} to {HEAD}: {why}; the copy made before it is {kept}"
        )
    return f"upgraded {path.name} from schema {revision} to {HEAD}; the copy made before it is {kept.name}"
