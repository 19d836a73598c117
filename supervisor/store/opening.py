"""Makes the database file ready to be used: sound, of the present schema, ours; what it had to do it says in words."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from supervisor.store import files, schema
from supervisor.store.errors import StoreError

log = logging.getLogger(__name__)


def prepare(path: Path, unix_s: float) -> tuple[str, ...]:
    """Check, create or upgrade the file; return what was done beyond opening it, a sentence each.

    Raises StoreError where its owner has to do something first.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        wrong = files.damage(path) if path.exists() and path.stat().st_size else None
        if wrong is not None:
            return (renew(path, unix_s, wrong),)
        done = schema.bring_to_head(path)
    except (OSError, sqlite3.Error, SQLAlchemyError) as error:
        raise StoreError(f"{path} cannot be opened: {error}; check the rights of {path.parent} and its disk") from error
    return () if done is None else (done,)


def renew(path: Path, unix_s: float, why: str) -> str:
    """Set a damaged file aside, begin a new one and copy over what can be read; return what was done.

    Raises OSError, sqlite3.Error or SQLAlchemyError where not even a new file can be made.
    """
    aside = files.set_aside(path, unix_s)
    schema.create(path)
    saved = files.salvage(aside, path)
    kept = ", ".join(f"{count} {table}" for table, count in saved.items()) or "nothing"
    log.error("store.damaged", extra={"fields": {"file": str(path), "why": why, "kept_as": aside.name, "saved": saved}})
    return f"{path.name} was damaged ({why}): kept as {aside.name}, a new one begun, copied over: {kept}"
