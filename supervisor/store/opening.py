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
        finished = (_finish_renewal(path, unix_s),) if files.renewed_path(path).exists() else ()
        if path.exists() and not path.is_file():
            raise StoreError(f"{path} is no file: something else has taken its place; move that away")
        damage = files.damage(path) if path.exists() and path.stat().st_size else None
        if damage is not None:
            return (*finished, renew(path, unix_s, damage))
        done = schema.bring_to_head(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be opened: {error}; check the rights of {path.parent} and its disk") from error
    return finished if done is None else (*finished, done)


def renew(path: Path, unix_s: float, why: str) -> str:
    """Replace a damaged file by a new one with the rows that can be read; return what was done.

    The damaged one stays in its place until the new one is complete: whoever is killed over it, or meets a full disk,
    has lost nothing, and the next start begins again or goes on. Raises OSError or sqlite3.Error.
    """
    part = path.with_name(path.name + ".renewing")
    files.remove(part)
    try:
        schema.create(part)
        saved = files.salvage(path, part)
        files.sync(part)
    except BaseException:
        files.remove(part)
        raise
    part.rename(files.renewed_path(path))
    aside = files.replace_damaged(path, unix_s)
    kept = ", ".join(f"{count} {table}" for table, count in saved.items()) or "nothing"
    log.error("store.damaged", extra={"fields": {"file": str(path), "why": why, "kept_as": aside.name, "saved": saved}})
    return (
        f"{path.name} was damaged ({why}); it was renamed to {aside.name}, and a new database was created with: {kept}"
    )


def _finish_renewal(path: Path, unix_s: float) -> str:
    """Have the complete replacement that an earlier daemon left take its place; return what was done."""
    files.replace_damaged(path, unix_s)
    log.error("store.damaged", extra={"fields": {"file": str(path), "why": "an earlier daemon began to replace it"}})
    return (
        f"{path.name} was damaged; it was renamed to {path.name}.corrupt-*, and a new database was created with what "
        "could be read of it"
    )
