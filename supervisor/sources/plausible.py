"""Turns what a sensor's text says into a number, or into None where it can be no measurement; it guesses nothing."""

from __future__ import annotations

import math
import re

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LARGEST = 2.0**63
"""Larger than any reading, and the largest that a database column takes."""


def number(text: object) -> float | None:
    """Return a finite number of ordinary size; text of sensors that do not exist (`N/A`, empty) is None."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and abs(value) < _LARGEST else None


def percent(value: float | None) -> float | None:
    """Return a share of time in 0..100; drivers return 65535 for `unknown`."""
    return value if value is not None and 0 <= value <= 100 else None


def celsius(value: float | None) -> float | None:
    """Return a temperature that silicon can have: exactly 0 and 511 are what sensors that are not there return."""
    return value if value is not None and -40 <= value <= 200 and value != 0 else None


def count(value: float | None) -> int | None:
    """Return a whole number that cannot be negative (bytes, Hz, revolutions)."""
    return int(value) if value is not None and value >= 0 else None


def watts(value: float | None) -> float | None:
    """Return a power that a card can draw."""
    return value if value is not None and 0 <= value <= 5000 else None


def pci_address(text: object) -> str | None:
    """Return a full PCI address in lower case, such as `0000:0a:00.0`."""
    address = text.strip().lower() if isinstance(text, str) else ""
    return address if _PCI_ADDRESS.fullmatch(address) else None


def unique_id(text: object) -> str | None:
    """Return a card's serial as 16 hexadecimal digits, however the source pads it."""
    if not isinstance(text, str):
        return None
    try:
        value = int(text.strip(), 16)
    except ValueError:
        return None
    return f"{value:016x}" if 0 < value < 2**64 else None
