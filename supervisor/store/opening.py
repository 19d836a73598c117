"""Prepares the database file: checks it, creates or upgrades it, replaces a damaged one, and reports what was done."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from supervisor.store import files, schema
from supervisor.store.errors import StoreError

log = logging.getLogger(__name__)


def prepare(path: Path, unix_s: float) -> tuple[str, ...]:
    """Check, create or upgrade the file; return what was done beyond opening it, a sentence each.

    Raises StoreError where a person has to do something first.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        damage = files.damage(path) if path.exists() and path.stat().st_size else None
        if damage is not None:
            return (renew(path, unix_s, damage),)
        done = schema.bring_to_head(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be opened: {error}; check the rights of {path.parent} and its disk") from error
    return () if done is None else (done,)


def renew(path: Path, unix_s: float, why: str) -> str:
    """Rename a damaged file, create a new one and copy over the rows that can be read; return what was done.

    Raises OSError or sqlite3.Error where not even a new file can be made.
    """
    aside = files.set_aside(path, unix_s)
    schema.create(path)
    saved = files.salvage(aside, path)
    kept = ", ".join(f"{count} {table}" for table, count in saved.items()) or "nothing"
    log.error("store.damaged", extra={"fields": {"file": str(path), "why": why, "kept_as": aside.name, "saved": saved}})
    return (
        f"{path.name} was damaged ({why}); it was renamed to {aside.name}, and a new database was created with: {kept}"
    )
