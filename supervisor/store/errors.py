"""What can be wrong with the record, in words for its owner."""

from __future__ import annotations


class StoreError(Exception):
    """The database cannot be used as it is, and what to do about it."""


class ArchiveError(Exception):
    """The database cannot be read as it is, and what to do about it."""
