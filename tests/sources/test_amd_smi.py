"""amd-smi as a source: addresses asked once, both forms of its JSON, and tools that are broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess
from supervisor.sources.gpu.amd_smi import AmdSmi, addresses, parse, parse_saved
from supervisor.sources.gpu.source import SourceSilentError

NOW = Moment(100.0, 1_700_000_000.0)
LIST = [{"gpu": 0, "bdf": "0000:03:00.0", "uuid": "x"}, {"gpu": 1, "bdf": "0000:83:00.0", "uuid": "y"}]


def measured(value: object, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit}


def metric(gpu: int) -> dict[str, object]:
    return {
        "gpu": gpu,
        "usage": {"gfx_activity": measured(97, "%"), "umc_activity": measured(12, "%"), "mm_activity": "N/A"},
        "power": {"socket_power": measured(203, "W"), "throttle_status": "THROTTLED"},
        "clock": {"gfx_0": {"clk": measured(2304, "MHz")}, "mem_0": {"clk": measured(1249, "MHz")}},
        "temperature": {"edge": measured(61, "C"), "hotspot": measured(78, "C"), "mem": "N/A"},
        "pcie": {"width": 16, "speed": measured(16, "GT/s"), "replay_count": 3},
        "ecc": {"total_correctable_count": 2, "total_uncorrectable_count": 0},
        "fan": {"rpm": 1210},
        "mem_usage": {"total_vram": measured(20464, "MB"), "used_vram": measured(1024, "MB")},
        "throttle": {"ppt_violation_status": "ACTIVE", "prochot_violation_status": "NOT ACTIVE"},
    }


def tool(folder: Path, listed: object, measurements: object) -> tuple[str, ...]:
    (folder / "list").write_text(json.dumps(listed))
    (folder / "metric").write_text(json.dumps(measurements))
    path = folder / "amd-smi"
    path.write_text(f'#!/bin/sh\necho "$1" >> {folder}/calls\ncat {folder}/$1\nexit 2\n')
    path.chmod(0o755)
    return (str(path),)


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_both_forms_of_its_json_are_read_whatever_the_exit_status(tmp_path: Path, *, wrapped: bool) -> None:
    cards = [metric(0), metric(1)]
    source = AmdSmi(tool(tmp_path, LIST, {"gpu_data": cards} if wrapped else cards))
    first, second = source.read(NOW)
    source.read(NOW.plus(10))
    assert (tmp_path / "calls").read_text().split() == ["list", "metric", "metric"]
    assert (first.gpu, second.gpu, first.index) == ("0000:03:00.0", "0000:83:00.0", 0)
    assert (first.gpu_busy_percent, first.memory_busy_percent, first.power_w) == (97, 12, 203)
    assert (first.edge_c, first.junction_c, first.memory_c) == (61, 78, None)
    assert (first.sclk_hz, first.mclk_hz, first.fan_rpm) == (2_304_000_000, 1_249_000_000, 1210)
    assert (first.vram_used_bytes, first.vram_total_bytes) == (1 << 30, 20464 << 20)
    assert (first.pcie_lanes, first.pcie_gts, first.pcie_replays) == (16, 16, 3)
    assert (first.ecc_correctable, first.ecc_uncorrectable, first.throttled_by) == (2, 0, ("ppt",))


def test_a_partition_that_repeats_an_address_is_not_a_second_gpu() -> None:
    known = {0: "0000:03:00.0", 1: "0000:03:00.0"}
    assert len(parse(json.dumps([metric(0), metric(1)]), NOW, known)) == 1


def test_no_process_is_an_empty_list_and_words_are_no_process() -> None:
    text = json.dumps([{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}])
    assert parse_saved(text, NOW)[0].processes == ()
    info = {"name": "N/A", "pid": 7, "memory_usage": {"vram_mem": measured(5, "MB"), "gtt_mem": measured(1, "KB")}}
    (card,) = parse_saved(json.dumps([{"gpu": 0, "process_list": [{"process_info": info}]}]), NOW)
    assert card.processes == (GpuProcess(pid=7, vram_bytes=5 << 20, gtt_bytes=1 << 10),)


@pytest.mark.slow
def test_a_tool_without_gpus_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceSilentError, match="lists no GPU"):
        AmdSmi(tool(tmp_path, [], [])).read(NOW)
    with pytest.raises(SourceSilentError, match="no-amd-smi: No such file"):
        AmdSmi(("no-amd-smi",)).read(NOW)


LEAF = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["N/A", "THROTTLED"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["value", "unit", "clk", "gfx_activity", "used_vram", "socket_power", "pid"]), inner
        )
    ),
    max_leaves=8,
)
BRANCH = st.sampled_from(
    ["gpu", "usage", "power", "clock", "temperature", "mem_usage", "pcie", "ecc", "process_list", "throttle"]
)


@given(st.lists(st.dictionaries(BRANCH, LEAF), max_size=3))
def test_no_json_makes_it_raise_or_leave_its_range(cards: list[dict[str, object]]) -> None:
    text = json.dumps(cards)
    addresses(text)
    for reading in parse_saved(text, NOW):
        assert reading.gpu_busy_percent is None or 0 <= reading.gpu_busy_percent <= 100
        assert reading.power_w is None or 0 <= reading.power_w <= 5000
        assert reading.vram_used_bytes is None or 0 <= reading.vram_used_bytes < 2**63
