"""The machine, against what its own files say."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supervisor.core.moments import Moment
from supervisor.sources.host import HostWatch, read_disk, read_host

NOW = Moment(100.0, 1_700_000_000.0)


def test_memory_is_what_the_kernel_says() -> None:
    reading = read_host(NOW, ())
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert reading.memory_total_bytes == int(meminfo["MemTotal"].split()[0]) * 1024
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    assert reading.memory_available_bytes is not None
    assert abs(reading.memory_available_bytes - available) < 512 << 20
    assert reading.cpu_percent is None
    assert reading.load_1m is not None


def test_a_disk_is_what_an_ordinary_user_can_write(tmp_path: Path) -> None:
    stat = os.statvfs(tmp_path)
    disk = read_disk(tmp_path)
    assert disk is not None
    assert disk.total_bytes == stat.f_blocks * stat.f_frsize
    assert abs(disk.free_bytes - stat.f_bavail * stat.f_frsize) < 1 << 30
    assert read_disk(tmp_path / "absent") is None
    assert [seen.path for seen in read_host(NOW, (tmp_path / "absent", tmp_path)).disks] == [str(tmp_path)]


def test_processor_use_is_known_from_the_second_reading_on() -> None:
    watch = HostWatch(())
    assert watch.read(NOW).cpu_percent is None
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        pass
    busy = watch.read(NOW.plus(0.3)).cpu_percent
    assert busy is not None
    assert 50 / (os.cpu_count() or 1) < busy <= 100
