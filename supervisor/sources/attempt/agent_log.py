"""Reads complete lines of the agent's event log; unreadable lines are counted and skipped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files
from supervisor.core.events import AgentEvent
from supervisor.core.foreign_values import (
    BYTES_MAX,
    COUNT_MAX,
    EPOCH_MAX,
    MONOTONIC_NS_MAX,
    PATH_CHARS_MAX,
    PID_MAX,
    RANK_MAX,
    STEP_MAX,
    as_bounded,
    as_dict,
    as_float,
    as_int,
    as_list,
    as_path,
    as_text,
    read_json_object,
)
from supervisor.core.moments import Moment
from supervisor.core.stats.rate_limit import Allowance

BYTES_PER_READ = 1 << 18
"""More than the longest line of the agent: two texts of 16,000 characters each, escaped."""
LINES_PER_READ = 500
LINES_AT_END = 2000
FILE_LIMIT_BYTES = 17 << 20
"""The agent stops writing at 16 MiB; the extra MiB covers several processes that pass that limit together."""
BEHIND_LIMIT_BYTES, KEPT_BYTES, REST_LIMIT_BYTES = 1 << 20, 1 << 16, 1 << 18
"""Further behind than the first, reading continues at the newest bytes of the second; `finish` reads the third."""
_COMMON = frozenset({"event", "pid", "rank", "monotonic_ns", "unix_s"})
SECONDS_MAX = 1e9
PATHS_MAX = 64
SAVES_PER_S, SAVES_AT_ONCE = 1.0, 200
"""Reported checkpoints that are processed per attempt: each costs disk access and a database query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFact:
    """One line of agent.jsonl."""

    at: Moment
    agent_event: AgentEvent
    pid: int | None
    rank: int | None
    facts: dict[str, object]
    """The fields of this kind of event without the common ones; described in `core/attempt_files.py`."""
    offset: int = 0
    """Bytes of the file up to and with this line."""


class AgentLogReader:
    """Follows one agent.jsonl from `offset` (bytes); a truncated file is read again from its start."""

    def __init__(
        self,
        attempt: Path,
        offset: int = 0,
        name: str = attempt_files.AGENT,
        allowance: Allowance | None = None,
        only: AgentEvent | None = None,
    ) -> None:
        """`name` is the file's path below the attempt's folder; with `only`, lines without that event are not parsed.

        `allowance` limits the rate of events written after the first read. Events written before it are all read,
        because a restarted daemon needs them.
        """
        self._attempt = attempt
        self._name = name
        self._offset = offset
        self._only = None if only is None else json.dumps(only.value).encode()
        self._in_long_line = False
        self._allowance = allowance
        self._saves = Allowance(SAVES_PER_S, SAVES_AT_ONCE)
        self._put_off: tuple[AgentFact, ...] = ()
        self._past_bytes: int | None = None
        self._skipped = 0
        self._read_state: untrusted_files.FileState | None = None
        """State of the file when it was read to its end; None while there is more of it."""

    @property
    def offset(self) -> int:
        """Bytes read so far, always the start of a line; stored, so that a restarted daemon continues here."""
        return self._offset

    @property
    def skipped_bytes(self) -> int:
        """Bytes skipped because the file grew faster than it may be read."""
        return self._skipped

    def read(self, now: Moment, limit: int = LINES_PER_READ) -> tuple[AgentFact, ...]:
        """Return the events of the next complete lines, at most `limit`."""
        if self._is_unchanged():
            return ()
        with self._open_log() as (fd, size):
            if self._past_bytes is None:
                self._past_bytes = size
            if self._allowance is None or self._offset < self._past_bytes:
                return self._parse_lines(self._read_lines(fd, limit), now)
            limit = min(limit, self._allowance.left(now.monotonic_s))
            if size - self._offset > BEHIND_LIMIT_BYTES:
                self._skip_to(size - KEPT_BYTES)
            lines = self._read_lines(fd, limit)
            self._allowance.spend(now.monotonic_s, len(lines))
            return self._limit_saves(self._parse_lines(lines, now), now)

    def _is_unchanged(self) -> bool:
        """Whether nothing was added since the last read."""
        if self._read_state is None or self._put_off:
            return False
        try:
            return untrusted_files.is_unchanged(self._attempt, self._name, self._read_state)
        except OSError:
            return False

    def _limit_saves(self, facts: tuple[AgentFact, ...], now: Moment) -> tuple[AgentFact, ...]:
        """Return the facts with at most `SAVES_PER_S` saves; the newest of the surplus is kept for the next read."""
        kept, facts = [], (*self._put_off, *facts)
        self._put_off = ()
        for fact in facts:
            if fact.agent_event is not AgentEvent.CHECKPOINT_SAVED or self._saves.take(now.monotonic_s):
                kept.append(fact)
            else:
                self._put_off = (fact,)
        return tuple(kept)

    def finish(self, now: Moment) -> tuple[AgentFact, ...]:
        """Return the remaining events of a file that is no longer written.

        Of a file larger than `REST_LIMIT_BYTES`, only its first lines and its end are read.
        """
        with self._open_log() as (fd, size):
            lines = self._read_lines(fd, LINES_AT_END) if self._offset < KEPT_BYTES else []
            if size - self._offset > REST_LIMIT_BYTES:
                self._skip_to(size - REST_LIMIT_BYTES)
            before = -1
            while self._offset != before:
                before = self._offset
                lines += self._read_lines(fd, LINES_AT_END)
            return (*self._put_off, *self._parse_lines(lines, now))

    def _parse_lines(self, lines: list[tuple[bytes, int]], now: Moment) -> tuple[AgentFact, ...]:
        kept = []
        for line, end in lines:
            if self._only is not None and self._only not in line:
                continue
            if (fact := parse(line, now)) is not None:
                kept.append(replace(fact, offset=end))
        return tuple(kept)

    def _skip_to(self, offset: int) -> None:
        """Skip to `offset` and past the line that it lies in."""
        self._skipped += offset - self._offset
        self._offset, self._in_long_line = offset, True

    @contextmanager
    def _open_log(self) -> Iterator[tuple[int, int]]:
        """Open the file and yield (descriptor, bytes to read); a missing or refused file is (-1, the offset)."""
        self._read_state = None
        try:
            fd = untrusted_files.open_file(self._attempt, self._name)
        except OSError:
            yield -1, self._offset
            return
        try:
            status = os.fstat(fd)
            size = status.st_size
            if size < self._offset:
                # Truncated: its present content was written after the first read.
                self._offset, self._in_long_line, self._past_bytes = 0, False, 0
            yield fd, min(size, FILE_LIMIT_BYTES)
            self._read_state = untrusted_files.state_of(status) if self._offset == size else None
        finally:
            os.close(fd)

    def _read_lines(self, fd: int, limit: int) -> list[tuple[bytes, int]]:
        """Return complete lines, at most `limit`, each with the offset of its end."""
        wanted = min(BYTES_PER_READ, FILE_LIMIT_BYTES - self._offset)
        if fd < 0 or limit <= 0 or wanted <= 0:
            return []
        try:
            return self._split_lines(os.pread(fd, wanted, self._offset), limit)
        except OSError:
            return []

    def _split_lines(self, chunk: bytes, limit: int) -> list[tuple[bytes, int]]:
        end = chunk.rfind(b"\n") + 1
        if end == 0 and len(chunk) == BYTES_PER_READ:
            # The agent writes no line this long: skip it piece by piece.
            self._in_long_line, end = True, len(chunk)
            self._offset += end
            return []
        lines = []
        for line in chunk[:end].split(b"\n", limit)[:-1]:
            self._offset += len(line) + 1
            lines.append((line, self._offset))
        if self._in_long_line and lines:
            self._in_long_line = False
            lines = lines[1:]
        return [(line, offset) for line, offset in lines if line.strip()]


def parse(line: bytes, now: Moment) -> AgentFact | None:
    """Return the event of one line, None if it has none; `now` relates monotonic times to the wall clock."""
    fields = read_json_object(line)
    at_ns = as_float(fields.get("monotonic_ns"), 0.0, MONOTONIC_NS_MAX) if fields else None
    if fields is None or at_ns is None:
        return None
    try:
        agent_event = AgentEvent(fields.get("event"))
    except ValueError:
        return None
    return AgentFact(
        # An event cannot be later than its reading: a false time would shift every limit that is measured from it.
        at=now.at_monotonic(min(at_ns / 1e9, now.monotonic_s)),
        agent_event=agent_event,
        pid=as_int(fields.get("pid"), 1, PID_MAX),
        rank=as_int(fields.get("rank"), maximum=RANK_MAX),
        facts={name: _bound_field(name, value) for name, value in as_dict(fields).items() if name not in _COMMON},
    )


def _bound_field(name: str, value: object) -> object:
    """Return a field's value if it is within the limits of `FIELDS`, for unknown fields within general limits."""
    read = FIELDS.get(name)
    return as_bounded(value) if value is None or read is None else read(value)


def _read_path(value: object) -> str | None:
    """Return a path as text; None for what no file system can have."""
    return as_text(as_path(value), PATH_CHARS_MAX)


def _read_paths(value: object) -> object:
    """Return the paths of a list that a file system can have."""
    return [path for item in as_list(value, PATHS_MAX) if (path := _read_path(item)) is not None]


def _int_between(minimum: int, maximum: int) -> Callable[[object], object]:
    return lambda value: as_int(value, minimum, maximum)


def _read_seconds(value: object) -> object:
    return as_float(value, 0.0, SECONDS_MAX)


_EPOCH, _STEP, _BYTES, _COUNT = (
    _int_between(-1, EPOCH_MAX),
    _int_between(0, STEP_MAX),
    _int_between(0, BYTES_MAX),
    _int_between(0, COUNT_MAX),
)

FIELDS: Mapping[str, Callable[[object], object]] = {
    "epoch": _EPOCH,
    "epochs": _EPOCH,
    "start_epoch": _EPOCH,
    "step": _STEP,
    "batches_per_epoch": _STEP,
    "world_size": _int_between(1, RANK_MAX),
    "loader": _COUNT,
    "pids": lambda value: [pid for item in as_list(value) if (pid := as_int(item, 1, PID_MAX)) is not None],
    "paths": _read_paths,
    "path": _read_path,
    "save_dir": _read_path,
    "size_bytes": _BYTES,
    "reserved_bytes": _BYTES,
    "allocated_bytes": _BYTES,
    "inactive_split_bytes": _BYTES,
    "total_bytes": _BYTES,
    "retries": _COUNT,
    "ooms": _COUNT,
    "stall_s": _read_seconds,
    "write_s": _read_seconds,
    "every_s": _read_seconds,
}
"""Reader of each field by name, see `core/attempt_files.py`; a value outside its limits becomes None."""
