"""Follows /dev/kmsg by sequence; `findings.py` interprets its records.

Format: the kernel's Documentation/ABI/testing/dev-kmsg. One read gives one record:
`priority,sequence,microseconds,flags[,...];message`, then lines that begin with a blank (`DEVICE=+pci:...`).
"""

from __future__ import annotations

import errno
import os
import re
import select
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from supervisor.core.events import KernelReported
from supervisor.core.moments import Moment
from supervisor.sources.kernel.findings import Record, RecordInterpreter

RECORD_BYTES = 16384
"""A record has at most 8192 bytes; a read with a smaller buffer fails with EINVAL."""
RECORDS_PER_READ = 2000
REOPEN_S = 60.0
UNNAMED_WAIT_MS = 10
"""How long to wait for the next lines after a line without a PCI address: they usually have it."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CONTROLS = frozenset((*range(0x20), 0x7F))
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_DEVICE = re.compile(r"^ DEVICE=\+pci:(?P<gpu>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$", re.MULTILINE)


class Feed(Protocol):
    """A source of records: the device, or a test's list."""

    def fileno(self) -> int:
        """Return a descriptor that polls readable when a record is available."""

    def read(self) -> bytes:
        """Return one record. Raises BlockingIOError if there is none, OSError(EPIPE) if records were overwritten."""

    def close(self) -> None:
        """Close the device."""


class KmsgDevice:
    """The device, opened non-blocking, read from its oldest record or only for new ones."""

    def __init__(self, path: Path, *, from_oldest: bool) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(self._fd, 0, os.SEEK_SET if from_oldest else os.SEEK_END)
        except OSError:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def read(self) -> bytes:
        """Return one record. Raises BlockingIOError if there is none."""
        return os.read(self._fd, RECORD_BYTES)

    def close(self) -> None:
        """Close the device."""
        os.close(self._fd)


class KernelLog:
    """The kernel log from the stored position on.

    `after_sequence` is the sequence of the last record that was read and `boot_id` the boot it was read in. In the same
    boot, reading continues after it; in a later one, all records are new. Without it (a first start), only records
    logged from now on are read, because earlier ones concern unsupervised trainings.
    """

    def __init__(
        self,
        path: Path,
        accept_user_records: bool,  # noqa: FBT001 (the setting of the same name)
        boot_id: str | None,
        after_sequence: int | None,
        *,
        open_feed: Callable[[Path, bool], Feed] = lambda path, from_oldest: KmsgDevice(path, from_oldest=from_oldest),
    ) -> None:
        self._path = path
        self._interpreter = RecordInterpreter("kmsg", accept_user_records=accept_user_records)
        self._open_feed = open_feed
        self._from_oldest = after_sequence is not None
        self._sequence = after_sequence if after_sequence is not None and boot_id == current_boot_id() else None
        self._feed: Feed | None = None
        self._tried: Moment | None = None
        self.problem: str | None = None
        """Why the log cannot be read, and what to do; None while it can be read."""
        self._open_log()

    @property
    def sequence(self) -> int | None:
        """Sequence of the last record read in this boot; None before the first."""
        return self._sequence

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 if the log is not open."""
        return self._feed.fileno() if self._feed else -1

    def read(self, now: Moment) -> KernelReported | None:
        """Return the findings since the last read, from at most 2000 records; None if nothing was logged."""
        if self._feed is None and (self._tried is None or now.seconds_since(self._tried) >= REOPEN_S):
            self._tried = now
            self._open_log()
        before = self._sequence
        records, lost = self._read_new_records()
        if self._sequence is None or self._sequence == before:
            return None
        if self._interpreter.names_no_card(records) and self._wait_for_record():
            more, more_lost = self._read_new_records()
            records, lost = records + more, lost + more_lost
        findings = self._interpreter.findings(records, now)
        return KernelReported(at=now, findings=findings, sequence=self._sequence, lost_lines=lost)

    def _wait_for_record(self) -> bool:
        """Wait up to `UNNAMED_WAIT_MS` for the next record; return whether one is available."""
        if self._feed is None:
            return False
        poller = select.poll()
        poller.register(self._feed.fileno(), select.POLLIN)
        return bool(poller.poll(UNNAMED_WAIT_MS))

    def close(self) -> None:
        """Close the device."""
        if self._feed:
            self._feed.close()
            self._feed = None

    def _open_log(self) -> None:
        try:
            from_oldest = self._from_oldest or self._sequence is not None
            self._feed, self.problem = self._open_feed(self._path, from_oldest), None
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}{_suggest_remedy(error)}"

    def _read_new_records(self) -> tuple[list[Record], int]:
        records: list[Record] = []
        lost = 0
        for _ in range(RECORDS_PER_READ):
            try:
                record = self._read_record()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overrun: the gap in the sequence is the number of lost records
                self.problem = f"{self._path}: {error.strerror}"
                self.close()
                break
            if record is None or (self._sequence is not None and record.sequence <= self._sequence):
                continue
            lost += record.sequence - self._sequence - 1 if self._sequence is not None else 0
            self._sequence = record.sequence
            records.append(record)
        return records, lost

    def _read_record(self) -> Record | None:
        if self._feed is None:
            raise BlockingIOError
        raw = self._feed.read()
        if not raw:
            raise BlockingIOError
        return parse_record(raw)


def parse_record(raw: bytes) -> Record | None:
    """Return one record as read from the device, None if it is malformed."""
    head, separator, rest = raw.decode("utf-8", "backslashreplace").partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 4 or not all(_is_count(field) for field in fields[:3]):
        return None
    priority, sequence, at_us = map(int, fields[:3])
    message, _, continued = rest.partition("\n")
    device = _DEVICE.search(continued)
    return Record(
        facility=priority >> 3,
        sequence=sequence,
        at_us=at_us,
        message=_unescape(message),
        device=device["gpu"] if device else None,
    )


def current_boot_id() -> str | None:
    """Return the id of this boot, None if the kernel does not provide it."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _is_count(field: str) -> bool:
    return field.isascii() and field.isdigit() and len(field) <= 18


def _unescape(message: str) -> str:
    r"""Decode the kernel's escapes of non-ASCII characters (`\xe2\x82\xac`); control characters stay escaped."""
    if "\\x" not in message:
        return message
    raw = _ESCAPED.sub(lambda found: found[0] if int(found[1], 16) in _CONTROLS else chr(int(found[1], 16)), message)
    try:
        return raw.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return message


def _suggest_remedy(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return ": the daemon needs CAP_SYSLOG (AmbientCapabilities=CAP_SYSLOG), or sysctl kernel.dmesg_restrict=0"
    if error.errno == errno.ENOENT:
        return ": pass /dev/kmsg into this container, or set kernel_log.enabled = false"
    return ""
