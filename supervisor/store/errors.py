"""The errors of the database; each text says what to do."""

from __future__ import annotations


class StoreError(Exception):
    """The database cannot be opened or used; the text says what to do."""


class ArchiveError(Exception):
    """The database cannot be read; the text says what to do."""
