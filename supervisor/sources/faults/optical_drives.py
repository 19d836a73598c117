"""Finds the optical drives in a log: libata reports their commands as those of a disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from supervisor.sources.faults.events import Event

# They begin with a literal, by which they are searched for in all of a log in little time.
_ATAPI = re.compile(
    r"ata\d+(?:\.\d+)?(?=: (?:ATAPI: |cmd a0/|failed command: PACKET|(?:tag \d+ )?(?:cmd|command) 0xa[01]\b"
    r"|qc timeout \(cmd 0xa[01]\)|unsupported device, disabling|failed to clear UNIT ATTENTION|TEST_UNIT_READY failed))"
)
_ATA = re.compile(r"ata\d+(?:\.\d+)?(?=: (?:ATA-\d+: |failed command: (?!PACKET)|cmd (?!a0)[0-9a-f]{2}/))")
_IDE_CD = re.compile(r"hd[a-z](?=: (?:ATAPI |packet command error))")


def without_optical_drives(events: Sequence[Event], lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events that are of no optical drive."""
    optical = find_optical_drives(lines) if any(_is_of_ata(event) for event in events) else frozenset()
    return (event for event in events if event.finding.device not in optical)


def find_optical_drives(lines: Iterable[str]) -> frozenset[str]:
    """Return the names of the optical drives in a log, and of the ports that have no other device."""
    log = "\n".join([line for line in lines if "ata" in line or "hd" in line])
    disks = set(_ATA.findall(log))
    optical = set(_ATAPI.findall(log)) - disks
    ports_of_disks = {name.partition(".")[0] for name in disks}
    ports = {name.partition(".")[0] for name in optical} - ports_of_disks
    return frozenset((*optical, *ports, *_IDE_CD.findall(log)))


def _is_of_ata(event: Event) -> bool:
    return (event.finding.device or "").startswith(("ata", "hd"))
