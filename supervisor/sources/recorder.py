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

from supervisor.core import folder
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage, StepRecord

RECORDS_PER_READ = 16384
"""At most this many slots a read, about 50 ms: a daemon that comes back after an hour must not miss its watchdog."""
_HEADER_BYTES = folder.ASIDE_OFFSET + folder.ASIDE.size
_STAGES = tuple(None if word == "unknown" else Stage(word) for word in folder.STAGES)
_ASIDES = tuple(Stage(word) if word else None for word in folder.ASIDES)


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
        yield self.header_bytes + slot * folder.RECORD.size, straight
        if count > straight:
            yield self.header_bytes, count - straight


class RecorderReader:
    """Follows one recorder file that another process writes, and may cut, remove or scribble over at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._barren = (-1, -1)

    def read(self, cursor: int, now: Moment) -> RecorderPage:
        """Read on from `cursor`; on any problem the cursor stays where it is and `problem` says what is wrong.

        Records carry monotonic nanoseconds of this boot; their wall time is reckoned from `now`.
        """
        try:
            return self._read(cursor, now)
        except (OSError, struct.error, ValueError) as error:
            self.close()
            return RecorderPage(cursor=cursor, problem=f"{self._path.name}: {_told(error)}")

    def close(self) -> None:
        """Let go of the file; the next read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, cursor: int, now: Moment) -> RecorderPage:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        header = os.pread(self._fd, _HEADER_BYTES, 0)
        ring = _identify(header)
        (head,) = folder.HEAD.unpack_from(header, folder.HEAD_OFFSET)
        page = _header_page(header, cursor, now)
        if head == cursor:
            return page
        if head < cursor:
            raise ValueError(f"holds {head} records, {cursor} were read before")
        return self._records(page, ring, head, now)

    def _records(self, page: RecorderPage, ring: _Ring, head: int, now: Moment) -> RecorderPage:
        if (page.cursor, head) == self._barren:
            return replace(page, problem=f"{self._path.name}: none of the new records is sound")
        at = max(page.cursor, head - ring.capacity)
        records: list[StepRecord] = []
        sound_end, problem = page.cursor, None
        while at < head and not records and problem is None:
            count = min(RECORDS_PER_READ, head - at)
            raw = self._slots(ring, at, count)
            if len(raw) < count * folder.RECORD.size:
                problem = f"{self._path.name}: cut short, records are missing"
            for number, fields in enumerate(folder.RECORD.iter_unpack(raw), start=at):
                if fields[0] == number + 1 and fields[10] == (fields[0] & 0xFFFFFFFF) ^ folder.CHECK_XOR:
                    records.append(_record(fields, now))
                    sound_end = number + 1
            at += count
        if not records and problem is None:
            # Not looked through again before the head moves: a scribbled header must not cost a scan at every poll.
            self._barren = (page.cursor, head)
            problem = f"{self._path.name}: none of the new records is sound"
        return replace(
            page,
            cursor=sound_end,
            records=tuple(records),
            lost=sound_end - page.cursor - len(records),
            behind=head - at if records else 0,
            problem=problem,
        )

    def _slots(self, ring: _Ring, first: int, count: int) -> bytes:
        """Return the bytes of `count` slots, whole ones only; fewer where the file ends early."""
        raw = b""
        for offset, run in ring.runs(first, count):
            piece = os.pread(self._fd, run * folder.RECORD.size, offset)
            raw += piece[: len(piece) // folder.RECORD.size * folder.RECORD.size]
            if len(piece) < run * folder.RECORD.size:
                break
        return raw


def request_save(path: Path, *, stop: bool) -> int:
    """Ask the training to save at its next step, and with `stop` to end after that; return the command's id.

    The agent answers with the same id in the header. Raises OSError where the file cannot be opened and ValueError
    where it is no recorder; it creates nothing.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        header = os.pread(fd, _HEADER_BYTES, 0)
        _identify(header)
        _, last_id = folder.COMMAND.unpack_from(header, folder.COMMAND_OFFSET)
        command_id: int = last_id % 0xFFFFFFFF + 1
        command = folder.COMMAND_SAVE_AND_STOP if stop else folder.COMMAND_SAVE
        # One aligned eight-byte write: the agent sees the old command or the new one, never half of each.
        os.pwrite(fd, folder.COMMAND.pack(command, command_id), folder.COMMAND_OFFSET)
        return command_id
    finally:
        os.close(fd)


def _identify(header: bytes) -> _Ring:
    if len(header) < _HEADER_BYTES:
        raise ValueError(f"cut short, {len(header)} bytes of header")
    magic, header_bytes, record_bytes, capacity, _rank = folder.IDENTITY.unpack_from(header)
    if magic != folder.MAGIC:
        raise ValueError("no flight recorder (wrong magic)")
    if record_bytes != folder.RECORD.size or header_bytes < _HEADER_BYTES or capacity == 0:
        raise ValueError(f"laid out differently (header {header_bytes}, record {record_bytes}, capacity {capacity})")
    return _Ring(header_bytes=header_bytes, capacity=capacity)


def _header_page(header: bytes, cursor: int, now: Moment) -> RecorderPage:
    pid, _, _ = folder.CLAIM.unpack_from(header, folder.CLAIM_OFFSET)
    stage, _, since_ns = folder.STAGE.unpack_from(header, folder.STAGE_OFFSET)
    aside, whole, aside_ns = folder.ASIDE.unpack_from(header, folder.ASIDE_OFFSET)
    beside = _ASIDES[aside] if aside < len(_ASIDES) and aside_ns > 0 else None
    answer, answer_id = folder.ANSWER.unpack_from(header, folder.ANSWER_OFFSET)
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


def _record(fields: tuple[int | float, ...], now: Moment) -> StepRecord:
    _, step, at_ns, epoch, known, loss, lr, grad_norm, data_wait_s, gpu_memory, _ = fields
    bits = int(known)
    return StepRecord(
        at=now.at_monotonic(at_ns / 1e9),
        step=int(step),
        epoch=int(epoch) if bits & folder.KNOWN_EPOCH else None,
        loss=loss if bits & folder.KNOWN_LOSS else None,
        lr=lr if bits & folder.KNOWN_LR else None,
        grad_norm=grad_norm if bits & folder.KNOWN_GRAD_NORM else None,
        gpu_memory_bytes=int(gpu_memory) if bits & folder.KNOWN_GPU_MEMORY else None,
        data_wait_s=data_wait_s if bits & folder.KNOWN_DATA_WAIT else None,
        skipped=bool(bits & folder.KNOWN_SKIPPED),
    )


def _told(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
