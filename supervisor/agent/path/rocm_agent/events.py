"""Appends rare events to `agent.jsonl`, complete lines with each write. Never raises.

What a disk refuses is tried once more at once, and again with the next event. A file system that does not answer is
waited for, as by whatever the training prints into its output.
"""

from __future__ import annotations

import os
import stat
import time
from _json import encode_basestring_ascii as _quoted  # the json package costs milliseconds at every interpreter's start

from .layout import AGENT

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import List

FILE_LIMIT_BYTES = 16 << 20
"""A program that starts Python in a loop must not fill the disk with `alive`."""
TEXT_LIMIT = 16 << 10
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

UNWRITTEN_LINES = 100
ASIDE_LIMIT = 100

_path = None
_rank = 0
_held = None
_unwritten = []
_unwritten_in = 0
"""The process whose lines these are: a forked child does not write them as well."""


def begin(folder: str, rank: int) -> None:
    """Write to the attempt's folder from now on, beginning with the events held so far."""
    global _path, _rank, _held
    _path, _rank = os.path.join(folder, AGENT), rank
    held, _held = _held or (), None
    for event, fields in held:
        write(event, **fields)


def hold() -> None:
    """Keep events until there is a folder to write them to."""
    global _held
    _held = []


def write(event: str, **fields: object) -> None:
    """Append one event; what cannot be written is written with the next one."""
    global _unwritten, _unwritten_in
    if _path is None:
        if _held is not None:
            _held.append((event, fields))
        return
    facts = {"event": event, "pid": os.getpid(), "rank": _rank, "monotonic_ns": time.monotonic_ns()}
    facts["unix_s"] = time.time_ns() / 1e9
    facts.update(fields)
    try:
        line = (_encode_json(facts) + "\n").encode("ascii")
        if _unwritten_in != facts["pid"]:
            _unwritten, _unwritten_in = [], facts["pid"]
        # Taken first: another thread that writes meanwhile does not write them as well.
        lines, _unwritten = [*_unwritten[1 - UNWRITTEN_LINES :], line], []
        if not _append(b"".join(lines)):
            _clear_place()
            if not _append(b"".join(lines)):
                _unwritten = [*lines, *_unwritten]
    except Exception:
        pass


def read(limit_bytes: int) -> List[bytes]:
    """Return the complete lines of the last bytes that all processes of the attempt have written. Raises OSError."""
    if _path is None:
        return []
    file = os.open(_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        begin = max(0, os.fstat(file).st_size - limit_bytes)
        text = os.pread(file, limit_bytes, begin)
    finally:
        os.close(file)
    return text.split(b"\n")[1 if begin else 0 : -1]


def _clear_place() -> None:
    """Rename what is no file in the place of the file: what is reported would be lost by it, and it is not ours."""
    try:
        if stat.S_ISREG(os.lstat(_path).st_mode):
            return
        for number in range(1, ASIDE_LIMIT):
            aside = "%s.found-%d" % (_path, number)
            if not os.path.lexists(aside):
                os.rename(_path, aside)
                return
    except OSError:
        pass  # most often there is none


def _append(lines: bytes) -> bool:
    """Append to the file; return False if the disk refused it, so that it has to be written later."""
    try:
        file = os.open(_path, FLAGS, 0o640)
        try:
            there = os.fstat(file)
            if there.st_nlink != 1 or there.st_size >= FILE_LIMIT_BYTES:  # another name may be a file's elsewhere
                return True
            written = os.write(file, lines)
            if 0 < written < len(lines):
                os.write(file, b"\n")  # the torn line is none, and the next begins
            return written == len(lines)
        finally:
            os.close(file)
    except OSError:
        return False


def _encode_json(value: object) -> str:
    """Return `value` as JSON; non-finite numbers become null, other types their bounded text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0.0 else "null"
    if isinstance(value, dict):
        return "{" + ", ".join(_quoted(str(key)) + ": " + _encode_json(item) for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_encode_json, value)) + "]"
    return _quoted(str(value)[:TEXT_LIMIT])
