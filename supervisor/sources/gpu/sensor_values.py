"""Converts the text of a sensor into a number, or None if it cannot be a measurement."""

from __future__ import annotations

import math
import re

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LEVEL = re.compile(r"^\s*(?:\d+|S):\s*(\d+(?:\.\d+)?)\s*[Mm][Hh]z\s*\*", re.MULTILINE)
_TRANSFERS = re.compile(r"(\d+(?:\.\d+)?)\s*GT/s")
_LARGEST = 2.0**63
"""Upper limit of a reading: the largest integer of a database column."""


def number(text: object) -> float | None:
    """Return a finite number below `_LARGEST`; None for other text (`N/A`, empty)."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and abs(value) < _LARGEST else None


def percent(value: float | None) -> float | None:
    """Return a percentage in 0..100, else None; drivers report an unknown value as 65535."""
    return value if value is not None and 0 <= value <= 100 else None


def celsius(value: float | None) -> float | None:
    """Return a plausible chip temperature, else None; missing sensors report exactly 0 or 511."""
    return value if value is not None and -40 <= value <= 200 and value != 0 else None


def count(value: float | None) -> int | None:
    """Return a non-negative integer (bytes, Hz, revolutions), else None."""
    return int(value) if value is not None and value >= 0 else None


def hertz(megahertz: object) -> int | None:
    """Return the frequency in Hz of a number of megahertz."""
    value = number(megahertz)
    return None if value is None else count(number(value * 1e6))


def watts(value: float | None) -> float | None:
    """Return a power that a GPU can draw, else None."""
    return value if value is not None and 0 <= value <= 5000 else None


def pci_address(text: object) -> str | None:
    """Return a complete PCI address in lower case, such as `0000:0a:00.0`, else None."""
    address = text.strip().lower() if isinstance(text, str) else ""
    return address if _PCI_ADDRESS.fullmatch(address) else None


def unique_id(text: object) -> str | None:
    """Return a GPU's serial number as 16 hexadecimal digits; sources pad it differently."""
    if not isinstance(text, str):
        return None
    try:
        value = int(text.strip(), 16)
    except ValueError:
        return None
    return f"{value:016x}" if 0 < value < 2**64 else None


def current_level_hz(levels: str | None) -> int | None:
    """Return the active clock of a `pp_dpm_*` table (`1: 500Mhz *`) in Hz; None for 0, which some drivers print."""
    found = _LEVEL.search(levels) if levels else None
    return (hertz(found[1]) or None) if found else None


def transfers(text: str | None) -> float | None:
    """Return the number of gigatransfers per second of a text such as `16.0 GT/s PCIe`."""
    found = _TRANSFERS.match(text) if text else None
    return number(found[1]) if found else None


_SIZES = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}


def bytes_of(value: object, unit: str) -> int | None:
    """Return the bytes of a number with a unit; None if either is unknown.

    The vendors' tools print MB and GB for powers of 1024: 192 GiB of HBM is 196300 MB there.
    """
    size, factor = number(value), _SIZES.get(unit.strip().lower())
    return None if size is None or factor is None else count(number(round(size * factor)))
