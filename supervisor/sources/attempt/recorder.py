"""Reads the flight recorder with pread; does not map the file, and checks every value.

A record counts as lost only if a later one is valid: a corrupt header cannot make the reader skip records that are
still to be written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files
from supervisor.core.foreign_values import BYTES_MAX, COUNT_MAX, EPOCH_MAX, STEP_MAX, as_float, as_int
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage, StepRecord

RECORDS_PER_READ = 4096
"""Limit of slots per read, about 15 ms: enough for 40,000 steps per second at the ten reads per second that the daemon
makes while it is behind."""
CAPACITY_MAX = 1 << 20
"""Slots of the largest ring that is read; the shim and the agent create an eighth of it."""
HEADER_BYTES_MAX = 1 << 16
SECONDS_MAX = 1e7
AHEAD_MAX_S = 60.0
"""A record or stage later than the read by more than this counts as of the time of the read: its time is damaged,
forged or of an earlier boot. A reader may be held up as long between its look at the clock and the file."""
_HEADER_BYTES = attempt_files.ASIDE_OFFSET + attempt_files.ASIDE.size
_RECORDS = {layout.size: layout for layout in (attempt_files.RECORD, attempt_files.RECORD_WITHOUT_SAMPLES)}
_STAGES = tuple(None if name == "unknown" else Stage(name) for name in attempt_files.STAGES)
_ASIDES = tuple(Stage(name) if name else None for name in attempt_files.ASIDES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderPage:
    """The result of one read of the recorder."""

    cursor: int
    """Records read so far, including lost ones; pass it to the next read."""
    records: tuple[StepRecord, ...] = ()
    lost: int = 0
    """Records of this page's range that were overwritten, torn or corrupt."""
    behind: int = 0
    """Records still unread; if not 0, read again."""
    stage: Stage | None = None
    stage_since: Moment | None = None
    aside: Stage | None = None
    """The stage that delays the present step; None if there is none, or the agent does not report it."""
    aside_since: Moment | None = None
    stages_complete: bool = False
    """Whether the agent reports every stage, so that a long step without a stage is not a kernel search."""
    claimed_pid: int | None = None
    """Process that writes the recorder; None until the training has claimed it."""
    answer: int | None = None
    """The agent's answer to the last command (`attempt_files.ANSWER_SAVING`, ...); None before the first."""
    answer_id: int | None = None
    problem: str | None = None
    unreadable: OSError | ValueError | None = None
    """Why no step could be read, as on a disk that fails or of a damaged file: this is no absence of steps."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Turns times of the file into moments."""

    now: Moment
    latest: Moment

    def at(self, monotonic_ns: float) -> Moment:
        seconds = monotonic_ns / 1e9
        ahead = seconds > self.latest.monotonic_s + AHEAD_MAX_S
        return self.now.at_monotonic(self.latest.monotonic_s if ahead else seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    header_bytes: int
    capacity: int
    record: struct.Struct

    def runs(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield (byte offset, records) of the one or two contiguous runs that hold `count` records from `first`."""
        slot = first % self.capacity
        straight = min(count, self.capacity - slot)
        yield self.header_bytes + slot * self.record.size, straight
        if count > straight:
            yield self.header_bytes, count - straight


class RecorderReader:
    """Follows one recorder file that another process writes, and may truncate, remove or corrupt at any time."""

    def __init__(self, attempt: Path, name: str = attempt_files.RECORDER, *, keep_open: bool = True) -> None:
        """`name` is the file's path below the attempt's folder.

        With `keep_open`, a removed file is still read to its end; without it, no descriptor is held between reads.
        """
        self._attempt = attempt
        self._path = attempt / name
        self._name = name
        self._fd = -1
        self._keep_open = keep_open
        self._was_made = False
        """Whether its header was valid once."""
        self._barren = (-1, -1)
        self._scanned = (-1, -1)
        """A cursor, and the record number up to which no valid record was found after it."""

    def __enter__(self) -> RecorderReader:
        """Return the reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def read(
        self, cursor: int, now: Moment, limit: int = RECORDS_PER_READ, *, latest: Moment | None = None
    ) -> RecorderPage:
        """Read at most `limit` slots from `cursor`; on a problem the cursor is unchanged and `problem` is set.

        Records carry monotonic nanoseconds of this boot; their wall time is computed from `now`. None is later than
        `latest`, by default `now`.
        """
        try:
            page = self._read(cursor, _Times(now, latest or now), limit)
            if not self._keep_open:
                self.close()
            return page
        except (OSError, struct.error, ValueError) as error:
            self.close()
            problem = f"{self._path.name}: {_describe_error(error)}"
            return RecorderPage(cursor=cursor, problem=problem, unreadable=self._as_unreadable(error, problem, cursor))

    def _as_unreadable(self, error: Exception, problem: str, cursor: int) -> OSError | ValueError | None:
        """Return the error if the file could not be read; None if there is none yet: its maker may be at work."""
        if isinstance(error, FileNotFoundError | _NotMadeError) and cursor == 0 and not self._was_made:
            return None
        if isinstance(error, OSError) and not isinstance(error, untrusted_files.UntrustedFileError):
            return error
        return ValueError(problem)

    def step_by(self, monotonic_s: float) -> int | None:
        """Return the number of the last step finished by `monotonic_s` of this boot; None if the ring has none.

        A binary search, since records are in the order of their times.
        """
        try:
            return self._find_step_by(int(monotonic_s * 1e9))
        except (OSError, struct.error, ValueError):
            return None

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, cursor: int, times: _Times, limit: int) -> RecorderPage:
        header, ring, head = self._read_header()
        page = _header_page(header, cursor, times)
        if head == cursor:
            return page
        if head < cursor:
            raise ValueError(f"holds {head} records, {cursor} were read earlier")
        if head > COUNT_MAX:
            raise ValueError(f"claims {head} records, more than a training can write")
        return self._read_records(page, ring, head, times, limit)

    def _read_header(self) -> tuple[bytes, _Ring, int]:
        """Return the header, the ring's shape and the number of records written; opens the file if necessary."""
        if self._fd < 0:
            self._fd = untrusted_files.open_file(self._attempt, self._name)
        header = os.pread(self._fd, _HEADER_BYTES, 0)
        ring = _parse_identity(header)
        self._was_made = True
        (head,) = attempt_files.HEAD.unpack_from(header, attempt_files.HEAD_OFFSET)
        return header, ring, int(head)

    def _find_step_by(self, at_ns: int) -> int | None:
        _, ring, head = self._read_header()
        found, low, high = None, max(0, head - ring.capacity), head
        while low < high:
            middle = (low + high) // 2
            fields = ring.record.unpack(self._read_slots(ring, middle, 1))
            if fields[0] != middle + 1 or fields[-1] != (fields[0] & 0xFFFFFFFF) ^ attempt_files.CHECK_XOR:
                return None
            if fields[2] <= at_ns:
                found, low = int(fields[1]), middle + 1
            else:
                high = middle
        return found

    def _read_records(self, page: RecorderPage, ring: _Ring, head: int, times: _Times, limit: int) -> RecorderPage:
        if (page.cursor, head) == self._barren:
            return _damaged(page, f"{self._path.name}: none of the new records is valid")
        at = max(page.cursor, head - ring.capacity, self._scanned[1] if self._scanned[0] == page.cursor else 0)
        count = min(limit, head - at)
        raw, problem = self._read_slots(ring, at, count), None
        if len(raw) < count * ring.record.size:
            problem = f"{self._path.name}: truncated, records are missing"
        valid = [
            (number, _parse_record(fields, times))
            for number, fields in enumerate(ring.record.iter_unpack(raw), start=at + 1)
            if _is_valid(fields, number)
        ]
        records, valid_end = tuple(record for _, record in valid), valid[-1][0] if valid else page.cursor
        at += count
        self._scanned = (-1, -1) if records or at >= head else (page.cursor, at)
        if not records and problem is None and at >= head:
            # Not scanned again until the head moves: a corrupt header must not cost a scan at every poll.
            self._barren = (page.cursor, head)
            return _damaged(page, f"{self._path.name}: none of the new records is valid")
        if not records and problem is not None:
            return _damaged(page, problem)
        return replace(
            page,
            cursor=valid_end,
            records=records,
            lost=valid_end - page.cursor - len(records),
            behind=head - at if problem is None else 0,
            problem=problem,
        )

    def _read_slots(self, ring: _Ring, first: int, count: int) -> bytes:
        """Return the bytes of `count` slots; fewer, but complete ones, if the file ends early."""
        raw, size = b"", ring.record.size
        for offset, run in ring.runs(first, count):
            piece = os.pread(self._fd, run * size, offset)
            raw += piece[: len(piece) // size * size]
            if len(piece) < run * size:
                break
        return raw


class _NotMadeError(ValueError):
    """The file holds nothing yet."""


def _parse_identity(header: bytes) -> _Ring:
    if not header.strip(b"\0"):
        raise _NotMadeError(f"truncated, {len(header)} bytes of header, none of them written")
    if len(header) < _HEADER_BYTES:
        raise ValueError(f"truncated, {len(header)} bytes of header")
    magic, header_bytes, record_bytes, capacity, _rank = attempt_files.IDENTITY.unpack_from(header)
    if magic != attempt_files.MAGIC:
        raise ValueError("not a flight recorder (wrong magic)")
    record = _RECORDS.get(record_bytes)
    if record is None or not _HEADER_BYTES <= header_bytes <= HEADER_BYTES_MAX or not 0 < capacity <= CAPACITY_MAX:
        raise ValueError(f"unexpected layout (header {header_bytes}, record {record_bytes}, capacity {capacity})")
    return _Ring(header_bytes=header_bytes, capacity=capacity, record=record)


def _header_page(header: bytes, cursor: int, times: _Times) -> RecorderPage:
    pid, _, _ = attempt_files.CLAIM.unpack_from(header, attempt_files.CLAIM_OFFSET)
    stage, _, since_ns = attempt_files.STAGE.unpack_from(header, attempt_files.STAGE_OFFSET)
    number, complete, aside_ns = attempt_files.ASIDE.unpack_from(header, attempt_files.ASIDE_OFFSET)
    aside = _ASIDES[number] if number < len(_ASIDES) and aside_ns > 0 else None
    answer, answer_id = attempt_files.ANSWER.unpack_from(header, attempt_files.ANSWER_OFFSET)
    known = _STAGES[stage] if stage < len(_STAGES) else None
    return RecorderPage(
        cursor=cursor,
        stage=known,
        stage_since=times.at(since_ns) if known and since_ns > 0 else None,
        aside=aside,
        aside_since=times.at(aside_ns) if aside else None,
        stages_complete=complete == 1,
        claimed_pid=pid or None,
        answer=answer or None,
        answer_id=answer_id if answer else None,
    )


def _is_valid(fields: tuple[int | float, ...], sequence: int) -> bool:
    """Whether a slot holds the record of this sequence number with a plausible step and time."""
    return (
        fields[0] == sequence
        and fields[-1] == (sequence & 0xFFFFFFFF) ^ attempt_files.CHECK_XOR
        and 0 <= fields[1] <= STEP_MAX
        and fields[2] >= 0
    )


def _parse_record(fields: tuple[int | float, ...], times: _Times) -> StepRecord:
    _, step, at_ns, epoch, known, loss, lr, grad_norm, data_wait_s, gpu_memory, *work, _ = fields
    samples, tokens = work or (0, 0)
    bits = int(known)
    return StepRecord(
        at=times.at(at_ns),
        step=int(step),
        epoch=as_int(epoch, maximum=EPOCH_MAX) if bits & attempt_files.KNOWN_EPOCH else None,
        loss=loss if bits & attempt_files.KNOWN_LOSS else None,
        lr=lr if bits & attempt_files.KNOWN_LR else None,
        grad_norm=grad_norm if bits & attempt_files.KNOWN_GRAD_NORM else None,
        gpu_memory_bytes=as_int(gpu_memory, maximum=BYTES_MAX) if bits & attempt_files.KNOWN_GPU_MEMORY else None,
        data_wait_s=as_float(data_wait_s, 0.0, SECONDS_MAX) if bits & attempt_files.KNOWN_DATA_WAIT else None,
        skipped=bool(bits & attempt_files.KNOWN_SKIPPED),
        tuning=bool(bits & attempt_files.KNOWN_TUNING),
        begins=bool(bits & attempt_files.KNOWN_BEGINS),
        samples=int(samples) or None,
        tokens=int(tokens) or None,
    )


def _damaged(page: RecorderPage, problem: str) -> RecorderPage:
    """Return a page of a file that claims new records and holds none."""
    return replace(page, problem=problem, unreadable=ValueError(problem))


def _describe_error(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
