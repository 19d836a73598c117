"""Brings the database file to the present schema before anything is written; a newer one is refused, never touched."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from supervisor.store import files
from supervisor.store.errors import StoreError
from supervisor.store.tables import metadata

REVISIONS = ("0001", "0002_remedies", "0003_generations")
"""Every revision in migrations/versions, oldest first; reading them there would cost the daemon Alembic's memory."""
HEAD = REVISIONS[-1]
UPGRADE_LIMIT_S = 1800.0
_VERSION_TABLE = (
    "CREATE TABLE alembic_version "
    "(version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


def revision_of(connection: sqlite3.Connection) -> str | None:
    """Return the schema revision of an open file, None for an empty one; raise ValueError for somebody else's."""
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
        f"{path} was written by a newer version (schema {revision}, this one knows up to {HEAD}): "
        f"install that version again, or put back a copy {path.name}.before-*"
    )


def bring_to_head(path: Path) -> str | None:
    """Create the tables in an empty file or upgrade an older one; return what was done, None where nothing was.

    Raises StoreError where the file is newer or not ours, and where the upgrade failed, which leaves it as it was.
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
        raise StoreError(f"{path} is no database of this program: {error}; name another file") from error


def create(path: Path) -> None:
    """Create every table as it stands in tables.py, which a test holds equal to the migrations."""
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
            f"{path} is not upgraded: no copy could be made first: {error}; make room beside it"
        ) from error
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "supervisor.store.upgrade", str(path.absolute())]
    try:
        child = subprocess.run(
            command, cwd=root, capture_output=True, text=True, errors="replace", timeout=UPGRADE_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"the upgrade of {path} did not end: {error}; the file before it is {kept}") from error
    if child.returncode != 0:
        why = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise StoreError(f"{path} could not be upgraded from {revision} to {HEAD}: {why}; the file before it is {kept}")
    return f"upgraded {path.name} from schema {revision} to {HEAD}; the file before it is {kept.name}"
