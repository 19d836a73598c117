"""Appends rare events to `agent.jsonl`, one write per line. Never raises, never blocks."""

from __future__ import annotations

import os
import time
from _json import encode_basestring_ascii as _quoted  # the json package costs milliseconds at every interpreter's start

from .layout import AGENT

FILE_LIMIT_BYTES = 16 << 20
"""A program that starts Python in a loop must not fill the disk with `alive`."""
TEXT_LIMIT = 16 << 10
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_path = None
_rank = 0
_held = None


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
    """Append one event; it is lost silently on a full disk or without the folder."""
    if _path is None:
        if _held is not None:
            _held.append((event, fields))
        return
    facts = {"event": event, "pid": os.getpid(), "rank": _rank, "monotonic_ns": time.monotonic_ns()}
    facts["unix_s"] = time.time_ns() / 1e9
    facts.update(fields)
    try:
        line = (_encode_json(facts) + "\n").encode("ascii")
        file = os.open(_path, FLAGS, 0o640)
        try:
            there = os.fstat(file)
            if there.st_nlink == 1 and there.st_size < FILE_LIMIT_BYTES:  # another name may be a file's elsewhere
                os.write(file, line)
        finally:
            os.close(file)
    except Exception:
        pass


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
