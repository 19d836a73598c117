"""Follows a training's raw output at a bounded cost per read and keeps a folded copy; never blocks the training.

If a training prints faster than it can be read, the reader skips to the newest part and notes the skipped bytes in
the folded copy. The disk space of what was read is freed by punching holes, so the raw file may be large and sparse.
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
"""Further behind than this, the reader skips: about one second of the fastest plausible output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPage:
    """The result of one read of the output."""

    new_bytes: int
    """Bytes read or skipped since the last read."""
    lines: tuple[str, ...] = ()
    """Lines completed since the last read, folded."""
    last_line: str = ""
    """The last line of the output, complete or not; empty before the first print."""
    findings: tuple[OutputFinding, ...] = ()
    progress: Progress | None = None
    skipped_bytes: int = 0
    behind_bytes: int = 0
    """Bytes still unread; if not 0, read again."""
    problem: str | None = None


class OutputReader:
    """Follows `output.log` of one attempt from `offset` (bytes) and writes `output.txt` in the same folder.

    Both stay within `limit_bytes` on disk. A restarted daemon continues at the stored `offset`: a line that was folded
    just before the restart may appear twice in `output.txt`, but no line is missing.
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
        """Bytes of the raw file that a new reader does not need to read again."""
        return self._read_to - self._folder.unsettled_bytes

    def read(self, now: Moment) -> OutputPage:
        """Read at most 1 MiB of new output. Never raises; a missing file has no new output."""
        try:
            return self._read(now)
        except FileNotFoundError:
            return OutputPage(new_bytes=0, last_line=self._last_line)
        except OSError as error:
            return OutputPage(
                new_bytes=0, last_line=self._last_line, problem=f"{self._raw_path.name}: {_describe_error(error)}"
            )

    def finish(self, now: Moment) -> OutputPage:
        """Complete the last line after the training ended; call it when `read` has returned everything."""
        return self._build_page(self._folder.finish(), now, new_bytes=0)

    def _read(self, now: Moment) -> OutputPage:
        if self._read_state is not None and untrusted_files.is_unchanged(
            self._attempt, attempt_files.OUTPUT, self._read_state
        ):
            return OutputPage(new_bytes=0, last_line=self._last_line)
        self._read_state = None
        fd = self._open_raw()
        try:
            status = os.fstat(fd)
            size = status.st_size
            if size < self._read_to:
                # The file was truncated; its present content has not been read.
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
            # Only after a read without new bytes: how much can be freed depends on the final size.
            if page.new_bytes == 0 and page.problem is None and self._read_to == size:
                self._read_state = untrusted_files.state_of(status)
            return page
        finally:
            os.close(fd)

    def _open_raw(self) -> int:
        try:
            # Refuse a file with a second name: punching holes would destroy data of another file's owner.
            return untrusted_files.open_file(self._attempt, attempt_files.OUTPUT, os.O_RDWR, only_name=True)
        except PermissionError:
            # A training of another user: the file can be read, but no holes can be punched.
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
    """Drop the rest of a UTF-8 character that was cut by skipping."""
    cut = 0
    while cut < min(3, len(data)) and data[cut] & 0xC0 == 0x80:
        cut += 1
    return data[cut:]


def _describe_error(error: OSError) -> str:
    return error.strerror or str(error)
