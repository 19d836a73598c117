"""The record of a job's checkpoints is read within a limit, whatever its disk does."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

import pytest
from clocks_by_hand import HandClock, until

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.daemon.checkpoints.recorded import ReadInTime
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.threads import Threads

SAVED = Checkpoint(path="/runs/last.pt", fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1))


class Disk:
    """Answers at once, or once it is let go on."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.reads = 0

    def read(self, job: str, files: Collection[str] | None = None, /) -> tuple[Checkpoint, ...] | None:
        self.answers.wait(60)
        self.reads += 1
        return (SAVED,)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.answers.set()


def test_a_disk_that_answers_is_read(disk: Disk) -> None:
    read = ReadInTime(disk.read, Threads(HandClock(), Inbox().put))
    assert read("night") == (SAVED,)


def test_a_disk_that_does_not_answer_is_a_record_that_cannot_be_read_and_holds_one_thread(disk: Disk) -> None:
    read = ReadInTime(disk.read, Threads(HandClock(), Inbox().put), limit_s=0.01)
    disk.answers.clear()
    before = threading.active_count()
    for _ in range(20):
        assert read("night") is None
    assert threading.active_count() <= before + 1
    disk.answers.set()
    until(lambda: read("night") == (SAVED,), "it to answer again")
    assert disk.reads <= 21 + 1, "what waited behind the read that hung was not asked any more"
