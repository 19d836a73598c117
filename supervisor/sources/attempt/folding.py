"""Folds terminal output into the lines that a terminal would finally show.

A carriage return restarts the line, so only the last frame of a progress bar is kept. Escape sequences are removed.
A cursor-up removes the lines that are overwritten after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BREAK = re.compile(rb"[\r\n]")
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, erasing, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: window titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # the two-character ones
)
_CURSOR_UP = re.compile(rb"\x1b\[([0-9]{0,3})[AF]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PENDING_LIMIT_BYTES = 64 * 1024
"""A longer line is split here, so that a program that never ends its lines cannot fill the daemon's memory."""


@dataclass(slots=True)
class Folded:
    """The result of one feed."""

    lines: list[str] = field(default_factory=list)
    """Complete lines, as they remain on the screen."""
    segments: list[str] = field(default_factory=list)
    """Everything that was shown, including overwritten frames, oldest first."""


class Folder:
    """Turns bytes into lines; the result does not depend on how the bytes are split into feeds."""

    def __init__(self) -> None:
        self._pending = b""
        self._folded_bytes = 0
        self._frame = ""
        self._frame_at = 0

    @property
    def unsettled_bytes(self) -> int:
        """Bytes at the end of the input that a new folder must be fed again to continue here."""
        return len(self._pending) + (self._folded_bytes - self._frame_at if self._frame else 0)

    @property
    def current(self) -> str:
        """The incomplete last line, as the screen shows it."""
        return _visible_text(self._pending) or self._frame

    def feed(self, data: bytes) -> Folded:
        """Fold more bytes; invalid UTF-8 is shown as backslash escapes."""
        data = self._pending + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        folded = self._fold_lines(data[:end])
        self._pending = data[end:]
        if len(self._pending) > PENDING_LIMIT_BYTES:
            self._end_line(folded)
        return folded

    def finish(self) -> Folded:
        """Complete the last line although no line break followed it."""
        folded = Folded()
        if self._pending or self._frame:
            self._end_line(folded)
        return folded

    def _end_line(self, folded: Folded) -> None:
        rest, self._pending = self._pending, b""
        self._add_segment(rest, folded, self._folded_bytes)
        self._folded_bytes += len(rest)
        if self._frame:
            folded.lines.append(self._frame)
            self._frame = ""

    def _fold_lines(self, data: bytes) -> Folded:
        folded, at = Folded(), 0
        for found in _BREAK.finditer(data):
            if at < found.start():
                self._add_segment(data[at : found.start()], folded, self._folded_bytes + at)
            at = found.end()
            if found[0] == b"\n":
                folded.lines.append(self._frame)
                self._frame = ""
        self._folded_bytes += len(data)
        return folded

    def _add_segment(self, raw: bytes, folded: Folded, at: int) -> None:
        if b"\x1b" in raw:
            for up in _CURSOR_UP.finditer(raw):
                del folded.lines[max(0, len(folded.lines) - int(up[1] or 1)) :]
        shown = _visible_text(raw)
        if shown:
            self._frame, self._frame_at = shown, at
            folded.segments.append(shown)


def clean(text: str) -> str:
    """Return the text without escape sequences, control characters and trailing blanks; tabs stay."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _CONTROL.sub("", text).rstrip()


def _visible_text(raw: bytes) -> str:
    return clean(raw.decode("utf-8", "backslashreplace"))
