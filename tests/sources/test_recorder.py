"""The recorder's reader against whole, wrapped, torn, cut and scribbled files."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder_by_hand import Writer

from supervisor.core import attempt_files
from supervisor.core.foreign_values import STEP_MAX
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage
from supervisor.sources.attempt.recorder import CAPACITY_MAX, RECORDS_PER_READ, RecorderReader
from tests.examples import at_least

NOW = Moment(10_000.0, 1_700_000_000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / attempt_files.RECORDER
    made.parent.mkdir()
    return made


def test_every_record_is_read_once_with_its_values(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path.parent, path.name)
    writer.write(1)
    writer.write(2, known=attempt_files.KNOWN_LOSS, loss=float("nan"))
    first = reader.read(0, NOW)
    assert [record.step for record in first.records] == [1, 2]
    item, two = first.records
    assert (item.epoch, item.loss, item.gpu_memory_bytes, item.data_wait_s) == (3, 0.5, 1 << 30, 0.25)
    assert item.at == Moment(1.0, NOW.unix_s - NOW.monotonic_s + 1.0)
    assert two.loss is not None
    assert math.isnan(two.loss)
    assert (two.epoch, two.lr, two.grad_norm, two.gpu_memory_bytes, two.data_wait_s) == (None,) * 5
    again = reader.read(first.cursor, NOW)
    assert (again.records, again.cursor, again.lost, again.problem) == ((), 2, 0, None)


def test_the_ring_wraps_around_without_a_gap(path: Path) -> None:
    writer, reader, cursor, steps = Writer(path), RecorderReader(path.parent, path.name), 0, []
    for step in range(1, 40):
        writer.write(step)
        if step % 5 == 0:
            page = reader.read(cursor, NOW)
            cursor = page.cursor
            steps += [record.step for record in page.records]
    steps += [record.step for record in reader.read(cursor, NOW).records]
    assert steps == list(range(1, 40))


def test_a_writer_that_overtakes_is_reported_in_lost_records(path: Path) -> None:
    writer = Writer(path)
    for step in range(1, 21):
        writer.write(step)
    page = RecorderReader(path.parent, path.name).read(3, NOW)
    assert [record.step for record in page.records] == list(range(13, 21))
    assert (page.cursor, page.lost) == (20, 9)


def test_a_scribbled_record_is_skipped_and_counted(path: Path) -> None:
    writer = Writer(path)
    for step in range(1, 6):
        writer.write(step)
    writer.scribble(2)
    page = RecorderReader(path.parent, path.name).read(0, NOW)
    assert [record.step for record in page.records] == [1, 2, 4, 5]
    assert (page.cursor, page.lost, page.problem) == (5, 1, None)


def test_a_scribbled_head_skips_nothing_that_is_still_to_come(path: Path) -> None:
    """Law 1: the head claims six records more than there are; they are read when they are written."""
    writer, reader = Writer(path, capacity=32), RecorderReader(path.parent, path.name)
    for step in range(1, 5):
        writer.write(step)
    os.pwrite(writer.fd, attempt_files.HEAD.pack(10), attempt_files.HEAD_OFFSET)
    page = reader.read(0, NOW)
    assert (page.cursor, page.lost) == (4, 0)
    for _ in range(2):
        page = reader.read(4, NOW)
        assert "none of the new records is valid" in (page.problem or "")
        assert page.unreadable is not None
    writer.write(5)
    page = reader.read(4, NOW)
    assert ([record.step for record in page.records], page.lost) == ([5], 0)


def test_samples_and_tokens_of_a_step_are_read_and_zeros_are_unknown(path: Path) -> None:
    writer = Writer(path)
    writer.write(1, samples=32, tokens=32 * 512)
    writer.write(2)
    text, other = reader_of(path).read(0, NOW).records
    assert (text.samples, text.tokens) == (32, 16384)
    assert (other.samples, other.tokens) == (None, None)


def test_the_recorder_of_an_attempt_launched_before_samples_were_recorded_is_read(path: Path) -> None:
    record = attempt_files.RECORD_WITHOUT_SAMPLES
    identity = attempt_files.IDENTITY.pack(attempt_files.MAGIC, attempt_files.HEADER_BYTES, record.size, 2, 0)
    ring = bytearray(identity.ljust(attempt_files.HEADER_BYTES, b"\0"))
    attempt_files.HEAD.pack_into(ring, attempt_files.HEAD_OFFSET, 3)
    for number in (2, 1):  # the third record lies where the first was
        ring += record.pack(
            number + 1, number + 1, 10**9, 0, 2, 0.5, 0, 0, 0, 0, (number + 1) ^ attempt_files.CHECK_XOR
        )
    path.write_bytes(ring)
    page = reader_of(path).read(0, NOW)
    assert [(item.step, item.loss, item.samples) for item in page.records] == [(2, 0.5, None), (3, 0.5, None)]
    assert page.lost == 1


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (None, "No such file"),
        (b"", "truncated"),
        (b"x" * 4096, "wrong magic"),
        (attempt_files.IDENTITY.pack(attempt_files.MAGIC, 4096, 65, 8, 0).ljust(4096, b"\0"), "unexpected layout"),
        (attempt_files.IDENTITY.pack(attempt_files.MAGIC, 4096, 64, 0, 0).ljust(4096, b"\0"), "unexpected layout"),
        (
            attempt_files.IDENTITY.pack(attempt_files.MAGIC, 4096, 64, 2**32 - 1, 0).ljust(4096, b"\0"),
            "unexpected layout",
        ),
        (attempt_files.IDENTITY.pack(attempt_files.MAGIC, 2**31, 64, 8, 0).ljust(4096, b"\0"), "unexpected layout"),
    ],
)
def test_what_is_no_recorder_is_a_problem_and_moves_no_cursor(path: Path, content: bytes | None, reported: str) -> None:
    if content is not None:
        path.write_bytes(content)
    page = RecorderReader(path.parent, path.name).read(7, NOW)
    assert reported in (page.problem or "")
    assert (page.cursor, page.records, page.lost) == (7, (), 0)
    assert page.unreadable is not None, "it held steps before: that none is read is no absence of steps"


@pytest.mark.parametrize("content", [None, b"", bytes(4096)])
def test_a_recorder_that_is_still_being_made_is_no_damaged_one_and_a_damaged_one_is_none_in_the_making(
    path: Path, content: bytes | None
) -> None:
    reader = RecorderReader(path.parent, path.name, keep_open=False)
    if content is not None:
        path.write_bytes(content)
    assert reader.read(0, NOW).unreadable is None, "its maker is at work"
    Writer(path)
    assert reader.read(0, NOW).problem is None
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert reader.read(0, NOW).unreadable is not None, "it was made"


@pytest.mark.parametrize("content", [b"x" * 4096, b"ROCM"])
def test_what_is_damaged_before_its_first_step_is_not_readable(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert RecorderReader(path.parent, path.name).read(0, NOW).unreadable is not None


def test_a_file_that_was_cut_short_gives_what_is_left_of_it(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path.parent, path.name)
    for step in range(1, 7):
        writer.write(step)
    os.ftruncate(writer.fd, attempt_files.HEADER_BYTES + 3 * attempt_files.RECORD.size + 10)
    page = reader.read(0, NOW)
    assert [record.step for record in page.records] == [1, 2, 3]
    assert (page.cursor, page.lost) == (3, 0)
    assert "truncated" in (page.problem or "")


def test_a_recorder_that_went_backwards_is_a_problem(path: Path) -> None:
    Writer(path).write(1)
    page = RecorderReader(path.parent, path.name).read(5, NOW)
    assert page.cursor == 5
    assert "5 were read earlier" in (page.problem or "")


def test_the_header_reports_stage_claim_and_answer(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path.parent, path.name)
    page = reader.read(0, NOW)
    assert (page.stage, page.stage_since, page.claimed_pid, page.answer) == (None, None, None, None)
    os.pwrite(writer.fd, attempt_files.STAGE.pack(4, 0, 9_000 * 10**9), attempt_files.STAGE_OFFSET)
    os.pwrite(writer.fd, attempt_files.CLAIM.pack(4711, 0, 5), attempt_files.CLAIM_OFFSET)
    os.pwrite(writer.fd, attempt_files.ANSWER.pack(attempt_files.ANSWER_SAVED, 3), attempt_files.ANSWER_OFFSET)
    page = reader.read(0, NOW)
    assert (page.stage, page.claimed_pid) == (Stage.VALIDATE, 4711)
    assert (page.answer, page.answer_id) == (attempt_files.ANSWER_SAVED, 3)
    assert page.stage_since == NOW.plus(-1000.0)
    os.pwrite(writer.fd, attempt_files.STAGE.pack(99, 0, 1), attempt_files.STAGE_OFFSET)
    assert reader.read(0, NOW).stage is None


def test_the_header_reports_what_keeps_a_step_from_computing(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path.parent, path.name)
    page = reader.read(0, NOW)
    assert (page.aside, page.aside_since, page.stages_complete) == (None, None, False)
    os.pwrite(writer.fd, attempt_files.ASIDE.pack(1, 1, 9_000 * 10**9), attempt_files.ASIDE_OFFSET)
    page = reader.read(0, NOW)
    assert (page.aside, page.aside_since, page.stages_complete) == (Stage.DATA_WAIT, NOW.plus(-1000.0), True)
    os.pwrite(writer.fd, attempt_files.ASIDE.pack(99, 7, 1), attempt_files.ASIDE_OFFSET)
    page = reader.read(0, NOW)
    assert (page.aside, page.stages_complete) == (None, False)


def test_a_skipped_step_is_known_as_one(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path.parent, path.name)
    writer.write(1)
    writer.write(2, known=63 | attempt_files.KNOWN_SKIPPED)
    assert [record.skipped for record in reader.read(0, NOW).records] == [False, True]


def test_a_step_under_a_tune_is_known_as_one(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path.parent, path.name)
    writer.write(1)
    writer.write(2, known=63 | attempt_files.KNOWN_TUNING)
    assert [record.tuning for record in reader.read(0, NOW).records] == [False, True]


def test_the_first_step_of_another_optimizer_is_known_as_one(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path.parent, path.name)
    writer.write(1)
    writer.write(2, known=63 | attempt_files.KNOWN_BEGINS)
    assert [record.begins for record in reader.read(0, NOW).records] == [False, True]


def test_a_reader_next_to_a_running_writer_misses_nothing_it_does_not_own_up_to(path: Path) -> None:
    """A writer at full speed through a small ring: read and lost records add up, and no record is invented."""
    writer, reader, total = Writer(path, capacity=64), RecorderReader(path.parent, path.name), 20_000

    def train() -> None:
        for step in range(1, total + 1):
            writer.write(step)

    thread = threading.Thread(target=train)
    thread.start()
    cursor, steps, lost = 0, [], 0
    while cursor < total:
        page = reader.read(cursor, NOW)
        cursor, lost = page.cursor, lost + page.lost
        steps += [record.step for record in page.records]
    thread.join()
    assert steps == sorted(set(steps))
    assert len(steps) + lost == total
    assert steps[-1] == total


@settings(max_examples=at_least(150))
@given(damage=st.lists(st.tuples(st.integers(0, 4096 + 8 * 64), st.binary(min_size=1, max_size=24)), max_size=6),
       cut=st.integers(0, 4096 + 8 * 64), cursor=st.integers(0, 2**64))  # fmt: skip
def test_no_damage_makes_it_raise_or_go_backwards(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]], cut: int, cursor: int
) -> None:
    path = tmp_path_factory.mktemp("ring") / "recorder.bin"
    writer = Writer(path)
    for step in range(1, 12):
        writer.write(step)
    for offset, junk in damage:
        os.pwrite(writer.fd, junk, offset)
    os.ftruncate(writer.fd, cut)
    page = RecorderReader(path.parent, path.name).read(cursor, NOW)
    os.close(writer.fd)
    assert page.cursor >= cursor
    assert len(page.records) + page.lost == page.cursor - cursor


def reader_of(path: Path) -> RecorderReader:
    return RecorderReader(path.parents[1])


def test_a_claim_of_more_records_than_there_can_be_is_refused(path: Path) -> None:
    writer = Writer(path)
    os.pwrite(writer.fd, attempt_files.HEAD.pack(2**64 - 1), attempt_files.HEAD_OFFSET)
    page = reader_of(path).read(7, NOW)
    assert (page.cursor, page.records, page.lost, page.behind) == (7, (), 0, 0)
    assert "more than a training can write" in (page.problem or "")


@pytest.mark.alone(reason="compares processor time with a limit")
def test_a_sparse_recorder_that_claims_everything_costs_one_bounded_piece_a_read(path: Path) -> None:
    """Each read looks through so many slots; what was looked through in vain is not looked through again."""
    writer = Writer(path, capacity=CAPACITY_MAX)
    os.pwrite(writer.fd, attempt_files.HEAD.pack(CAPACITY_MAX), attempt_files.HEAD_OFFSET)
    reader = reader_of(path)
    for read in range(1, CAPACITY_MAX // RECORDS_PER_READ):
        page = reader.read(0, NOW)
        assert (page.cursor, page.records, page.problem) == (0, (), None)
        assert page.behind == CAPACITY_MAX - read * RECORDS_PER_READ
    assert "none of the new records is valid" in (reader.read(0, NOW).problem or "")
    began = time.process_time()
    reader.read(0, NOW)
    assert time.process_time() - began < 0.05
    writer.head = 0
    writer.write(1)
    page = reader.read(0, NOW)
    assert [record.step for record in page.records] == [1]


@pytest.mark.parametrize("step", [-1, 2**63 - 1, -(2**63), STEP_MAX + 1])
def test_a_step_that_no_training_counts_to_is_none(path: Path, step: int) -> None:
    writer = Writer(path)
    for item in (1, step, 3):
        writer.write(item, at_ns=10**9)
    page = reader_of(path).read(0, NOW)
    assert ([record.step for record in page.records], page.lost) == ([1, 3], 1)


def test_numbers_of_a_record_that_cannot_be_are_unknown(path: Path) -> None:
    writer = Writer(path)
    writer.write(1, epoch=-5, data_wait_s=float("nan"), gpu_memory=-1)
    writer.write(2, data_wait_s=float("inf"), gpu_memory=2**62)
    writer.write(3, data_wait_s=-1.0)
    known = [
        (record.epoch, record.data_wait_s, record.gpu_memory_bytes) for record in reader_of(path).read(0, NOW).records
    ]
    assert known == [(None, None, None), (3, None, None), (3, None, 1 << 30)]


def test_a_record_dated_ahead_counts_as_of_the_read_and_is_no_lost_step(path: Path) -> None:
    """As of damage, of a hostile training, and of the last steps before a reboot, after which the clock began again."""
    writer = Writer(path)
    for step, at_ns in enumerate((9_999 * 10**9, 10_050 * 10**9, 2**63 - 1, 20 * 86_400 * 10**9, 10_000 * 10**9)):
        writer.write(step, at_ns=at_ns)
    page = reader_of(path).read(0, NOW)
    assert [record.step for record in page.records] == [0, 1, 2, 3, 4]
    assert [record.at.seconds_since(NOW) for record in page.records] == [-1.0, 50.0, 0.0, 0.0, 0.0]
    assert [record.at.unix_s - NOW.unix_s for record in page.records] == [-1.0, 50.0, 0.0, 0.0, 0.0]


def test_a_stage_dated_ahead_began_at_the_read(path: Path) -> None:
    """Or the time without a step would count from then on: no stall would be found before."""
    writer = Writer(path)
    os.pwrite(writer.fd, attempt_files.STAGE.pack(4, 0, 2**63 - 1), attempt_files.STAGE_OFFSET)
    os.pwrite(writer.fd, attempt_files.ASIDE.pack(1, 1, 2**63 - 1), attempt_files.ASIDE_OFFSET)
    page = reader_of(path).read(0, NOW)
    assert (page.stage_since, page.aside_since) == (NOW, NOW)


def test_of_another_time_records_are_bounded_by_the_end_that_is_known(path: Path) -> None:
    writer = Writer(path)
    writer.write(1, at_ns=11_000 * 10**9)
    writer.write(2, at_ns=2**63 - 1)
    page = reader_of(path).read(0, NOW, latest=NOW.plus(2_000.0))
    assert [record.at.seconds_since(NOW) for record in page.records] == [1_000.0, 2_000.0]


def test_a_reader_that_is_not_kept_open_holds_no_descriptor(path: Path) -> None:
    def times_open() -> int:
        held = []
        for item in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # closed since it was listed
                held.append(item.readlink())
        return held.count(path)

    Writer(path).write(1)
    before = times_open()
    readers = [RecorderReader(path.parents[1], keep_open=False) for _ in range(50)]
    assert all(len(reader.read(0, NOW).records) == 1 for reader in readers)
    assert times_open() <= before
