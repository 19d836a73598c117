"""Cards in sysfs: the simulated one in every mood, and the trees of real cards."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
from amdgpu_tree import AmdgpuTree, Card, mi50, phoenix, rx7900xt
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.amdgpu_sysfs import REDISCOVER_S, SLOW_S, AmdgpuSysfs
from supervisor.sources.gpu.source import SourceSilentError

NOW = Moment(100.0, 1_700_000_000.0)
IDENTITY = {"at", "gpu", "source", "name", "unique_id", "gfx_version", "runtime_status", "processes"}


def read_one(tree: AmdgpuTree) -> GpuReading:
    (reading,) = AmdgpuSysfs(tree.sys_root).read(NOW)
    return reading


def measured(reading: GpuReading) -> dict[str, object]:
    values = {field.name: getattr(reading, field.name) for field in fields(reading) if field.name not in IDENTITY}
    return {name: value for name, value in values.items() if value is not None}


def test_a_gpu_at_work_is_read_completely(tree: AmdgpuTree) -> None:
    assert read_one(tree) == GpuReading(
        at=NOW,
        gpu="0000:0a:00.0",
        source="sysfs",
        name="navi10",
        unique_id="3c1f5a7788e0d412",
        gfx_version="gfx1010",
        gpu_busy_percent=97,
        memory_busy_percent=38,
        vram_used_bytes=4812345344,
        vram_total_bytes=6425673728,
        gtt_used_bytes=52428800,
        gtt_total_bytes=16777216000,
        edge_c=63,
        junction_c=79,
        memory_c=74,
        power_w=131,
        power_cap_w=160,
        fan_rpm=1743,
        sclk_hz=1_750_000_000,
        mclk_hz=875_000_000,
        runtime_status="active",
        unified_memory=False,
        performance_level="auto",
        pcie_lanes=16,
        pcie_gts=16.0,
        pcie_replays=0,
        processes=(),
    )


def test_a_sleeping_gpu_is_named_and_nothing_that_could_wake_it_is_read(tree: AmdgpuTree) -> None:
    tree.set("power/runtime_status", "suspended")
    files = [tree.device() / "gpu_busy_percent", *(tree.device() / "hwmon/hwmon3").glob("*_input")]
    for path in files:
        # Reading updates an access time that lies before the change time, unless the file system is mounted noatime.
        os.utime(path, ns=(1, path.stat().st_mtime_ns))
    reading = read_one(tree)
    assert (reading.gpu, reading.runtime_status, reading.gfx_version) == ("0000:0a:00.0", "suspended", "gfx1010")
    assert measured(reading) == {}
    assert {path.stat().st_atime_ns for path in files} == {1}
    tree.set("power/runtime_status", "active")
    read_one(tree)
    if {path.stat().st_atime_ns for path in files} == {1}:
        pytest.skip("this file system keeps no access times, so nothing was proven")


def test_an_mi50_s_errors_are_summed_over_its_blocks(tmp_path: Path) -> None:
    reading = read_one(AmdgpuTree.build(tmp_path / "tree", mi50()))
    assert (reading.gfx_version, reading.ecc_correctable, reading.ecc_uncorrectable) == ("gfx906", 15, 1)
    assert (reading.pcie_replays, reading.fan_rpm, reading.throttled_by) == (7, None, None)


def test_a_cold_rdna3_gpu_does_not_throttle_and_a_hot_one_does(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree", rx7900xt("0000:03:00.0", 0), rx7900xt("0000:83:00.0", 1, hotspot_c=108))
    cold, hot = AmdgpuSysfs(tree.sys_root).read(NOW)
    assert (cold.throttled_by, hot.throttled_by) == ((), ("thermal_hotspot",))
    assert (cold.gpu, hot.gpu, cold.unique_id) == ("0000:03:00.0", "0000:83:00.0", "d4e6a1b300000000")


def test_an_apu_s_memory_is_its_carve_out_and_gtt_together(tmp_path: Path) -> None:
    reading = read_one(AmdgpuTree.build(tmp_path / "tree", phoenix()))
    assert reading.unified_memory
    assert reading.vram_used_bytes is not None
    assert reading.memory_used_bytes == 514580480 + 3946811392
    assert reading.memory_total_bytes == 536870912 + 16441004032
    assert (reading.edge_c, reading.junction_c, reading.unique_id) == (48, None, None)
    assert reading.mclk_hz == 875_000_000, "the starred level stands in for a sensor that an APU lacks"


def test_gpus_that_change_their_numbers_keep_their_names(tmp_path: Path) -> None:
    before = AmdgpuTree.build(tmp_path / "one", rx7900xt("0000:03:00.0", 0), rx7900xt("0000:83:00.0", 1))
    after = AmdgpuTree.build(
        tmp_path / "two",
        replace(rx7900xt("0000:83:00.0", 1), index=0),
        replace(rx7900xt("0000:03:00.0", 0), index=1),
    )
    names = [{item.gpu: item.unique_id for item in AmdgpuSysfs(tree.sys_root).read(NOW)} for tree in (before, after)]
    assert names[0] == names[1]


def test_a_split_gpu_is_one_gpu_with_its_partitions_named(tmp_path: Path) -> None:
    split = {"current_compute_partition": "CPX", "current_memory_partition": "NPS4"}
    tree = AmdgpuTree.build(tmp_path / "tree", Card(device=split, gfx_target_version=90402))
    for node in (2, 3):
        shutil.copytree(
            tree.sys_root / "class/kfd/kfd/topology/nodes/1", tree.sys_root / f"class/kfd/kfd/topology/nodes/{node}"
        )
        (tree.sys_root / f"class/kfd/kfd/topology/nodes/{node}/gpu_id").write_text(f"{50000 + node}\n")
    folder = tree.sys_root / "class/kfd/kfd/proc/1"
    folder.mkdir()
    for part, size in (("41001", 100), ("50002", 20), ("50003", 3)):
        (folder / f"vram_{part}").write_text(f"{size}\n")
    reading = read_one(tree)
    assert (reading.gpu, reading.compute_partition, reading.memory_partition) == ("0000:0a:00.0", "CPX", "NPS4")
    assert [process.vram_bytes for process in reading.processes or ()] == [123]


def test_a_second_reading_sees_what_changed_and_what_went(tree: AmdgpuTree) -> None:
    source = AmdgpuSysfs(tree.sys_root)
    source.read(NOW)
    tree.set("gpu_busy_percent", 12)
    tree.set("pcie_replay_count", 3)
    (soon,), (later,) = source.read(NOW.plus(1)), source.read(NOW.plus(SLOW_S))
    assert (soon.gpu_busy_percent, soon.pcie_replays, later.pcie_replays) == (12, 0, 3)
    assert later.at == NOW.plus(SLOW_S)
    source.close()


def test_a_silent_sensor_is_unknown_and_not_zero(tree: AmdgpuTree) -> None:
    tree.set("gpu_busy_percent", "")
    tree.set("mem_busy_percent", 65535)
    tree.set("hwmon/temp2_input", 0)
    tree.set("hwmon/temp3_input", 511000)
    tree.remove("hwmon/fan1_input")
    reading = read_one(tree)
    assert (reading.gpu_busy_percent, reading.memory_busy_percent, reading.junction_c, reading.memory_c) == (None,) * 4
    assert (reading.fan_rpm, reading.edge_c) == (None, 63)


def test_a_fan_that_stands_still_and_an_idle_gpu_are_zero(tree: AmdgpuTree) -> None:
    tree.set("hwmon/fan1_input", 0)
    tree.set("gpu_busy_percent", 0)
    reading = read_one(tree)
    assert (reading.fan_rpm, reading.gpu_busy_percent) == (0, 0)


def test_a_file_that_refuses_costs_its_own_value_only(tree: AmdgpuTree) -> None:
    """In a reset amdgpu answers EPERM; a folder in the file's place refuses to be read by anybody, with EISDIR."""
    tree.remove("gpu_busy_percent")
    (tree.device() / "gpu_busy_percent").mkdir()
    reading = read_one(tree)
    assert (reading.gpu_busy_percent, reading.junction_c) == (None, 79)


def test_sensors_are_found_by_label_whatever_their_number(tmp_path: Path) -> None:
    swapped = {"temp1_label": "mem", "temp3_label": "edge", "freq1_label": "mclk", "freq2_label": "sclk"}
    tree = AmdgpuTree.build(tmp_path / "tree", Card(hwmon=swapped))
    reading = read_one(tree)
    assert (reading.memory_c, reading.junction_c, reading.edge_c) == (63, 79, 74)
    assert (reading.mclk_hz, reading.sclk_hz) == (1_750_000_000, 875_000_000)


def test_power_is_the_average_or_else_the_input(tree: AmdgpuTree) -> None:
    tree.set("hwmon/power1_input", 99_000_000)
    assert read_one(tree).power_w == 131
    tree.remove("hwmon/power1_average")
    assert read_one(tree).power_w == 99


def test_gpus_are_named_by_address_and_other_drivers_are_left_alone(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(
        tmp_path / "tree",
        Card(address="0000:03:00.0", index=0, driver="i915"),
        Card(address="000D:0B:00.0", index=1, gfx_target_version=90010),
        Card(address="0000:0a:00.0", index=2),
    )
    readings = AmdgpuSysfs(tree.sys_root).read(NOW)
    assert [(reading.gpu, reading.gfx_version) for reading in readings] == [
        ("000d:0b:00.0", "gfx90a"),
        ("0000:0a:00.0", "gfx1010"),
    ]


def test_a_gpu_that_leaves_and_one_that_comes_are_noticed(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree")
    source = AmdgpuSysfs(tree.sys_root)
    assert len(source.read(NOW)) == 1
    shutil.rmtree(tree.device())
    assert source.read(NOW.plus(1)) == ()
    with pytest.raises(SourceSilentError, match="no GPU"):
        source.read(NOW.plus(2))
    shutil.rmtree(tree.folder)
    AmdgpuTree.build(tree.folder)
    assert len(source.read(NOW.plus(2 + REDISCOVER_S))) == 1


def test_a_machine_without_gpus_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceSilentError, match="no GPU of the amdgpu driver"):
        AmdgpuSysfs(tmp_path).read(NOW)


def _whole(text: object) -> int | None:
    return None if text is None else int(str(text))


def test_the_trees_of_real_gpus_are_read_as_their_manifest_says(corpus: Path, tmp_path: Path) -> None:
    manifest = json.loads((corpus / "sysfs/manifest.json").read_text())
    seen = 0
    for entry in manifest:
        if entry["uevent"]["DRIVER"] != "amdgpu":
            continue
        root = tmp_path / entry["gpu"]
        source = corpus / "sysfs" / entry["dir"]
        (root / "class/drm").mkdir(parents=True)
        (root / "class/drm" / source.name).symlink_to(source)
        if (source.parent / "kfd").is_dir():
            (root / "class/kfd").mkdir()
            (root / "class/kfd/kfd").symlink_to(source.parent / "kfd")
        (reading,) = AmdgpuSysfs(root).read(NOW)
        if reading.runtime_status == "suspended":
            continue
        seen += 1
        assert reading.gpu == entry["uevent"]["PCI_SLOT_NAME"].lower()
        assert reading.gpu_busy_percent == _whole(entry["gpu_busy_percent"])
        assert reading.memory_busy_percent == _whole(entry["mem_busy_percent"])
        assert reading.vram_used_bytes == _whole(entry["mem_info_vram_used"])
        assert reading.vram_total_bytes == _whole(entry["mem_info_vram_total"])
        assert reading.gtt_used_bytes == _whole(entry["mem_info_gtt_used"])
        for value, label in ((reading.edge_c, "edge"), (reading.junction_c, "junction"), (reading.memory_c, "mem")):
            # The RX 5500 XT has no sensor on its memory: the file reads 0.
            assert value == ((entry.get(f"temp_{label}_millideg") or 0) / 1000 or None), entry["gpu"]
        power = entry.get("power1_average") or entry.get("power1_input")
        assert reading.power_w == (None if power is None else int(power) / 1e6)
        assert reading.fan_rpm == _whole(entry.get("fan1_input"))
        assert reading.sclk_hz == _whole(entry.get("freq1_input"))
        # An APU has no sensor for its memory's clock; the starred level of pp_dpm_mclk is its clock.
        assert entry.get("freq2_input") is None or reading.mclk_hz == _whole(entry["freq2_input"])
        assert reading.unique_id == (entry["unique_id"] and entry["unique_id"].zfill(16))
        assert reading.gtt_total_bytes == _whole(entry["mem_info_gtt_total"])
        cap = _whole(entry.get("power1_cap"))
        assert reading.power_cap_w == (None if cap is None else cap / 1e6)
        assert f"{reading.pcie_gts} GT/s PCIe" == entry["current_link_speed"]
        assert reading.pcie_lanes == _whole(entry["current_link_width"])
        assert reading.performance_level == entry["power_dpm_force_performance_level"]
        assert reading.unified_memory is (entry["gpu"] in ("vangogh", "strixpoint"))
        if entry["gpu"] in ("vangogh", "strixpoint"):
            assert reading.gfx_version == {"vangogh": "gfx1033", "strixpoint": "gfx1150"}[entry["gpu"]]
    assert seen >= 10


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.text(st.characters(codec="ascii"), max_size=12) | st.integers(-10, 10**30).map(str)
       | st.floats().map(str))  # fmt: skip
@example(content="0\x00")
def test_no_content_of_a_file_makes_it_raise_or_invent(tree: AmdgpuTree, content: str) -> None:
    for name in ("gpu_busy_percent", "mem_info_vram_used", "hwmon/temp2_input", "hwmon/power1_average", "unique_id"):
        tree.set(name, content)
    reading = read_one(tree)
    try:
        value = float(content.strip("\n\t \x00"))  # a driver may fill the file's end with NUL
    except ValueError:
        value = None
    busy, vram = reading.gpu_busy_percent, reading.vram_used_bytes
    assert busy is None or (busy == value and 0 <= busy <= 100)
    assert vram is None or (value is not None and vram == int(value))
    assert reading.junction_c is None or (value is not None and reading.junction_c == value / 1000)
