"""Reads the flight recorder with pread and writes its command word; it never maps the file and never trusts it.

A record counts as lost only when a later one is sound: a header that was scribbled over cannot make the reader skip
records that are still to come.
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
"""At most this many slots a read, about 15 ms, whatever the header claims: forty thousand steps a second, ten reads."""
CAPACITY_MAX = 1 << 20
"""Slots of the largest ring that is read; the shim and the agent make an eighth of it."""
HEADER_BYTES_MAX = 1 << 16
SECONDS_MAX = 1e7
_HEADER_BYTES = attempt_files.ASIDE_OFFSET + attempt_files.ASIDE.size
_STAGES = tuple(None if word == "unknown" else Stage(word) for word in attempt_files.STAGES)
_ASIDES = tuple(Stage(word) if word else None for word in attempt_files.ASIDES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderPage:
    """What one read of the recorder gave."""

    cursor: int
    """Records read so far, the lost ones included; hand it to the next read."""
    records: tuple[StepRecord, ...] = ()
    lost: int = 0
    """Records of this page's range that were overwritten, torn or scribbled over."""
    behind: int = 0
    """Records still unread; when not 0, read again."""
    stage: Stage | None = None
    stage_since: Moment | None = None
    aside: Stage | None = None
    """What keeps the present step from computing; None: nothing, or its agent does not tell."""
    aside_since: Moment | None = None
    whole: bool = False
    """Whether the agent tells every stage there is, so that a long step is no search for kernels and nothing else."""
    claimed_pid: int | None = None
    """Process that writes here; None before the training claimed the recorder."""
    answer: int | None = None
    """What the agent said to the last command (`folder.ANSWER_SAVING`, ...); None before the first."""
    answer_id: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    header_bytes: int
    capacity: int

    def runs(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield (byte offset, records) of the one or two straight runs that hold `count` records from `first`."""
        slot = first % self.capacity
        straight = min(count, self.capacity - slot)
        yield self.header_bytes + slot * attempt_files.RECORD.size, straight
        if count > straight:
            yield self.header_bytes, count - straight


class RecorderReader:
    """Follows one recorder file that another process writes, and may cut, remove or scribble over at any time."""

    def __init__(self, attempt: Path, name: str = attempt_files.RECORDER, *, keep_open: bool = True) -> None:
        """`name` is that of the file below the attempt's folder.

        Kept open, it is read on when somebody removes it; whoever reads many may have to do without that.
        """
        self._attempt = attempt
        self._path = attempt / name
        self._name = name
        self._fd = -1
        self._keep_open = keep_open
        self._barren = (-1, -1)
        self._scanned = (-1, -1)
        """A cursor, and how far behind it no sound record was found."""

    def __enter__(self) -> RecorderReader:
        """Read it for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the file."""
        self.close()

    def read(self, cursor: int, now: Moment, limit: int = RECORDS_PER_READ) -> RecorderPage:
        """Read on from `cursor`, at most `limit` slots; on any problem the cursor stays and `problem` says why.

        Records carry monotonic nanoseconds of this boot; their wall time is reckoned from `now`.
        """
        try:
            page = self._read(cursor, now, limit)
            if not self._keep_open:
                self.close()
            return page
        except (OSError, struct.error, ValueError) as error:
            self.close()
            return RecorderPage(cursor=cursor, problem=f"{self._path.name}: {_describe_error(error)}")

    def step_by(self, monotonic_s: float) -> int | None:
        """Return the number of the last step that was made by a time of this boot; None where the ring tells of none.

        A few records are read, however long the ring is: they lie in the order of their times.
        """
        try:
            return self._find_step_by(int(monotonic_s * 1e9))
        except (OSError, struct.error, ValueError):
            return None

    def close(self) -> None:
        """Let go of the file; the next read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, cursor: int, now: Moment, limit: int) -> RecorderPage:
        header, ring, head = self._read_header()
        page = _header_page(header, cursor, now)
        if head == cursor:
            return page
        if head < cursor:
            raise ValueError(f"holds {head} records, {cursor} were read earlier")
        if head > COUNT_MAX:
            raise ValueError(f"claims {head} records, more than a training can write")
        return self._read_records(page, ring, head, now, limit)

    def _read_header(self) -> tuple[bytes, _Ring, int]:
        """Return the header, the ring's shape and the number of records ever written; open the file where need be."""
        if self._fd < 0:
            self._fd = untrusted_files.open_file(self._attempt, self._name)
        header = os.pread(self._fd, _HEADER_BYTES, 0)
        ring = _parse_identity(header)
        (head,) = attempt_files.HEAD.unpack_from(header, attempt_files.HEAD_OFFSET)
        return header, ring, int(head)

    def _find_step_by(self, at_ns: int) -> int | None:
        _, ring, head = self._read_header()
        found, low, high = None, max(0, head - ring.capacity), head
        while low < high:
            middle = (low + high) // 2
            fields = attempt_files.RECORD.unpack(self._read_slots(ring, middle, 1))
            if fields[0] != middle + 1 or fields[10] != (fields[0] & 0xFFFFFFFF) ^ attempt_files.CHECK_XOR:
                return None
            if fields[2] <= at_ns:
                found, low = int(fields[1]), middle + 1
            else:
                high = middle
        return found

    def _read_records(self, page: RecorderPage, ring: _Ring, head: int, now: Moment, limit: int) -> RecorderPage:
        if (page.cursor, head) == self._barren:
            return replace(page, problem=f"{self._path.name}: none of the new records is valid")
        at = max(page.cursor, head - ring.capacity)
        if self._scanned[0] == page.cursor:
            at = max(at, self._scanned[1])
        count = min(limit, head - at)
        raw, problem = self._read_slots(ring, at, count), None
        if len(raw) < count * attempt_files.RECORD.size:
            problem = f"{self._path.name}: truncated, records are missing"
        records: list[StepRecord] = []
        sound_end = page.cursor
        for number, fields in enumerate(attempt_files.RECORD.iter_unpack(raw), start=at):
            if _is_sound(fields, number + 1):
                records.append(_parse_record(fields, now))
                sound_end = number + 1
        at += count
        self._scanned = (-1, -1) if records or at >= head else (page.cursor, at)
        if not records and problem is None and at >= head:
            # Not looked through again before the head moves: a scribbled header must not cost a scan at every poll.
            self._barren = (page.cursor, head)
            problem = f"{self._path.name}: none of the new records is valid"
        return replace(
            page,
            cursor=sound_end,
            records=tuple(records),
            lost=sound_end - page.cursor - len(records),
            behind=head - at if problem is None else 0,
            problem=problem,
        )

    def _read_slots(self, ring: _Ring, first: int, count: int) -> bytes:
        """Return the bytes of `count` slots, whole ones only; fewer where the file ends early."""
        raw = b""
        for offset, run in ring.runs(first, count):
            piece = os.pread(self._fd, run * attempt_files.RECORD.size, offset)
            raw += piece[: len(piece) // attempt_files.RECORD.size * attempt_files.RECORD.size]
            if len(piece) < run * attempt_files.RECORD.size:
                break
        return raw


def request_save(attempt: Path, *, stop: bool, name: str = attempt_files.RECORDER) -> int:
    """Ask the training to save at its next step, and with `stop` to end after that; return the command's id.

    The agent answers with the same id in the header. Raises OSError where the file cannot be opened and ValueError
    where it is no recorder; it creates nothing.
    """
    fd = untrusted_files.open_file(attempt, name, os.O_RDWR, only_name=True)
    try:
        header = os.pread(fd, _HEADER_BYTES, 0)
        _parse_identity(header)
        _, last_id = attempt_files.COMMAND.unpack_from(header, attempt_files.COMMAND_OFFSET)
        command_id: int = last_id % 0xFFFFFFFF + 1
        command = attempt_files.COMMAND_SAVE_AND_STOP if stop else attempt_files.COMMAND_SAVE
        # One aligned eight-byte write: the agent sees the old command or the new one, never half of each.
        os.pwrite(fd, attempt_files.COMMAND.pack(command, command_id), attempt_files.COMMAND_OFFSET)
        return command_id
    finally:
        os.close(fd)


def _parse_identity(header: bytes) -> _Ring:
    if len(header) < _HEADER_BYTES:
        raise ValueError(f"truncated, {len(header)} bytes of header")
    magic, header_bytes, record_bytes, capacity, _rank = attempt_files.IDENTITY.unpack_from(header)
    if magic != attempt_files.MAGIC:
        raise ValueError("not a flight recorder (wrong magic)")
    sound = record_bytes == attempt_files.RECORD.size and _HEADER_BYTES <= header_bytes <= HEADER_BYTES_MAX
    if not sound or not 0 < capacity <= CAPACITY_MAX:
        raise ValueError(f"unexpected layout (header {header_bytes}, record {record_bytes}, capacity {capacity})")
    return _Ring(header_bytes=header_bytes, capacity=capacity)


def _header_page(header: bytes, cursor: int, now: Moment) -> RecorderPage:
    pid, _, _ = attempt_files.CLAIM.unpack_from(header, attempt_files.CLAIM_OFFSET)
    stage, _, since_ns = attempt_files.STAGE.unpack_from(header, attempt_files.STAGE_OFFSET)
    aside, whole, aside_ns = attempt_files.ASIDE.unpack_from(header, attempt_files.ASIDE_OFFSET)
    beside = _ASIDES[aside] if aside < len(_ASIDES) and aside_ns > 0 else None
    answer, answer_id = attempt_files.ANSWER.unpack_from(header, attempt_files.ANSWER_OFFSET)
    known = _STAGES[stage] if stage < len(_STAGES) else None
    return RecorderPage(
        cursor=cursor,
        stage=known,
        stage_since=now.at_monotonic(since_ns / 1e9) if known and since_ns > 0 else None,
        aside=beside,
        aside_since=now.at_monotonic(aside_ns / 1e9) if beside else None,
        whole=whole == 1,
        claimed_pid=pid or None,
        answer=answer or None,
        answer_id=answer_id if answer else None,
    )


def _is_sound(fields: tuple[int | float, ...], sequence: int) -> bool:
    """Whether a slot holds the record of a sequence number, and numbers that a training can have."""
    return (
        fields[0] == sequence
        and fields[10] == (sequence & 0xFFFFFFFF) ^ attempt_files.CHECK_XOR
        and 0 <= fields[1] <= STEP_MAX
        and fields[2] >= 0
    )


def _parse_record(fields: tuple[int | float, ...], now: Moment) -> StepRecord:
    _, step, at_ns, epoch, known, loss, lr, grad_norm, data_wait_s, gpu_memory, _ = fields
    bits = int(known)
    return StepRecord(
        at=now.at_monotonic(at_ns / 1e9),
        step=int(step),
        epoch=as_int(epoch, maximum=EPOCH_MAX) if bits & attempt_files.KNOWN_EPOCH else None,
        loss=loss if bits & attempt_files.KNOWN_LOSS else None,
        lr=lr if bits & attempt_files.KNOWN_LR else None,
        grad_norm=grad_norm if bits & attempt_files.KNOWN_GRAD_NORM else None,
        gpu_memory_bytes=as_int(gpu_memory, maximum=BYTES_MAX) if bits & attempt_files.KNOWN_GPU_MEMORY else None,
        data_wait_s=as_float(data_wait_s, 0.0, SECONDS_MAX) if bits & attempt_files.KNOWN_DATA_WAIT else None,
        skipped=bool(bits & attempt_files.KNOWN_SKIPPED),
    )


def _describe_error(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
