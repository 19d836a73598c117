"""Follows a training's raw output at a bounded cost per read and keeps a folded copy; never blocks the training.

If a training prints faster than it can be read, the reader skips to the newest part and notes the skipped bytes in
the folded copy. The disk space of what was read is freed by punching holes, so the raw file may be large and sparse.
Where a log rotation renames the file, it is read on with whatever is at its path since.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files
from supervisor.core.findings import OutputFinding
from supervisor.core.moments import Moment
from supervisor.rotated_output import find_rotated
from supervisor.sources.attempt.output_files import FoldedText
from supervisor.sources.attempt.output_stream import (
    BEHIND_LIMIT_BYTES,
    BYTES_PER_READ,
    MOVED,
    OutputStream,
    Piece,
)
from supervisor.sources.attempt.progress import Progress
from supervisor.sources.attempt.progress_lines import progress
from supervisor.sources.faults.table import LINE_LIMIT
from supervisor.sources.faults.training_table import findings

__all__ = ["BEHIND_LIMIT_BYTES", "BYTES_PER_READ", "OutputPage", "OutputReader"]

ROTATED_LIMIT = 3
"""Renamed files that are followed besides the one at the path; of more, those that were silent the longest are left."""


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
    unreadable: OSError | None = None
    """Why what the training prints cannot be seen at present: its silence means nothing."""


class OutputReader:
    """Follows `output.log` of one attempt from `offset` (bytes) and writes `output.txt` in the same folder.

    Both stay within `limit_bytes` on disk. A restarted daemon continues at the stored `offset`: a line that was folded
    just before the restart may appear twice in `output.txt`, but no line is missing. With `keep_open` it holds a
    descriptor of each file that it follows, at most four; `close` closes them.
    """

    def __init__(self, attempt: Path, limit_bytes: int, offset: int = 0, *, keep_open: bool = True) -> None:
        self._attempt = attempt
        self._limit_bytes = limit_bytes
        self._keep_open = keep_open
        self._text = FoldedText(attempt, limit_bytes)
        self._at_path = self._latest = self._stream(read_to=offset)
        self._rotated: list[OutputStream] = []
        self._looks = 0
        self._is_lost = False
        """Whether what an earlier daemon read is none of the files followed, and none showed progress since."""
        self._last_line = ""

    @property
    def offset(self) -> int:
        """Bytes of the raw file that a new reader does not need to read again."""
        return self._latest.offset

    def read(self, now: Moment) -> OutputPage:
        """Read at most 1 MiB of new output of each file. Never raises; a file that was never there has no output."""
        self._looks += 1
        pieces: list[Piece] = []
        refused: OSError | None = None
        try:
            if self._looks == 1 and self.offset:
                self._find_after_restart()
            at_path = self._follow_path()
        except OSError as error:
            at_path = self._at_path.is_open
            refused = None if at_path or self._rotated else error
            pieces.append(Piece(problem=_describe_unread(error)))
        for stream in (*self._rotated, *([self._at_path] if at_path else [])):
            try:
                pieces.append(self._read_stream(stream))
            except OSError as error:
                refused = error
        page = self._build_page(pieces, now)
        # Lines without progress may be those of another program that writes to the path now.
        self._is_lost &= page.progress is None
        lost = OSError(errno.ENOENT, MOVED, attempt_files.OUTPUT) if self._is_lost else None
        unreadable = refused or lost
        return replace(page, unreadable=unreadable, problem=page.problem or _describe_unread(unreadable))

    def finish(self, now: Moment) -> OutputPage:
        """Complete the last line after the training ended; call it when `read` has returned everything."""
        return self._build_page([Piece(folded=stream.folder.finish()) for stream in self._streams], now)

    def close(self) -> None:
        """Close its files."""
        for stream in self._streams:
            stream.close()

    @property
    def _streams(self) -> tuple[OutputStream, ...]:
        return (*self._rotated, self._at_path)

    def _stream(self, name: str = attempt_files.OUTPUT, read_to: int = 0) -> OutputStream:
        return OutputStream(self._attempt, self._limit_bytes, name=name, read_to=read_to, keep_open=self._keep_open)

    def _follow_path(self) -> bool:
        """Return whether there may be something new at the path; a file that is not there any more is set aside."""
        state = self._at_path.rest_state
        try:
            if state is not None and untrusted_files.is_unchanged(self._attempt, attempt_files.OUTPUT, state):
                return False
        except FileNotFoundError:
            pass  # it is found missing below
        status = untrusted_files.file_status(self._attempt, attempt_files.OUTPUT)
        if self._at_path.is_other_than(status):
            self._set_aside(self._at_path)
            self._at_path = self._stream()
        return status is not None

    def _set_aside(self, stream: OutputStream) -> None:
        self._rotated.append(stream)
        if len(self._rotated) > ROTATED_LIMIT:
            silent = min(self._rotated, key=lambda rotated: rotated.grown_at_look)
            self._rotated = [rotated for rotated in self._rotated if rotated is not silent]
            silent.close()

    def _find_after_restart(self) -> None:
        """Follow what a rotation has renamed meanwhile; what was read is in the file that the offset fits."""
        offset = self.offset
        status = untrusted_files.file_status(self._attempt, attempt_files.OUTPUT)
        is_sought = status is None or status.st_size < offset
        rotated = find_rotated(self._attempt, ROTATED_LIMIT)
        read = next((name for name, size in rotated if size >= offset), None) if is_sought else None
        for name, size in reversed(rotated):
            stream = self._stream(name, offset if name == read else size)
            self._rotated.append(stream)
            self._latest = stream if name == read else self._latest
        if is_sought:
            self._at_path = self._stream()
            self._is_lost = read is None
            self._latest = self._at_path if read is None else self._latest

    def _read_stream(self, stream: OutputStream) -> Piece:
        piece = stream.read()
        if piece.new_bytes:
            stream.grown_at_look, self._latest = self._looks, stream
        return piece

    def _build_page(self, pieces: Sequence[Piece], now: Moment) -> OutputPage:
        lines = [line for piece in pieces for line in piece.folded.lines]
        segments = [segment for piece in pieces for segment in piece.folded.segments]
        last = self._latest.folder.current or next((line for line in reversed(lines) if line), "")
        self._last_line = last[:LINE_LIMIT] or self._last_line
        problems = (self._append_folded(lines), *(piece.problem for piece in pieces))
        return OutputPage(
            new_bytes=sum(piece.new_bytes for piece in pieces),
            lines=tuple(lines),
            last_line=self._last_line,
            findings=tuple(findings(segments, now)),
            progress=progress(segments),
            skipped_bytes=sum(piece.skipped_bytes for piece in pieces),
            behind_bytes=sum(piece.behind_bytes for piece in pieces),
            problem=next(filter(None, problems), None),
        )

    def _append_folded(self, lines: list[str]) -> str | None:
        if not lines:
            return None
        try:
            self._text.append("\n".join(lines) + "\n")
        except OSError as error:
            return f"{attempt_files.FOLDED}: {_describe_error(error)}"
        return None


def _describe_unread(error: OSError | None) -> str | None:
    return None if error is None else f"{Path(attempt_files.OUTPUT).name}: {_describe_error(error)}"


def _describe_error(error: OSError) -> str:
    return error.strerror or str(error)
