"""A process that waits for the server of a file system, whom the kernel shows as asleep."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading
from supervisor.sources.processes import TreeWatch
from tests.rigs.hanging_fs import HangingFs, hanging

pytestmark = [pytest.mark.mounts, pytest.mark.slow]

READ_LIMIT = 2000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingFs]:
    with hanging(tmp_path / "at", tmp_path / "behind") as served:
        yield served


def read_until_quiet(watch: TreeWatch, at_s: float) -> tuple[ProcessReading, float]:
    """Return the first reading from which the tree is known to take no processor time, and its time."""
    for _ in range(READ_LIMIT):
        reading, at_s = watch.read(Moment(at_s, at_s)), at_s + 1.0
        if reading.switches_per_s == 0.0:
            return reading, at_s
    raise AssertionError("it never came to rest")


def test_who_waits_for_a_file_systems_server_is_known_until_it_answers(disk: HangingFs) -> None:
    (disk.at / "file").write_text("x")
    code = "import sys; sys.stdin.readline(); open(sys.argv[1]).read(); print(1, flush=True); sys.stdin.readline()"
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(disk.at / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    with reader:
        watch = TreeWatch(reader.pid)
        disk.hang()
        print(file=reader.stdin, flush=True)
        at_s = 0.0
        for _ in range(READ_LIMIT):
            reading, at_s = read_until_quiet(watch, at_s)
            if reading.served_pids:
                break
        assert reading.served_pids == (reader.pid,)
        assert reading.uninterruptible_pids == ()
        disk.go_on()
        assert reader.stdout.readline() == "1\n"
        reading, _ = read_until_quiet(watch, at_s)
        assert reading.served_pids == ()
        print(file=reader.stdin, flush=True)
