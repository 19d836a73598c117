"""A process that waits for the server of a file system, whom the kernel shows as asleep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reader_by_hand import read_until, reader_of

from supervisor.core.readings import ProcessReading
from supervisor.sources.processes import TreeWatch
from tests.rigs.hanging_fs import HangingFs, hanging

pytestmark = [pytest.mark.mounts, pytest.mark.slow]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingFs]:
    with hanging(tmp_path / "at", tmp_path / "behind") as served:
        yield served


def is_at_rest(reading: ProcessReading) -> bool:
    """Whether the tree is known to take no processor time."""
    return reading.switches_per_s == 0.0


def test_who_waits_for_a_file_systems_server_is_known_until_it_answers(disk: HangingFs) -> None:
    (disk.at / "file").write_text("x")
    with reader_of(disk.at / "file", at_end=disk.go_on) as reader:
        watch = TreeWatch(reader.pid)
        disk.hang()
        reader.begin()
        reading, at_s = read_until(
            watch, 0.0, lambda reading: is_at_rest(reading) and reading.served_pids, "to wait for a server"
        )
        assert reading.served_pids == (reader.pid,)
        assert reading.uninterruptible_pids == ()
        disk.go_on()
        reader.wait_until_read()
        reading, _ = read_until(watch, at_s, is_at_rest, "at rest")
        assert reading.served_pids == ()
