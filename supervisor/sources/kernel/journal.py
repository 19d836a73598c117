"""Follows the kernel messages of the journal if /dev/kmsg is not readable; its position is the journal's cursor."""

from __future__ import annotations

import os
from collections.abc import Sequence

from supervisor.children.child import Child
from supervisor.children.start import PIPE, start
from supervisor.core.events import KernelReported
from supervisor.core.moments import Moment
from supervisor.sources.kernel.findings import Record, RecordInterpreter
from supervisor.sources.kernel.journal_entries import FIELDS, parse_entry

COMMAND = ("journalctl", "--dmesg", "--follow", "--quiet", "--output=json", f"--output-fields={FIELDS}")
REOPEN_S = 60.0
READ_BYTES = 65536
READS_AT_ONCE = 64
EXIT_LIMIT_S = 1.0
LINE_LIMIT_BYTES = 1 << 20
_ERROR_LIMIT_BYTES = 2000


class JournalLog:
    """The kernel's journal from the stored cursor on; without a cursor, only entries that are written from now on.

    A `journalctl` child process reads it, because it handles formats, rotation and namespaces.
    """

    def __init__(
        self, cursor: str | None, *, accept_user_records: bool = False, command: Sequence[str] = COMMAND
    ) -> None:
        self._command = tuple(command)
        self._cursor = cursor
        self._interpreter = RecordInterpreter("journal", accept_user_records=accept_user_records)
        self._number = 0
        self._unread = b""
        self._child: Child | None = None
        self._undead: Child | None = None
        self._tried: Moment | None = None
        self.problem: str | None = None
        """Why the journal cannot be read, and what to do; None while it can be read."""

    @property
    def cursor(self) -> str | None:
        """Cursor of the last entry read."""
        return self._cursor

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 if the journal is not open."""
        return self._child.stdout.fileno() if self._child is not None and self._child.stdout is not None else -1

    def read(self, now: Moment) -> KernelReported | None:
        """Return the findings since the last read; None if nothing was logged."""
        if self._child is None and (self._tried is None or now.seconds_since(self._tried) >= REOPEN_S):
            self._tried = now
            self._start()
        before = self._cursor
        records = self._read_new_records()
        if self._cursor == before:
            return None
        return KernelReported(at=now, findings=self._interpreter.findings(records, now), cursor=self._cursor)

    def close(self) -> None:
        """Kill the child process."""
        child, self._child, self._unread = self._child, None, b""
        if child is not None and not child.end():
            self._undead = child

    def _start(self) -> None:
        if self._undead is not None and self._undead.poll() is None:
            self.problem = f"an earlier {self._command[0]} (pid {self._undead.pid}) could not be killed"
            return
        place = ("--lines=0",) if self._cursor is None else ("--no-tail", f"--after-cursor={self._cursor}")
        try:
            self._child = start((*self._command, *place), stdout=PIPE, stderr=PIPE, new_session=True)
        except OSError as error:
            self.problem = f"{self._command[0]}: {error.strerror}"
            return
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        self.problem = None

    def _read_new_records(self) -> list[Record]:
        records: list[Record] = []
        for _ in range(READS_AT_ONCE):
            if self._child is None or self._child.stdout is None:
                break
            try:
                chunk = os.read(self._child.stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                self._handle_exit(self._child)
                break
            records += self._parse_chunk(chunk)
        return records

    def _parse_chunk(self, chunk: bytes) -> list[Record]:
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        if len(self._unread) > LINE_LIMIT_BYTES:
            self._unread = b""
        records = []
        for line in lines:
            entry = parse_entry(line, self._number + 1)
            if entry is not None:
                self._number, self._cursor = entry.record.sequence, entry.cursor
                records.append(entry.record)
        return records

    def _handle_exit(self, child: Child) -> None:
        assert child.stderr is not None
        os.set_blocking(child.stderr.fileno(), False)
        child.wait(EXIT_LIMIT_S)  # it has closed its standard output
        message = (child.stderr.read(_ERROR_LIMIT_BYTES) or b"").decode("utf-8", "replace").strip()
        self.close()
        reason = message.splitlines()[0] if message else f"ended with status {child.returncode}"
        self.problem = f"journalctl: {reason}; the daemon's user must be in group systemd-journal"
