"""Finds the optical drives in a log: libata reports their commands as those of a disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from supervisor.sources.faults.events import Event

_IS_ATA = re.compile(r"ata\d|hd[a-z]$")
_OPTICAL = re.compile(
    r"\b(?P<device>ata\d+(?:\.\d+)?|hd[a-z]): (?:ATAPI:? |packet command error|cmd a0/|failed command: PACKET"
    r"|(?:tag \d+ )?(?:cmd|command) 0xa[01]\b|qc timeout \(cmd 0xa[01]\)|failed to clear UNIT ATTENTION"
    r"|TEST_UNIT_READY failed)"
)
_COMMAND = re.compile(
    r"\b(?P<device>ata\d+(?:\.\d+)?): (?:ATA-\d+: |failed command: (?!PACKET)|cmd (?!a0)[0-9a-f]{2}/)"
)


def without_optical_drives(events: list[Event], lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events that are of no optical drive."""
    optical: set[str] = set()
    if any(_IS_ATA.match(event.finding.device or "") for event in events):
        optical = list_optical_drives(lines)
    return (event for event in events if event.finding.device not in optical)


def list_optical_drives(lines: Iterable[str]) -> set[str]:
    """Return the names of the optical drives, and of the ports that have no other device."""
    optical: set[str] = set()
    disks: set[str] = set()
    for line in lines:
        if "ata" in line or "hd" in line:
            optical.update(found["device"] for found in _OPTICAL.finditer(line))
            disks.update(found["device"] for found in _COMMAND.finditer(line))
    optical -= disks
    ports_of_disks = {name.partition(".")[0] for name in disks}
    return optical | ({name.partition(".")[0] for name in optical} - ports_of_disks)
