"""rocm-smi: its JSON of eight years, the tool itself on the simulated card, and a tool that hangs."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import fields
from pathlib import Path

import pytest
from amdgpu_tree import AmdgpuTree, Card, mi50, phoenix, rx7900xt
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.amd_smi import AmdSmi
from supervisor.sources.gpu.amdgpu_sysfs import AmdgpuSysfs
from supervisor.sources.gpu.rocm_smi import RocmSmi, parse
from supervisor.sources.gpu.source import SourceSilentError

NOW = Moment(100.0, 1_700_000_000.0)


def test_recorded_outputs_give_the_values_of_their_manifest(corpus: Path) -> None:
    seen = 0
    for entry in json.loads((corpus / "smi/manifest.json").read_text()):
        if entry["tool"] != "rocm-smi" or not entry["format"].startswith("json"):
            continue
        readings = parse((corpus / "smi" / entry["file"]).read_text(), NOW)
        expected = entry["expected"]["gpus"]
        assert len(readings) == len(expected)
        for reading, gpu in zip(readings, expected, strict=True):
            assert reading.gpu == gpu["pci"].lower()
            assert reading.gpu_busy_percent == gpu["gpu_use_pct"]
            assert reading.memory_busy_percent == gpu["mem_activity_pct"]
            assert (reading.vram_used_bytes, reading.vram_total_bytes) == (
                gpu["vram_used_bytes"],
                gpu["vram_total_bytes"],
            )
            assert (reading.edge_c, reading.junction_c) == (gpu["temp_edge_c"], gpu["temp_junction_c"])
            assert (reading.memory_c, reading.power_w) == (gpu["temp_mem_c"], gpu["power_w"])
            assert (reading.power_cap_w, reading.name) == (gpu["power_cap_w"], gpu["name"])
            unique_id = gpu["unique_id"]
            assert reading.unique_id == (None if unique_id == "N/A" else unique_id[2:].zfill(16))
            seen += 1
    assert seen >= 10


def test_a_stepping_written_in_decimal_is_put_right() -> None:
    """ROCm 6.0 prints the stepping of 0xa as 10."""
    (reading,) = parse(json.dumps({"card0": {"PCI Bus": "0000:0A:00.0", "GFX Version": "gfx9010"}}), NOW)
    assert reading.gfx_version == "gfx90a"


def test_the_decimal_stepping_of_rocm_6_is_put_right(corpus: Path) -> None:
    (reading,) = parse((corpus / "smi/rocm-smi_wandb_mi250_rocm6.json").read_text(), NOW)
    assert reading.gfx_version == "gfx90a"


CARD = json.dumps(
    {
        "card0": {
            "PCI Bus": "0000:0A:00.0",
            "GPU use (%)": "91",
            "Fan RPM": "N/A",
            "Average Graphics Package Power (W)": "N/A (Secondary die)",
        },
        "system": {"Driver version": "5.18"},
    }
)


def test_warnings_before_the_json_do_no_harm() -> None:
    (reading,) = parse(f"WARNING: AMD GPU {{0}} is in a low-power state\n\n{CARD}\ntrailing", NOW)
    assert (reading.gpu, reading.gpu_busy_percent, reading.fan_rpm, reading.power_w) == ("0000:0a:00.0", 91, None, None)


@pytest.mark.parametrize(
    "text", ["", "WARNING: No JSON data to report", "{", "[]", '{"card0": 5}', '{"card0": {}}', "{" * 99999]
)
def test_what_is_no_answer_is_no_reading(text: str) -> None:
    assert parse(text, NOW) == ()


@given(st.integers(0, len(CARD) - 1))
def test_a_cut_answer_is_no_reading(length: int) -> None:
    assert parse(CARD[:length], NOW) == ()


VALUE = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=10), st.lists(st.integers(), max_size=2),
    st.sampled_from(["N/A", "1e400", "nan", "-5", "(875Mhz)", "(9e9Mhz)", "65535", "0000:0A:00.0", "0x0"]),
)  # fmt: skip
KEY = st.sampled_from(
    ["GPU use (%)", "Unique ID", "VRAM Total Memory (B)", "Temperature (Sensor edge) (C)", "sclk clock speed:",
     "Fan RPM", "Average Graphics Package Power (W)", "GFX Version", "Card series", "PCI Bus"]
)  # fmt: skip


@given(st.dictionaries(KEY, VALUE))
def test_no_value_makes_it_raise_or_leave_its_range(card: dict[str, object]) -> None:
    for reading in parse(json.dumps({"card0": {"PCI Bus": "0000:0a:00.0", **card}}), NOW):
        assert reading.gpu_busy_percent is None or 0 <= reading.gpu_busy_percent <= 100
        assert reading.edge_c is None or -40 <= reading.edge_c <= 200
        for count in (reading.fan_rpm, reading.vram_total_bytes, reading.sclk_hz):
            assert count is None or 0 <= count < 2**63
        if "GPU use (%)" not in card:
            assert reading.gpu_busy_percent is None


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


def test_a_tool_that_is_not_there_is_reported_by_name() -> None:
    with pytest.raises(SourceSilentError, match=r"no-such-rocm-smi: No such file"):
        RocmSmi(("no-such-rocm-smi",)).read(NOW)


@pytest.mark.slow
def test_the_tool_s_own_complaint_is_handed_on(tmp_path: Path) -> None:
    command = script(tmp_path, "echo 'ERROR: Driver not initialized (amdgpu not found in modules)' >&2")
    with pytest.raises(SourceSilentError, match="Driver not initialized"):
        RocmSmi(command).read(NOW)


@pytest.mark.slow
def test_without_the_driver_the_tool_is_not_started(tmp_path: Path) -> None:
    command = script(tmp_path, f"touch {tmp_path}/started; echo 'ERROR: Driver not initialized' >&2")
    for source in (RocmSmi(command, sys_root=tmp_path), AmdSmi(command, sys_root=tmp_path)):
        with pytest.raises(SourceSilentError, match="no amdgpu driver"):
            source.read(NOW)
    assert not (tmp_path / "started").exists()
    (tmp_path / "module/amdgpu").mkdir(parents=True)
    for source in (RocmSmi(command, sys_root=tmp_path), AmdSmi(command, sys_root=tmp_path)):
        with pytest.raises(SourceSilentError, match="Driver not initialized"):
            source.read(NOW)


@pytest.mark.alone(reason="compares a duration with a limit")
def test_a_tool_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    command = script(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; trap '' TERM; sleep 600")
    started = time.perf_counter()
    with pytest.raises(SourceSilentError, match="no answer within"):
        RocmSmi(command, deadline_s=0.5).read(NOW)
    assert time.perf_counter() - started < 5
    child = int((tmp_path / "child").read_text())
    end = time.perf_counter() + 60
    while _lives(child):
        assert time.perf_counter() < end, "the tool's child outlived it"


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def assert_agree(by_tool: GpuReading, by_sysfs: GpuReading) -> None:
    """Whatever the tool says, sysfs says the same. Without a PCI ID database the tool has no name for the card."""
    for field in fields(GpuReading):
        output, same = getattr(by_tool, field.name), getattr(by_sysfs, field.name)
        assert field.name in ("source", "name", "vram_used_percent") or output in (None, same), field.name
    known = ("gpu_busy_percent", "vram_used_bytes", "vram_total_bytes", "edge_c", "power_w")
    assert None not in [getattr(by_tool, name) for name in known]


MACHINES = {
    "RX 5600 XT": (Card(),),
    "MI50": (mi50(),),
    "two RX 7900 XT": (rx7900xt("0000:03:00.0", 0), rx7900xt("0000:83:00.0", 1)),
    "APU": (phoenix(),),
    "all of them": (Card(), mi50(index=1), rx7900xt("0000:83:00.0", 2), phoenix(index=3)),
}


@pytest.mark.mounts
@pytest.mark.calm(reason="the tool has a deadline of seconds")
@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
@pytest.mark.skipif(shutil.which("rocm-smi") is None, reason="rocm-smi is not installed")
@pytest.mark.parametrize("machine", MACHINES)
def test_the_real_tool_and_sysfs_agree_on_every_machine(machine: str, tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree", *MACHINES[machine])
    by_tool = RocmSmi(tree.command(["rocm-smi"]), deadline_s=30).read(NOW)
    by_sysfs = {reading.gpu: reading for reading in AmdgpuSysfs(tree.sys_root).read(NOW)}
    assert {reading.gpu for reading in by_tool} == set(by_sysfs)
    for reading in by_tool:
        assert_agree(reading, by_sysfs[reading.gpu])


@pytest.mark.mounts
@pytest.mark.calm(reason="the tool has a deadline of seconds")
@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
@pytest.mark.skipif(shutil.which("rocm-smi") is None, reason="rocm-smi is not installed")
def test_the_real_tool_and_sysfs_agree_on_one_state(tree: AmdgpuTree) -> None:
    for busy, junction in ((97, 79000), (0, 41000)):
        tree.set("gpu_busy_percent", busy)
        tree.set("hwmon/temp2_input", junction)
        (by_tool,) = RocmSmi(tree.command(["rocm-smi"])).read(NOW)
        (by_sysfs,) = AmdgpuSysfs(tree.sys_root).read(NOW)
        assert_agree(by_tool, by_sysfs)
