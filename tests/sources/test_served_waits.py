"""A process that waits for the server of a file system, whom the kernel shows as asleep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import pytest
from reader_by_hand import reader_of

from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading
from supervisor.sources.processes import TreeWatch
from tests.rigs.hanging_fs import HangingFs, hanging

pytestmark = [pytest.mark.mounts, pytest.mark.slow]

READ_LIMIT_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingFs]:
    with hanging(tmp_path / "at", tmp_path / "behind") as served:
        yield served


def read_until_quiet(watch: TreeWatch, at_s: float) -> tuple[ProcessReading, float]:
    """Return the first reading from which the tree is known to take no processor time, and its time."""
    until_s = perf_counter() + READ_LIMIT_S
    while perf_counter() < until_s:
        reading, at_s = watch.read(Moment(at_s, at_s)), at_s + 1.0
        if reading.switches_per_s == 0.0:
            return reading, at_s
    raise AssertionError("it never came to rest")


def test_who_waits_for_a_file_systems_server_is_known_until_it_answers(disk: HangingFs) -> None:
    (disk.at / "file").write_text("x")
    with reader_of(disk.at / "file") as reader:
        watch = TreeWatch(reader.pid)
        disk.hang()
        reader.begin()
        at_s, until_s = 0.0, perf_counter() + READ_LIMIT_S
        while perf_counter() < until_s:
            reading, at_s = read_until_quiet(watch, at_s)
            if reading.served_pids:
                break
        assert reading.served_pids == (reader.pid,)
        assert reading.uninterruptible_pids == ()
        disk.go_on()
        reader.wait_until_read()
        reading, _ = read_until_quiet(watch, at_s)
        assert reading.served_pids == ()
