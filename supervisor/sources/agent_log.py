"""Reads the agent's rare events, whole lines only; what it cannot read it counts and passes over."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.core.events import Word
from supervisor.core.moments import Moment

BYTES_PER_READ = 1 << 20
_COMMON = frozenset({"event", "pid", "rank", "monotonic_ns", "unix_s"})
_NEVER_NS = 2**63
"""No clock reads this; a whole number far beyond would not even turn into a float."""
_LONE_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFact:
    """One line of agent.jsonl."""

    at: Moment
    word: Word
    pid: int | None
    rank: int | None
    facts: dict[str, object]
    """The fields of this word, without the common ones; described in `core/folder.py`."""
    offset: int = 0
    """Bytes of the file up to and with this line."""


class AgentLogReader:
    """Follows one agent.jsonl from `offset` (bytes); a file that became shorter is read from its start."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._garbage = 0
        self._in_long_line = False

    @property
    def offset(self) -> int:
        """Bytes read so far, at the start of a line; kept, so that a new daemon reads on."""
        return self._offset

    @property
    def garbage(self) -> int:
        """Lines so far that were no event of ours."""
        return self._garbage

    def read(self, now: Moment) -> tuple[AgentFact, ...]:
        """Return the events of the lines that were completed since the last read, at most 1 MiB of them."""
        kept = []
        for line, end in self._new_lines():
            fact = parse(line, now)
            if fact is None:
                self._garbage += 1
            else:
                kept.append(replace(fact, offset=end))
        return tuple(kept)

    def _new_lines(self) -> list[tuple[bytes, int]]:
        """Return the lines that were completed, each with the offset behind it."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            if os.fstat(fd).st_size < self._offset:
                self._offset, self._in_long_line = 0, False
            chunk = os.pread(fd, BYTES_PER_READ, self._offset)
        except OSError:
            return []
        finally:
            os.close(fd)
        return self._take(chunk)

    def _take(self, chunk: bytes) -> list[tuple[bytes, int]]:
        end = chunk.rfind(b"\n") + 1
        if end == 0 and len(chunk) == BYTES_PER_READ:
            # A line without end is not the agent's: let it pass piece by piece, and count it once, when it ends.
            self._in_long_line, end = True, len(chunk)
            self._offset += end
            return []
        lines = []
        for line in chunk[:end].split(b"\n")[:-1]:
            self._offset += len(line) + 1
            lines.append((line, self._offset))
        if self._in_long_line and lines:
            self._in_long_line = False
            self._garbage += 1
            lines = lines[1:]
        return [(line, offset) for line, offset in lines if line.strip()]


def parse(line: bytes, now: Moment) -> AgentFact | None:
    """Return the event in one line, or None where it holds none; `now` ties monotonic times to the wall clock."""
    text = line.decode("utf-8", "backslashreplace")
    try:
        fields = json.loads(text)
        if _LONE_SURROGATE.search(text):
            # Half a surrogate pair is no text: it could be neither stored nor sent.
            fields = json.loads(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    at = fields.get("monotonic_ns")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < _NEVER_NS:
        return None
    try:
        word = Word(fields.get("event"))
    except ValueError:
        return None
    return AgentFact(
        at=now.at_monotonic(at / 1e9),
        word=word,
        pid=_whole(fields.get("pid")),
        rank=_whole(fields.get("rank")),
        facts={str(key): value for key, value in fields.items() if key not in _COMMON},
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
