"""The flight recorder: an mmap ring of step records in `recorder.bin`, of fixed size, without sync or lock per step."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import threading
from time import monotonic_ns
from typing import Optional, Tuple

from . import layout as at
from .blocks import reserve_blocks
from .layout import (
    CHECK_XOR,
    COMMAND_OFFSET,
    HEAD_OFFSET,
    HEADER_BYTES,
    KNOWN_BEGINS,
    KNOWN_DATA_WAIT,
    KNOWN_EPOCH,
    KNOWN_GPU_MEMORY,
    KNOWN_GRAD_NORM,
    KNOWN_LOSS,
    KNOWN_LR,
    KNOWN_SKIPPED,
    KNOWN_TUNING,
    STEP,
)

CAPACITY_LIMIT = 1 << 24
# What every step needs is found by one look: it runs while the processor's caches hold the training.
RECORD_BYTES, ASIDE_OFFSET = at.RECORD.size, at.ASIDE_OFFSET
pack_record, pack_head, pack_aside = at.RECORD.pack_into, at.HEAD.pack_into, at.ASIDE.pack_into
ASIDE_HALF, ASIDE_SINCE_WORD = ASIDE_OFFSET // 4, ASIDE_OFFSET // 8 + 1
FLOAT_LIMIT = 3.4028234663852886e38
COUNT_LIMIT = (1 << 32) - 1
NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
"""A link in the place of the recorder would have its header written over another file of the training's user."""


def open_recorder(path: str, rank: int) -> Optional[Recorder]:
    """Return the recorder at `path` claimed for this process, or None while another living process has it.

    A file that is absent, truncated or sparse is completed first: a write into a hole of a full disk would be SIGBUS.
    Raises OSError where it cannot be made.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        capacity = _prepare_file(lock, rank)
        # Opened again, because mmap keeps a duplicate of its descriptor, which would hold the lock in forked children.
        file = os.open(path, os.O_RDWR | NO_LINK)
        try:
            memory = mmap.mmap(file, _file_size(capacity))
        finally:
            os.close(file)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return Recorder(memory, lock, capacity)


def read_claim(path: str) -> Tuple[int, int]:
    """Return (pid that last claimed the recorder at `path`, stage it left there); zeros where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | NO_LINK)
    except OSError:
        return (0, 0)
    try:
        header = os.pread(file, at.HEADER_BYTES, 0)
    finally:
        os.close(file)
    if len(header) < at.HEADER_BYTES or not header.startswith(at.MAGIC):
        return (0, 0)
    return (at.CLAIM.unpack_from(header, at.CLAIM_OFFSET)[0], at.STAGE.unpack_from(header, at.STAGE_OFFSET)[0])


def _file_size(capacity: int) -> int:
    return at.HEADER_BYTES + capacity * at.RECORD.size


def _prepare_file(file: int, rank: int) -> int:
    """Return the capacity of the recorder in `file`, after writing its identity and reserving its space if needed."""
    header = os.pread(file, at.IDENTITY.size, 0)
    capacity = at.CAPACITY_DEFAULT
    known = False
    if len(header) == at.IDENTITY.size:
        magic, header_bytes, record_bytes, found, _ = at.IDENTITY.unpack(header)
        known = (magic, header_bytes, record_bytes) == (at.MAGIC, at.HEADER_BYTES, at.RECORD.size)
        known = known and 0 < found <= CAPACITY_LIMIT
        capacity = found if known else capacity
    reserve_blocks(file, _file_size(capacity))
    if not known:
        os.fchmod(file, 0o660)  # the daemon may be another user of the group, whatever the training's umask says
        os.pwrite(file, at.IDENTITY.pack(at.MAGIC, at.HEADER_BYTES, at.RECORD.size, capacity, rank), 0)
    return capacity


class Recorder:
    """The claimed recorder of this process."""

    def __init__(self, memory: mmap.mmap, lock: int, capacity: int) -> None:
        self._memory, self._lock, self.capacity = memory, lock, capacity
        self.written: int = at.HEAD.unpack_from(memory, at.HEAD_OFFSET)[0]
        """How many steps were recorded."""
        self._stage = 0  # what an earlier process left in the header is overwritten by the first stage of this one
        self._aside, self._complete = 0, False
        self.is_elsewhere = True
        """Whether the stage is another than that of steps, or something keeps the present step from computing."""
        self.main_thread = threading.main_thread().ident
        """The thread whose waiting for a batch is the training's."""
        self.tuning = False
        """Whether a tune tries settings: the steps made carry its mark."""
        self.begins = False
        """Whether the next step may be the first of a training, of several in a process: it carries a mark."""
        whole = memoryview(memory)
        self.words, self.halves = whole.cast("Q"), whole.cast("I")
        """All of it as words of 8 and of 4 bytes."""
        self.doubles, self.floats = whole.cast("d"), whole.cast("f")
        """The same as numbers of double and of single precision."""
        self._views = (self.words, self.halves, self.doubles, self.floats, whole)
        at.ASIDE.pack_into(memory, at.ASIDE_OFFSET, 0, 0, 0)
        at.COLLECTIVE.pack_into(memory, at.COLLECTIVE_OFFSET, 0, 0)
        answer, number = at.ANSWER.unpack_from(memory, at.ANSWER_OFFSET)
        # A command that an ended process began to serve is still to be served.
        self._answered = number if answer in (at.ANSWER_SAVED, at.ANSWER_CANNOT) else None
        at.CLAIM.pack_into(memory, at.CLAIM_OFFSET, os.getpid(), 0, monotonic_ns())

    def note_collective(self, number: int, since_ns: int) -> None:
        """Write how many collectives of all ranks this one has begun."""
        at.COLLECTIVE.pack_into(self._memory, at.COLLECTIVE_OFFSET, number, since_ns)

    def record(  # noqa: PLR0913, PLR0917 - the fields of a record
        self,
        step: int,
        epoch: Optional[int] = None,
        loss: Optional[float] = None,
        lr: Optional[float] = None,
        grad_norm: Optional[float] = None,
        data_wait_s: Optional[float] = None,
        gpu_memory_bytes: Optional[int] = None,
        skipped: int = 0,
        samples: int = 0,
        tokens: int = 0,
        now_ns: Optional[int] = None,
    ) -> bool:
        """Write one step, which then is over; None is unknown (0 for samples and tokens), NaN is NaN.

        `now_ns`: when it was over, for a caller that has read the clock. Return whether `command` is to be looked at.
        """
        known = (
            (0 if epoch is None else KNOWN_EPOCH)
            | (0 if loss is None else KNOWN_LOSS)
            | (0 if lr is None else KNOWN_LR)
            | (0 if grad_norm is None else KNOWN_GRAD_NORM)
            | (0 if data_wait_s is None else KNOWN_DATA_WAIT)
            | (0 if gpu_memory_bytes is None else KNOWN_GPU_MEMORY)
            | (KNOWN_SKIPPED if skipped else 0)
            | (KNOWN_TUNING if self.tuning else 0)
            | (KNOWN_BEGINS if self.begins else 0)
        )
        self.begins = False
        head, memory, held = self.written, self._memory, gpu_memory_bytes or 0
        sequence, offset = head + 1, HEADER_BYTES + head % self.capacity * RECORD_BYTES
        check = (sequence & COUNT_LIMIT) ^ CHECK_XOR
        ids = (sequence, step, now_ns or monotonic_ns(), epoch or 0, known, loss or 0.0)
        try:
            floats = (lr or 0.0, grad_norm or 0.0, data_wait_s or 0.0)
            pack_record(memory, offset, *ids, *floats, held, samples, tokens, check)
        except (OverflowError, struct.error):  # a number that its field does not hold
            floats = (clamp_to_float32(lr), clamp_to_float32(grad_norm), clamp_to_float32(data_wait_s))
            work = (min(samples, COUNT_LIMIT), min(tokens, COUNT_LIMIT))
            pack_record(memory, offset, *ids, *floats, held, *work, check)
        self.written = sequence
        pack_head(memory, HEAD_OFFSET, sequence)
        return memory[COMMAND_OFFSET] != 0

    @property
    def stage(self) -> int:
        """The stage's number in the header."""
        return self._stage

    @stage.setter
    def stage(self, number: int) -> None:
        if number != self._stage:
            self._stage = number
            self.is_elsewhere = number != STEP or self._aside != 0
            at.STAGE.pack_into(self._memory, at.STAGE_OFFSET, number, 0, monotonic_ns())

    @property
    def aside(self) -> int:
        """What keeps the present step from computing: waiting for its batch, compiling, or 0 for nothing."""
        return self.halves[ASIDE_HALF]

    @aside.setter
    def aside(self, number: int) -> None:
        if number != self._aside:
            self.turn_aside(number, monotonic_ns())

    def turn_aside(self, number: int, now_ns: int) -> None:
        """Set `aside`, for a caller that has read the clock."""
        if number != self._aside:
            self._aside = number
            self.is_elsewhere = number != 0 or self._stage != STEP
            pack_aside(self._memory, ASIDE_OFFSET, number, self._complete, now_ns)

    def reports_all_stages(self, *, complete: bool) -> None:
        """Record whether every stage is reported, including kernel searches for a new shape of batches."""
        if complete != self._complete:
            self._complete = complete
            at.ASIDE.pack_into(self._memory, at.ASIDE_OFFSET, self.aside, complete, monotonic_ns())

    def command(self, unpack=at.COMMAND.unpack_from) -> Optional[Tuple[int, int]]:
        """Return (command, its id) while one is unanswered; read at every step boundary."""
        command, number = unpack(self._memory, 128)
        return (command, number) if command and number != self._answered else None

    def answer(self, word: int, number: int) -> None:
        """Answer the command `number`."""
        at.ANSWER.pack_into(self._memory, at.ANSWER_OFFSET, word, number)
        if word != at.ANSWER_SAVING:
            self._answered = number

    def abandon(self) -> None:
        """Close it in a forked child: the lock must end with the parent."""
        for view in self._views:
            view.release()
        self._memory.close()
        os.close(self._lock)


def clamp_to_float32(value: Optional[float]) -> float:
    """Return the nearest double that a single-precision float holds; what is not finite is held as it is."""
    return max(-FLOAT_LIMIT, min(FLOAT_LIMIT, value)) if value and math.isfinite(value) else value or 0.0
