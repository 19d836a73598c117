"""The end of a growing text file: read by lines at first, then by offset."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from supervisor import untrusted_files

PART_LIMIT_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Text of a file up to `next_offset`."""

    text: str
    next_offset: int


def tail(folder: Path, name: str, after: int | None, lines: int) -> Part:
    """Return what follows offset `after`, or with None the last `lines` lines; at most 256 KiB.

    The file lies below `folder`. One that is not there yet is empty; one that became shorter than `after` was cut, and
    is read from its beginning. Text ends at a complete character: bytes that may become one are left for the next call.
    """
    try:
        fd = untrusted_files.open_file(folder, name)
    except FileNotFoundError:
        return Part(text="", next_offset=0)
    try:
        size = os.fstat(fd).st_size
        if after is None:
            start = max(0, size - PART_LIMIT_BYTES)
            return _decode_part(_last_lines(os.pread(fd, size - start, start), lines, from_start=start == 0), size)
        start = after if after <= size else 0
        content = os.pread(fd, PART_LIMIT_BYTES, start)
        return _decode_part(content, start + len(content))
    finally:
        os.close(fd)


def _last_lines(content: bytes, lines: int, *, from_start: bool) -> bytes:
    end = b"\n" if content.endswith(b"\n") else b""
    kept = content.removesuffix(end).split(b"\n")
    if not from_start:
        kept = kept[1:]  # the first may have begun before what was read
    return b"\n".join(kept[-lines:]) + end if lines and kept else b""


def _decode_part(content: bytes, end: int) -> Part:
    cut = _count_unfinished(content)
    text = content[: len(content) - cut].decode("utf-8", "replace")
    return Part(text=text, next_offset=end - cut)


def _count_unfinished(content: bytes) -> int:
    """Return how many bytes at the end are the beginning of an incomplete character."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
    return 0
