"""The binary tables: those of real cards, every version laid out by hand, and bytes that are none."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.sources.gpu.gpu_metrics import LAYOUTS, Metrics, parse, throttled_by


def table(version: tuple[int, int], **values: int) -> bytes:
    """Return a table of a version, every field absent but those given, in the raw numbers of the firmware."""
    layout = LAYOUTS[version]
    size = max(offset + 8 for offset, _, _ in layout.values())
    content = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", content, 0, size, *version)
    for name, value in values.items():
        offset, letter, _ = layout[name]
        struct.pack_into("<" + letter, content, offset, value)
    return bytes(content)


def test_the_tables_of_real_gpus_say_what_their_manifest_says(corpus: Path) -> None:
    seen = 0
    for entry in json.loads((corpus / "sysfs/manifest.json").read_text()):
        if "gpu_metrics" not in entry:
            continue
        content = (corpus / "sysfs" / entry["dir"] / "device/gpu_metrics").read_bytes()
        expected, found = entry["gpu_metrics"], parse(content)
        assert len(content) == expected["file_bytes"]
        assert found is not None
        assert found.version == (expected["format"], expected["content"])
        if "temp_edge_c" in expected:
            assert (found.edge_c, found.junction_c, found.memory_c) == (
                expected["temp_edge_c"],
                expected["temp_hotspot_c"],
                expected["temp_mem_c"],
            )
            assert found.gpu_busy_percent == expected["avg_gfx_activity"]
            assert found.memory_busy_percent == expected["avg_umc_activity"]
            assert found.power_w == expected["avg_socket_power_w"]
        seen += 1
    assert seen == 5


def test_an_apu_s_table_agrees_with_its_other_files(corpus: Path) -> None:
    device = corpus / "sysfs/strixpoint/card1/device"
    found = parse((device / "gpu_metrics").read_bytes())
    assert found is not None
    assert found.is_apu
    assert found.edge_c == pytest.approx(38, abs=0.5)
    assert found.gpu_busy_percent == 3
    assert found.power_w == pytest.approx(9.1, abs=1)
    assert found.sclk_hz == pytest.approx(848e6, abs=2e6)


@pytest.mark.parametrize("version", sorted(LAYOUTS))
def test_every_version_reads_its_own_fields_and_invents_none(version: tuple[int, int]) -> None:
    assert parse(table(version)) == Metrics(version=version)
    layout = LAYOUTS[version]
    for name in set(layout) & {"edge_c", "junction_c", "power_w", "gpu_busy_percent", "mclk_hz", "pcie_replays"}:
        unit = layout[name][2]
        raw = round(52 / unit) if unit < 1 else 52
        found = parse(table(version, **{name: raw}))
        assert found is not None
        assert getattr(found, name) == (52_000_000 if name == "mclk_hz" else 52)
        others = {field.name for field in fields(Metrics)} - {"version", name}
        assert {getattr(found, other) for other in others} == {None}


def version_1_3(*, hotspot_c: int, limits: int) -> bytes:
    """Return a table as `struct gpu_metrics_v1_3` of the kernel's kgd_pp_interface.h lays it out."""
    celsius = (54, hotspot_c, 60, 50, 51, 52)
    activity = (97, 31, 0)
    clocks = (1750, 1000, 875, 0, 0, 0, 0)
    return struct.pack(
        "<HBB 6H 3H H Q Q 7H 7H I HHH H II 4H Q 3H H Q",
        120, 1, 3, *celsius, *activity, 131, 10**9, 10**12, *clocks, *clocks, 0, 1743, 16, 160, 0, 7, 8,
        *(0xFFFF,) * 4, 10**12, 900, 1000, 850, 0, limits,
    )  # fmt: skip


def test_a_table_laid_out_as_the_kernel_declares_it_is_read() -> None:
    found = parse(version_1_3(hotspot_c=79, limits=0))
    assert found is not None
    assert (found.edge_c, found.junction_c, found.memory_c, found.power_w) == (54, 79, 60, 131)
    assert (found.gpu_busy_percent, found.memory_busy_percent) == (97, 31)
    assert throttled_by(found) == ()


def test_a_hotspot_bit_at_54_degrees_is_no_throttling() -> None:
    found = parse(version_1_3(hotspot_c=54, limits=1 << 36))
    assert found is not None
    assert (found.limits, throttled_by(found)) == (("thermal_hotspot",), ())


def test_a_hotspot_bit_on_a_cold_gpu_is_no_throttling(corpus: Path) -> None:
    """The RX 7600S was idle at 54 C when its firmware set the bit."""
    found = parse((corpus / "sysfs/rx7600s/card1/device/gpu_metrics").read_bytes())
    assert found is not None
    assert found.limits == ("thermal_hotspot",)
    assert throttled_by(found) == ()


def test_a_hot_gpu_s_limits_are_reported() -> None:
    word = 1 << 36 | 1 << 5 | 1 << 46
    found = parse(table((1, 3), limits=word, junction_c=104))
    assert found is not None
    assert throttled_by(found) == ("power", "thermal_hotspot", "prochot")


def test_a_chip_without_the_word_is_unknown_and_not_free() -> None:
    found = parse(table((1, 1), junction_c=104))
    assert found is not None
    assert throttled_by(found) is None


def test_a_cut_table_is_none() -> None:
    whole = table((1, 3), junction_c=80)
    assert all(parse(whole[:length]) is None for length in range(len(whole)))


@given(
    st.binary(max_size=400)
    | st.builds(
        lambda head, rest: head + rest,
        st.sampled_from([struct.pack("<HBB", size, *version) for version in LAYOUTS for size in (0, 60, 120, 300)]),
        st.binary(max_size=400),
    )
)
def test_no_bytes_make_it_raise_or_leave_its_range(content: bytes) -> None:
    found = parse(content)
    if found is None:
        return
    throttled_by(found)
    for heat in (found.edge_c, found.junction_c, found.memory_c):
        assert heat is None or -40 <= heat <= 200
    for share in (found.gpu_busy_percent, found.memory_busy_percent):
        assert share is None or 0 <= share <= 100
    assert found.power_w is None or 0 <= found.power_w <= 5000
