"""Finds the optical drives in a log and in sysfs: libata reports their commands as those of a disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from supervisor.sources.faults.events import Event

# They begin with a literal, by which they are searched for in all of a log in little time.
_ATAPI = re.compile(
    r"ata\d+(?:\.\d+)?(?=: (?:ATAPI: |cmd a0/|failed command: PACKET|(?:tag \d+ )?(?:cmd|command) 0xa[01]\b"
    r"|qc timeout \(cmd 0xa[01]\)|unsupported device, disabling|failed to clear UNIT ATTENTION|TEST_UNIT_READY failed))"
)
_ATA = re.compile(r"ata\d+(?:\.\d+)?(?=: (?:ATA-\d+: |failed command: (?!PACKET)|cmd (?!a0)[0-9a-f]{2}/))")
_IDE_CD = re.compile(r"hd[a-z](?=: (?:ATAPI |packet command error))")
_ATA_DEVICE = re.compile(r"dev(\d+)\.(\d+)")


def without_optical_drives(events: Sequence[Event], lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events that are of no optical drive."""
    optical = find_optical_drives(lines) if any(_is_of_ata(event) for event in events) else frozenset()
    return (event for event in events if event.finding.device not in optical)


def find_optical_drives(lines: Iterable[str]) -> frozenset[str]:
    """Return the names of the optical drives in a log, and of the ports that have no other device."""
    log = "\n".join([line for line in lines if "ata" in line or "hd" in line])
    disks = set(_ATA.findall(log))
    return _add_ports(set(_ATAPI.findall(log)) - disks, disks).union(_IDE_CD.findall(log))


def read_optical_drives(sys_root: Path) -> frozenset[str]:
    """Return the same of this machine, by what libata says in sysfs of each device's class."""
    classes: dict[str, str] = {}
    for path in (sys_root / "class/ata_device").glob("dev*"):
        if (named := _ATA_DEVICE.fullmatch(path.name)) is not None:
            try:
                classes[f"ata{named[1]}.{int(named[2]):02d}"] = (path / "class").read_text(encoding="ascii").strip()
            except (OSError, UnicodeError):
                continue
    optical = {name for name, kind in classes.items() if kind.startswith("atapi")}
    return _add_ports(optical, {name for name, kind in classes.items() if kind == "ata"})


def _add_ports(optical: set[str], disks: set[str]) -> frozenset[str]:
    ports_of_disks = {name.partition(".")[0] for name in disks}
    return frozenset((*optical, *({name.partition(".")[0] for name in optical} - ports_of_disks)))


def _is_of_ata(event: Event) -> bool:
    return (event.finding.device or "").startswith(("ata", "hd"))
