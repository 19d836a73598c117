"""Parses journal entries as `journalctl -o json` prints them.

Format: systemd's Journal Export Formats, JSON: a field is a string, a list of bytes where it is not UTF-8, null where
it is too large.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.core.foreign_values import read_json_object
from supervisor.sources.kernel.findings import Record

FIELDS = "MESSAGE,SYSLOG_FACILITY,_TRANSPORT,_KERNEL_DEVICE,_SOURCE_MONOTONIC_TIMESTAMP"
"""The requested fields; cursor and times are part of every entry."""
_PCI = re.compile(r"^\+pci:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$")
_KERN, _USER = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the kernel's journal."""

    cursor: str
    boot_id: str | None
    """As the journal writes it, without dashes."""
    record: Record


def parse_entry(line: bytes, number: int) -> Entry | None:
    """Return the entry in one line of JSON, its record numbered `number`; None if it is not from the kernel."""
    fields = read_json_object(line)
    if fields is None or fields.get("_TRANSPORT", "kernel") != "kernel":
        return None
    message, cursor = _decode_field(fields.get("MESSAGE")), fields.get("__CURSOR")
    at_us = _parse_count(fields.get("_SOURCE_MONOTONIC_TIMESTAMP")) or _parse_count(fields.get("__MONOTONIC_TIMESTAMP"))
    if message is None or not isinstance(cursor, str) or at_us is None:
        return None
    device = _PCI.match(_decode_field(fields.get("_KERNEL_DEVICE")) or "")
    facility = fields.get("SYSLOG_FACILITY", "0")
    record = Record(
        facility=_KERN if facility == "0" else _USER,
        sequence=number,
        at_us=at_us,
        message=message,
        device=device[1] if device else None,
    )
    return Entry(cursor=cursor, boot_id=_decode_field(fields.get("_BOOT_ID")), record=record)


def _decode_field(value: object) -> str | None:
    if isinstance(value, list) and all(isinstance(number, int) and 0 <= number < 256 for number in value):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else None


def _parse_count(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18 else None
