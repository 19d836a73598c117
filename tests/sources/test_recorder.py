"""The recorder's reader against whole, wrapped, torn, cut and scribbled files."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder_by_hand import Writer

from supervisor.core import folder
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage
from supervisor.sources.recorder import RecorderReader, request_save

NOW = Moment(10_000.0, 1_700_000_000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / folder.RECORDER


def test_every_record_is_read_once_with_its_values(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path)
    writer.write(1)
    writer.write(2, known=folder.KNOWN_LOSS, loss=float("nan"))
    first = reader.read(0, NOW)
    assert [record.step for record in first.records] == [1, 2]
    one, two = first.records
    assert (one.epoch, one.loss, one.gpu_memory_bytes, one.data_wait_s) == (3, 0.5, 1 << 30, 0.25)
    assert one.at == Moment(1.0, NOW.unix_s - NOW.monotonic_s + 1.0)
    assert two.loss is not None
    assert math.isnan(two.loss)
    assert (two.epoch, two.lr, two.grad_norm, two.gpu_memory_bytes, two.data_wait_s) == (None,) * 5
    again = reader.read(first.cursor, NOW)
    assert (again.records, again.cursor, again.lost, again.problem) == ((), 2, 0, None)


def test_the_ring_wraps_around_without_a_gap(path: Path) -> None:
    writer, reader, cursor, steps = Writer(path), RecorderReader(path), 0, []
    for step in range(1, 40):
        writer.write(step)
        if step % 5 == 0:
            page = reader.read(cursor, NOW)
            cursor = page.cursor
            steps += [record.step for record in page.records]
    steps += [record.step for record in reader.read(cursor, NOW).records]
    assert steps == list(range(1, 40))


def test_a_writer_that_overtakes_is_told_in_lost_records(path: Path) -> None:
    writer = Writer(path)
    for step in range(1, 21):
        writer.write(step)
    page = RecorderReader(path).read(3, NOW)
    assert [record.step for record in page.records] == list(range(13, 21))
    assert (page.cursor, page.lost) == (20, 9)


def test_a_scribbled_record_is_skipped_and_counted(path: Path) -> None:
    writer = Writer(path)
    for step in range(1, 6):
        writer.write(step)
    writer.scribble(2)
    page = RecorderReader(path).read(0, NOW)
    assert [record.step for record in page.records] == [1, 2, 4, 5]
    assert (page.cursor, page.lost, page.problem) == (5, 1, None)


def test_a_scribbled_head_skips_nothing_that_is_still_to_come(path: Path) -> None:
    """Law 1: the head claims six records more than there are; they are read when they are written."""
    writer, reader = Writer(path, capacity=32), RecorderReader(path)
    for step in range(1, 5):
        writer.write(step)
    os.pwrite(writer.fd, folder.HEAD.pack(10), folder.HEAD_OFFSET)
    page = reader.read(0, NOW)
    assert (page.cursor, page.lost) == (4, 0)
    assert "none of the new records is sound" in (reader.read(4, NOW).problem or "")
    writer.write(5)
    page = reader.read(4, NOW)
    assert ([record.step for record in page.records], page.lost) == ([5], 0)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"", "cut short"),
        (b"x" * 4096, "wrong magic"),
        (folder.IDENTITY.pack(folder.MAGIC, 4096, 65, 8, 0).ljust(4096, b"\0"), "laid out differently"),
        (folder.IDENTITY.pack(folder.MAGIC, 4096, 64, 0, 0).ljust(4096, b"\0"), "laid out differently"),
    ],
)
def test_what_is_no_recorder_is_a_problem_and_moves_no_cursor(path: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        path.write_bytes(content)
    page = RecorderReader(path).read(7, NOW)
    assert told in (page.problem or "")
    assert (page.cursor, page.records, page.lost) == (7, (), 0)


def test_a_file_that_was_cut_short_gives_what_is_left_of_it(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path)
    for step in range(1, 7):
        writer.write(step)
    os.ftruncate(writer.fd, folder.HEADER_BYTES + 3 * folder.RECORD.size + 10)
    page = reader.read(0, NOW)
    assert [record.step for record in page.records] == [1, 2, 3]
    assert (page.cursor, page.lost) == (3, 0)
    assert "cut short" in (page.problem or "")


def test_a_recorder_that_went_backwards_is_a_problem(path: Path) -> None:
    Writer(path).write(1)
    page = RecorderReader(path).read(5, NOW)
    assert page.cursor == 5
    assert "5 were read before" in (page.problem or "")


def test_the_header_tells_stage_claim_and_answer(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path)
    page = reader.read(0, NOW)
    assert (page.stage, page.stage_since, page.claimed_pid, page.answer) == (None, None, None, None)
    os.pwrite(writer.fd, folder.STAGE.pack(4, 0, 9_000 * 10**9), folder.STAGE_OFFSET)
    os.pwrite(writer.fd, folder.CLAIM.pack(4711, 0, 5), folder.CLAIM_OFFSET)
    os.pwrite(writer.fd, folder.ANSWER.pack(folder.ANSWER_SAVED, 3), folder.ANSWER_OFFSET)
    page = reader.read(0, NOW)
    assert (page.stage, page.claimed_pid) == (Stage.VALIDATE, 4711)
    assert (page.answer, page.answer_id) == (folder.ANSWER_SAVED, 3)
    assert page.stage_since == NOW.plus(-1000.0)
    os.pwrite(writer.fd, folder.STAGE.pack(99, 0, 1), folder.STAGE_OFFSET)
    assert reader.read(0, NOW).stage is None


def test_the_header_tells_what_keeps_a_step_from_computing(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path)
    page = reader.read(0, NOW)
    assert (page.aside, page.aside_since, page.whole) == (None, None, False)
    os.pwrite(writer.fd, folder.ASIDE.pack(1, 1, 9_000 * 10**9), folder.ASIDE_OFFSET)
    page = reader.read(0, NOW)
    assert (page.aside, page.aside_since, page.whole) == (Stage.DATA_WAIT, NOW.plus(-1000.0), True)
    os.pwrite(writer.fd, folder.ASIDE.pack(99, 7, 1), folder.ASIDE_OFFSET)
    page = reader.read(0, NOW)
    assert (page.aside, page.whole) == (None, False)


def test_a_skipped_step_is_known_as_one(path: Path) -> None:
    writer, reader = Writer(path), RecorderReader(path)
    writer.write(1)
    writer.write(2, known=63 | folder.KNOWN_SKIPPED)
    assert [one.skipped for one in reader.read(0, NOW).records] == [False, True]


def test_each_request_to_save_has_an_id_of_its_own(path: Path) -> None:
    writer = Writer(path)
    first, second = request_save(path, stop=False), request_save(path, stop=True)
    assert first != second
    command = folder.COMMAND.unpack(os.pread(writer.fd, folder.COMMAND.size, folder.COMMAND_OFFSET))
    assert command == (folder.COMMAND_SAVE_AND_STOP, second)
    os.pwrite(writer.fd, folder.COMMAND.pack(0, 0xFFFFFFFF), folder.COMMAND_OFFSET)
    assert request_save(path, stop=False) == 1


def test_a_request_to_save_creates_no_file(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        request_save(path, stop=True)
    path.write_bytes(b"something else of the user's" * 200)
    with pytest.raises(ValueError, match="wrong magic"):
        request_save(path, stop=True)
    assert b"ROCM" not in path.read_bytes()


def test_a_reader_beside_a_running_writer_misses_nothing_it_does_not_own_up_to(path: Path) -> None:
    """A writer at full speed through a small ring: read and lost records add up, and no record is invented."""
    writer, reader, total = Writer(path, capacity=64), RecorderReader(path), 20_000

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


@settings(max_examples=150, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 4096 + 8 * 64), st.binary(min_size=1, max_size=24)), max_size=6),
       cut=st.integers(0, 4096 + 8 * 64), cursor=st.integers(0, 2**64))  # fmt: skip
def test_no_damage_makes_it_raise_or_go_backwards(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]], cut: int, cursor: int
) -> None:
    path = tmp_path_factory.mktemp("ring") / folder.RECORDER
    writer = Writer(path)
    for step in range(1, 12):
        writer.write(step)
    for offset, junk in damage:
        os.pwrite(writer.fd, junk, offset)
    os.ftruncate(writer.fd, cut)
    page = RecorderReader(path).read(cursor, NOW)
    os.close(writer.fd)
    assert page.cursor >= cursor
    assert len(page.records) + page.lost == page.cursor - cursor
