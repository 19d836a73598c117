"""Saved outputs of the vendors' tools: every value of the corpus' manifest, and what is no output at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.sources.gpu.smi_output import READERS, read_saved
from tests.examples import at_least

NOW = Moment(100.0, 1_700_000_000.0)
MIB = 1024**2
SAME = {
    "index": "index", "gpu_use_pct": "gpu_busy_percent", "umc_pct": "memory_busy_percent",
    "mem_activity_pct": "memory_busy_percent", "vram_total_bytes": "vram_total_bytes",
    "vram_used_bytes": "vram_used_bytes", "vram_allocated_pct": "vram_used_percent", "vram_pct": "vram_used_percent",
    "temp_edge_c": "edge_c", "temp_gpu_c": "edge_c", "temp_junction_c": "junction_c", "temp_mem_c": "memory_c",
    "power_w": "power_w", "power_cap_w": "power_cap_w", "name": "name", "gfx": "gfx_version", "bus": "gpu",
    "partition": "partition", "ecc_single": "ecc_correctable", "ecc_double": "ecc_uncorrectable",
    "pstate": "performance_level",
}  # fmt: skip
SCALED = {
    "vram_total_mib": ("vram_total_bytes", MIB), "vram_used_mib": ("vram_used_bytes", MIB),
    "vram_total_mb": ("vram_total_bytes", MIB), "vram_used_mb": ("vram_used_bytes", MIB),
    "sclk_mhz": ("sclk_hz", 10**6), "mclk_mhz": ("mclk_hz", 10**6),
}  # fmt: skip
NOT_A_READING = {"card", "power_key", "mem_activity_key", "gpu_recovery_action", "ppt_accumulated", "uuid"}
"""Keys of the manifest that are how the tool put it, or that no reading holds."""


def special(key: str, value: object, reading: GpuReading) -> bool:
    """Compare what the manifest writes in another form than the reading."""
    if key == "pci":
        return reading.gpu == str(value).lower().removeprefix("0000" if len(str(value)) == 16 else "")
    if key == "unique_id":
        return reading.unique_id == (None if value == "N/A" else str(value)[2:].zfill(16))
    if key == "throttle_status":
        return reading.throttled_by == ()
    if key == "throttle":
        assert isinstance(value, dict)
        return (reading.throttled_by == ()) == (set(value.values()) == {"NOT ACTIVE"})
    if key == "throttle_active":
        return (reading.throttled_by == ()) == (int(str(value), 16) & ~1 == 0)
    if key == "ecc_uncorr_volatile_total":
        return reading.ecc_uncorrectable == (int(str(value)) if str(value).isdecimal() else None)
    raise AssertionError(f"the manifest has a key that this test does not know: {key}")


def check_gpu(expected: dict[str, object], reading: GpuReading, file: str) -> int:
    checked = 0
    for key, value in expected.items():
        if key in NOT_A_READING:
            continue
        checked += 1
        if key in SAME:
            assert getattr(reading, SAME[key]) == value, (file, key)
        elif key in SCALED:
            field, factor = SCALED[key]
            assert isinstance(value, (int, float))
            assert getattr(reading, field) == value * factor, (file, key)
        else:
            assert special(key, value, reading), (file, key, value, reading)
    return checked


def check_process(expected: dict[str, object], readings: tuple[GpuReading, ...], file: str) -> None:
    (card,) = (reading for reading in readings if reading.index == expected["gpu"])
    (process,) = (item for item in card.processes or () if item.pid == expected["pid"])
    assert process.name == expected["name"], file
    if "mem_bytes" in expected:
        assert process.vram_bytes == expected["mem_bytes"], file
    else:
        value, unit = str(expected["vram"]).split()
        assert process.vram_bytes == round(float(value) * {"GB": 1024**3, "MB": MIB}[unit]), file


def test_every_value_of_the_manifest_is_read_exactly(corpus: Path) -> None:
    checked = 0
    for entry in json.loads((corpus / "smi/manifest.json").read_text()):
        expected = entry["expected"]
        if not isinstance(expected, dict) or not {"gpus", "processes"} & set(expected):
            continue
        readings = read_saved((corpus / "smi" / entry["file"]).read_text(), NOW)
        cards = expected.get("gpus", [])
        assert len(readings) >= len(cards), entry["file"]
        for card, reading in zip(cards, readings, strict=False):
            checked += check_gpu(card, reading, entry["file"])
        for process in expected.get("processes", []):
            check_process(process, readings, entry["file"])
            checked += 1
    assert checked > 350


def test_the_table_of_nvidia_smi_says_what_its_csv_says(corpus: Path) -> None:
    folder = corpus / "smi"
    for table in sorted(folder.glob("nvidia-smi_*_default.txt")):
        query = table.with_name(table.name.replace("default.txt", "query-gpu.csv"))
        (card,) = read_saved(table.read_text(), NOW)
        assert card.vram_total_bytes is not None
        assert card.power_cap_w is not None
        if query.exists():
            (same,) = read_saved(query.read_text(), NOW)
            assert (card.gpu, card.vram_total_bytes, card.power_cap_w) == (
                same.gpu,
                same.vram_total_bytes,
                same.power_cap_w,
            )
            assert same.name is not None
            assert card.name is not None
            assert same.name.startswith(card.name.removesuffix("..."))


def test_processes_of_a_table_and_of_compute_apps_agree(corpus: Path) -> None:
    stem = "smi/nvidia-smi_nvidia-h200__590.48.01_load"
    (table,) = read_saved((corpus / f"{stem}_default.txt").read_text(), NOW)
    (apps,) = read_saved((corpus / f"{stem}_compute-apps.csv").read_text(), NOW)
    assert table.processes == apps.processes
    assert table.processes is not None
    assert table.processes[2] == GpuProcess(pid=10309, name="./gpu_burn", vram_bytes=28234 * MIB)
    (use,) = read_saved((corpus / f"{stem}_pmon.txt").read_text(), NOW)
    assert [(process.pid, process.busy_percent) for process in use.processes or ()][-1] == (10309, 99)
    (rows,) = read_saved((corpus / f"{stem}_dmon.txt").read_text(), NOW)
    assert (rows.power_w, rows.edge_c, rows.memory_c, rows.mclk_hz) == (630, 54, 42, 3_201_000_000)


def test_rocm_7_puts_the_gpus_under_gpu_data_and_memory_in_one_column() -> None:
    metric = {"gpu": 0, "usage": "N/A",
              "power": {"socket_power": {"value": 203, "unit": "W"}, "throttle_status": "THROTTLED"},
              "mem_usage": {"used_vram": {"value": 1024, "unit": "MB"}, "total_vram": {"value": 16368, "unit": "MB"}},
              "temperature": {"edge": "N/A", "hotspot": {"value": 37, "unit": "C"}}}  # fmt: skip
    (card,) = read_saved(json.dumps({"gpu_data": [metric]}), NOW)
    assert (card.power_w, card.junction_c, card.edge_c, card.vram_used_bytes) == (203, 37, None, 1024 * MIB)
    assert card.throttled_by is None, "one word from the firmware is no measurement"
    table = (
        "GPU  XCP  POWER  GPU_T  MEM_T  GFX_CLK  GFX%  MEM%  ENC%  DEC%      VRAM_USAGE\n"
        "  0    0    9 W  33 \N{DEGREE SIGN}C    N/A   41 MHz   3 %   0 %   N/A   0 %    2.9/ 15.9 GB\n"
    )
    (row,) = read_saved(table, NOW)
    assert (row.power_w, row.junction_c, row.memory_c, row.gpu_busy_percent) == (9, 33, None, 3)
    assert row.vram_used_bytes == round(2.9 * 1024**3)


FOUR = """
GPU  Temp   AvgPwr  SCLK    MCLK    Fan   Perf  PwrCap  VRAM%  GPU%
0    35.0c  17.0W   808Mhz  350Mhz  29.8%  auto  150.0W    3%   91%
"""
FIVE = """
GPU  Temp (DieEdge)  AvgPwr  SCLK    MCLK     Fan  Perf  PwrCap       VRAM%        GPU%
0    43.0c           N/A     None    1000Mhz  0%   auto  225.0W       N/A          0%
"""
SIX = """
Device  Node  IDs              Temp        Power  Partitions      SCLK   MCLK   Fan  Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  (Junction)  (Avg)  (Mem, Compute, ID)
=====================================================================================================================
0       1     0x744c,   42827  43.0\N{DEGREE SIGN}C      18.0W  NPS1, CPX, 3  32Mhz  96Mhz 0%  auto N/A     7%     0%
"""


def test_a_header_that_was_scribbled_over_is_no_reading() -> None:
    assert read_saved("# gpux    pwr\n    0    630\n", NOW) == ()


def test_every_era_of_the_concise_table_keeps_its_columns_apart() -> None:
    (four,), (five,), (six,) = (read_saved(text, NOW) for text in (FOUR, FIVE, SIX))
    assert (four.edge_c, four.power_w, four.power_cap_w, four.vram_used_percent, four.gpu_busy_percent) == (
        35, 17, 150, 3, 91
    )  # fmt: skip
    assert (five.edge_c, five.power_w, five.power_cap_w, five.vram_used_percent, five.gpu_busy_percent) == (
        43, None, 225, None, 0
    )  # fmt: skip
    assert (five.sclk_hz, five.mclk_hz) == (None, 1_000_000_000)
    assert (six.junction_c, six.power_w, six.power_cap_w, six.vram_used_percent) == (43, 18, None, 7)
    assert (six.memory_partition, six.compute_partition, six.partition) == ("NPS1", "CPX", 3)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "hello", "GPU: x", "command not found", '{"card0": 5}', '{"gpu_data": 5}', "a, b\n1, 2\n"]
)
def test_what_is_no_output_of_theirs_is_no_reading(text: str) -> None:
    assert read_saved(text, NOW) == ()


PLACES = st.integers(0, 10**6)


def damaged(data: st.DataObject, text: str) -> str:
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(PLACES) % (len(text) + 1)
        length = data.draw(st.integers(0, 200))
        text = text[:place] + data.draw(st.text(max_size=6)) + text[place + length :]
    return text


@settings(max_examples=at_least(400))
@given(data=st.data(), text=st.sampled_from([FOUR, FIVE, SIX]))
def test_no_damage_to_an_output_makes_it_raise_or_leave_its_range(data: st.DataObject, text: str) -> None:
    for reading in read_saved(damaged(data, text), NOW):
        assert_in_range(reading)


@settings(max_examples=at_least(400))
@given(data=st.data())
def test_no_damage_to_a_real_output_makes_it_raise_or_leave_its_range(corpus: Path, data: st.DataObject) -> None:
    files = sorted(path for path in (corpus / "smi").iterdir() if path.name != "manifest.json")
    text = data.draw(st.sampled_from(files)).read_text()
    for reading in read_saved(damaged(data, text), NOW):
        assert_in_range(reading)


@settings(max_examples=at_least(400))
@given(text=st.text(max_size=400), form=st.sampled_from(READERS))
def test_no_text_makes_a_reader_raise(text: str, form: tuple[str, object, object]) -> None:
    reader = form[2]
    assert callable(reader)
    for reading in reader(text, NOW):
        assert_in_range(reading)


def assert_in_range(reading: GpuReading) -> None:
    for share in (reading.gpu_busy_percent, reading.memory_busy_percent, reading.vram_used_percent):
        assert share is None or 0 <= share <= 100
    for heat in (reading.edge_c, reading.junction_c, reading.memory_c):
        assert heat is None or -40 <= heat <= 200
    for whole in (reading.vram_used_bytes, reading.vram_total_bytes, reading.sclk_hz, reading.ecc_correctable):
        assert whole is None or 0 <= whole < 2**63
    assert reading.gpu


LISTED = """
============================ ROCm System Management Interface ============================
=========================================== ID ===========================================
GPU[0]\t\t: Device Name: \t\tAMD Instinct MI300A
GPU[0]\t\t: Device ID: \t\t0x74a0
GPU[0]\t\t: Device Rev: \t\t0x00
GPU[0]\t\t: Subsystem ID: \t0x74a0
GPU[0]\t\t: GUID: \t\t50743
GPU[1]\t\t: Device Name: \t\tAMD Instinct MI300A
GPU[1]\t\t: Device ID: \t\tN/A
GPU[1]\t\t: GUID: \t\t6834
==========================================================================================
================================== End of ROCm SMI Log ===================================
"""
"""As `rocm-smi -i` prints it (rocm_smi.py, printLog; ROCm 6.4 says N/A of partitions)."""


def test_the_list_of_rocm_smi_names_the_gpus() -> None:
    assert [(checkpoint.gpu, checkpoint.index, checkpoint.name) for checkpoint in read_saved(LISTED, NOW)] == [
        ("gpu0", 0, "AMD Instinct MI300A"),
        ("gpu1", 1, "AMD Instinct MI300A"),
    ]


def test_the_lists_of_rocm_smi_are_read_by_the_names_of_its_json() -> None:
    (item,) = read_saved(
        "GPU[3]\t\t: Temperature (Sensor junction) (C): \t43.0\nGPU[3]\t\t: Temperature (Sensor edge) (C): N/A\n"
        "GPU[3]\t\t: GPU use (%): 97\nGPU[3]\t\t: PCI Bus: 0000:C1:00.0\nGPU[3]\t\t: sclk clock level: 1: (875Mhz)\n"
        "GPU[3]\t\t: Average Graphics Package Power (W): 132.0\n",
        NOW,
    )
    assert (item.gpu, item.index, item.junction_c, item.edge_c) == ("0000:c1:00.0", 3, 43.0, None)
    assert (item.gpu_busy_percent, item.sclk_hz, item.power_w) == (97, 875_000_000, 132.0)
