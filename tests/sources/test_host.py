"""The machine, against what its own files say."""

from __future__ import annotations

import os
import time
from pathlib import Path

from supervisor.core.moments import Moment
from supervisor.sources.host import HostWatch, read_disk, read_host, stall_percent

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
    assert disk.total_inodes == (stat.f_files or None)
    assert (disk.free_inodes is None) == (disk.total_inodes is None)
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


def test_pressure_is_the_share_in_which_some_process_waited(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/memory").write_text(
        "some avg10=12.34 avg60=1.00 avg300=0.10 total=5\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=1\n"
    )
    assert stall_percent("memory", tmp_path) == 12.34
    assert stall_percent("io", tmp_path) is None


def test_the_processor_s_hottest_sensor_counts_and_no_other_chip_s(tmp_path: Path) -> None:
    for number, (name, values) in enumerate((("k10temp", (61000, 64500)), ("amdgpu", (99000,)), ("nvme", (88000,)))):
        folder = tmp_path / f"class/hwmon/hwmon{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        for place, value in enumerate(values, start=1):
            (folder / f"temp{place}_input").write_text(f"{value}\n")
    assert HostWatch([], tmp_path).read(NOW).cpu_c == 64.5
    assert HostWatch([], tmp_path / "none").read(NOW).cpu_c is None
