"""Errors of the fleet's database, each with what to do."""

from __future__ import annotations


class FleetError(Exception):
    """The fleet's database cannot be used as it is configured."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class FleetUnreachableError(FleetError):
    """The fleet's database does not answer at present; the same call may succeed later."""
