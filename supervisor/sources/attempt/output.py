"""Follows a training's raw output at a bounded cost per read and keeps a folded copy; it never blocks the training.

A training that prints faster than one read takes is not caught up with: the reader jumps to the newest part and says
in the folded copy how much it left unread. What was read is given back to the file system (holes), so the raw file
may look huge and use little.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files
from supervisor.core.findings import OutputFinding
from supervisor.core.moments import Moment
from supervisor.sources.attempt.folding import Folded, Folder
from supervisor.sources.attempt.output_files import FoldedText, RawFile
from supervisor.sources.attempt.progress import Progress
from supervisor.sources.attempt.progress_lines import progress
from supervisor.sources.faults.table import LINE_LIMIT
from supervisor.sources.faults.training_table import findings

BYTES_PER_READ = 1 << 20
BEHIND_LIMIT_BYTES = 4 << 20
"""Further behind than this, the reader jumps: about a second of the fastest printing that makes any sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPage:
    """What one read of the output gave."""

    new_bytes: int
    """How much longer the raw file is than at the last read, read or skipped."""
    lines: tuple[str, ...] = ()
    """Lines that were completed, folded."""
    last_line: str = ""
    """What stands at the end of the output now, complete or not; empty before the first print."""
    findings: tuple[OutputFinding, ...] = ()
    progress: Progress | None = None
    skipped_bytes: int = 0
    behind_bytes: int = 0
    """Still unread; when not 0, reading again gives more."""
    problem: str | None = None


class OutputReader:
    """Follows `output.log` of one attempt from `offset` (bytes) and writes `output.txt` beside it.

    Both stay within `limit_bytes` on disk. A new daemon goes on at the `offset` of the old one: a line that was
    folded just before that one died may then stand twice in `output.txt`, none is missing.
    """

    def __init__(self, attempt: Path, limit_bytes: int, offset: int = 0) -> None:
        self._attempt = attempt
        self._raw_path = attempt / attempt_files.OUTPUT
        self._raw = RawFile(limit_bytes)
        self._text = FoldedText(attempt, limit_bytes)
        self._folder = Folder()
        self._read_to = offset
        self._last_line = ""
        self._read_state: untrusted_files.FileState | None = None
        """State of the file when it was read to its end; None while there is more to do with it."""

    @property
    def offset(self) -> int:
        """Bytes of the raw file that a new reader need not read again."""
        return self._read_to - self._folder.unsettled_bytes

    def read(self, now: Moment) -> OutputPage:
        """Read at most 1 MiB of what is new. Never raises; a file that is not there yet has nothing new."""
        try:
            return self._read(now)
        except FileNotFoundError:
            return OutputPage(new_bytes=0, last_line=self._last_line)
        except OSError as error:
            return OutputPage(
                new_bytes=0, last_line=self._last_line, problem=f"{self._raw_path.name}: {_describe_error(error)}"
            )

    def finish(self, now: Moment) -> OutputPage:
        """Take the last line as complete, although nothing ended it: the training is gone. Read everything first."""
        return self._build_page(self._folder.finish(), now, new_bytes=0)

    def _read(self, now: Moment) -> OutputPage:
        if self._read_state is not None and untrusted_files.is_unchanged(self._raw_path, self._read_state):
            return OutputPage(new_bytes=0, last_line=self._last_line)
        self._read_state = None
        fd = self._open_raw()
        try:
            status = os.fstat(fd)
            size = status.st_size
            if size < self._read_to:
                # Somebody emptied the file; what is in it now was not read.
                self._read_to, self._folder = 0, Folder()
            before = self._read_to
            folded, skipped = self._catch_up(size)
            data = os.pread(fd, BYTES_PER_READ, self._read_to)
            self._read_to += len(data)
            more = self._folder.feed(_skip_partial_character(data) if skipped else data)
            folded.lines += more.lines
            folded.segments += more.segments
            page = self._build_page(folded, now, self._read_to - before, skipped, max(0, size - self._read_to))
            page = page if page.problem else self._free_read_part(fd, page)
            # Once more after something new: what is given back depends on how much stands there for good.
            if page.new_bytes == 0 and page.problem is None and self._read_to == size:
                self._read_state = untrusted_files.state_of(status)
            return page
        finally:
            os.close(fd)

    def _open_raw(self) -> int:
        try:
            # Not with a second name: what is read is given back to the disk, and it may be another's file.
            return untrusted_files.open_file(self._attempt, attempt_files.OUTPUT, os.O_RDWR, only_name=True)
        except PermissionError:
            # Another user's training: readable is enough, its holes are then not ours to punch.
            return untrusted_files.open_file(self._attempt, attempt_files.OUTPUT)

    def _catch_up(self, size: int) -> tuple[Folded, int]:
        if size - self._read_to <= BEHIND_LIMIT_BYTES:
            return Folded(), 0
        folded = self._folder.finish()
        skipped = size - BYTES_PER_READ - self._read_to
        self._read_to += skipped
        folded.lines.append(f"[{skipped} bytes of output skipped]")
        return folded, skipped

    def _build_page(self, folded: Folded, now: Moment, new_bytes: int, skipped: int = 0, behind: int = 0) -> OutputPage:
        last = self._folder.current or next((line for line in reversed(folded.lines) if line), "")
        self._last_line = last[:LINE_LIMIT] or self._last_line
        return OutputPage(
            new_bytes=new_bytes,
            lines=tuple(folded.lines),
            last_line=self._last_line,
            findings=tuple(findings(folded.segments, now)),
            progress=progress(folded.segments),
            skipped_bytes=skipped,
            behind_bytes=behind,
            problem=self._append_folded(folded.lines),
        )

    def _append_folded(self, lines: list[str]) -> str | None:
        if not lines:
            return None
        try:
            self._text.append("\n".join(lines) + "\n")
        except OSError as error:
            return f"{attempt_files.FOLDED}: {_describe_error(error)}"
        return None

    def _free_read_part(self, fd: int, page: OutputPage) -> OutputPage:
        try:
            self._raw.give_back(fd, self._read_to)
        except OSError as error:
            self._raw.give_up()
            return replace(
                page, problem=f"{self._raw_path.name}: cannot be kept within its size limit: {_describe_error(error)}"
            )
        return page


def _skip_partial_character(data: bytes) -> bytes:
    """Drop what is left of a UTF-8 character that was cut when the reader jumped."""
    cut = 0
    while cut < min(3, len(data)) and data[cut] & 0xC0 == 0x80:
        cut += 1
    return data[cut:]


def _describe_error(error: OSError) -> str:
    return error.strerror or str(error)
