"""Reads amdgpu's binary `gpu_metrics` tables, v1.0 to v3.0; other versions are not reported.

Layouts: the kernel's drivers/gpu/drm/amd/include/kgd_pp_interface.h. A field with all bits set is not supported by the
chip.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.sources.gpu.sensor_values import celsius, count, percent, watts

_WIDTHS = {"B": 1, "H": 2, "I": 4, "Q": 8}
Field = tuple[int, str, float]
"""Offset in bytes, struct's letter for the width, and the factor to the reading's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The values of one table, in the units of their names; None if the chip or version does not report them."""

    version: tuple[int, int]
    edge_c: float | None = None
    junction_c: float | None = None
    memory_c: float | None = None
    gpu_busy_percent: float | None = None
    memory_busy_percent: float | None = None
    power_w: float | None = None
    sclk_hz: int | None = None
    mclk_hz: int | None = None
    pcie_lanes: int | None = None
    pcie_gts: float | None = None
    pcie_replays: int | None = None
    limits: tuple[str, ...] | None = None
    """Every limit whose bit is set, whether it reduces the clocks or not."""

    @property
    def is_apu(self) -> bool:
        """Whether the table has a version used for APUs."""
        return self.version[0] in (2, 3)


def _discrete_layout(temperature: int, busy: int, power: int, clock: int, lanes: str) -> dict[str, Field]:
    return {
        "edge_c": (temperature, "H", 1),
        "junction_c": (temperature + 2, "H", 1),
        "memory_c": (temperature + 4, "H", 1),
        "gpu_busy_percent": (busy, "H", 1),
        "memory_busy_percent": (busy + 2, "H", 1),
        "power_w": (power, "H", 1),
        "average_sclk_hz": (clock - 14, "H", 1e6),
        "sclk_hz": (clock, "H", 1e6),
        "mclk_hz": (clock + 4, "H", 1e6),
        "pcie_lanes": (74, lanes, 1),
        "pcie_gts": (76 if lanes == "H" else 75, lanes, 0.1),
    }


def _instinct_layout(lanes: int, replays: int, sclk: int, mclk: int) -> dict[str, Field]:
    return {
        "junction_c": (4, "H", 1),
        "memory_c": (6, "H", 1),
        "power_w": (10, "H", 1),
        "gpu_busy_percent": (12, "H", 1),
        "memory_busy_percent": (14, "H", 1),
        "pcie_lanes": (lanes, "H", 1),
        "pcie_gts": (lanes + 2, "H", 0.1),
        "pcie_replays": (replays, "Q", 1),
        "sclk_hz": (sclk, "H", 1e6),
        "mclk_hz": (mclk, "H", 1e6),
    }


_V1_1 = _discrete_layout(4, 16, 22, 54, "H")
_V2_1: dict[str, Field] = {"edge_c": (4, "H", 0.01), "sclk_hz": (76, "H", 1e6), "mclk_hz": (80, "H", 1e6)}
"""Busy share and power of v2.0 to v2.3 are not read, since their units differ between chips."""
LAYOUTS: Mapping[tuple[int, int], Mapping[str, Field]] = {
    (1, 0): _discrete_layout(16, 28, 34, 54, "B"),
    (1, 1): _V1_1,
    (1, 2): _V1_1,
    (1, 3): {**_V1_1, "limits": (112, "Q", 1)},
    (1, 4): _instinct_layout(lanes=48, replays=88, sclk=240, mclk=280),
    (1, 5): _instinct_layout(lanes=112, replays=152, sclk=312, mclk=352),
    (1, 6): _instinct_layout(lanes=60, replays=104, sclk=264, mclk=304),
    (1, 7): _instinct_layout(lanes=68, replays=112, sclk=296, mclk=336),
    (1, 8): _instinct_layout(lanes=68, replays=112, sclk=296, mclk=336),
    (2, 0): {"edge_c": (16, "H", 0.01), "sclk_hz": (80, "H", 1e6), "mclk_hz": (84, "H", 1e6)},
    (2, 1): _V2_1,
    (2, 2): {**_V2_1, "limits": (120, "Q", 1)},
    (2, 3): {**_V2_1, "limits": (120, "Q", 1)},
    (2, 4): {
        **_V2_1,
        "gpu_busy_percent": (28, "H", 0.01),
        "power_w": (40, "H", 0.001),
        "limits": (120, "Q", 1),
    },
    (3, 0): {
        "edge_c": (4, "H", 0.01),
        "gpu_busy_percent": (42, "H", 1),
        "power_w": (112, "I", 0.001),
        "sclk_hz": (174, "H", 1e6),
        "mclk_hz": (186, "H", 1e6),
    },
}
"""By format and content revision."""

LIMITS: Mapping[int, str] = {
    **dict.fromkeys((0, 1, 2, 3, 4, 5, 6, 7), "power"),
    **dict.fromkeys((16, 17, 18, 19, 20, 21, 22, 23), "current"),
    32: "thermal",
    33: "thermal_core",
    34: "thermal_memory",
    35: "thermal_edge",
    36: "thermal_hotspot",
    37: "thermal_soc",
    **dict.fromkeys((38, 39, 40, 41, 44, 45), "thermal_regulator"),
    **dict.fromkeys((42, 43), "thermal_liquid"),
    **dict.fromkeys((46, 47), "prochot"),
}
"""Bits of `indep_throttle_status`: the kernel's drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h."""
_HOT_ENOUGH_C: Mapping[str, tuple[str, float]] = {
    "thermal_hotspot": ("junction_c", 90.0),
    "thermal_edge": ("edge_c", 85.0),
    "thermal_memory": ("memory_c", 85.0),
}


def parse(table: bytes) -> Metrics | None:
    """Return the values of a table; None if it is truncated, corrupt, or of an unknown version."""
    if len(table) < 4:
        return None
    size, version = int.from_bytes(table[:2], "little"), (table[2], table[3])
    layout = LAYOUTS.get(version)
    if layout is None or size > len(table):
        return None
    found = {name: _read_field(table, size, field) for name, field in layout.items()}
    sclk_hz = count(found.get("sclk_hz"))
    return Metrics(
        version=version,
        edge_c=celsius(found.get("edge_c")),
        junction_c=celsius(found.get("junction_c")),
        memory_c=celsius(found.get("memory_c")),
        gpu_busy_percent=percent(found.get("gpu_busy_percent")),
        memory_busy_percent=percent(found.get("memory_busy_percent")),
        power_w=watts(found.get("power_w")),
        sclk_hz=sclk_hz if sclk_hz is not None else count(found.get("average_sclk_hz")),
        mclk_hz=count(found.get("mclk_hz")),
        pcie_lanes=count(found.get("pcie_lanes")),
        pcie_gts=found.get("pcie_gts"),
        pcie_replays=count(found.get("pcie_replays")),
        limits=None if found.get("limits") is None else _read_limits(table, layout),
    )


def throttled_by(metrics: Metrics) -> tuple[str, ...] | None:
    """Return the limits that plausibly reduce the clocks.

    RDNA3 and RDNA4 firmware sets the hotspot bit on a cold GPU (ROCm/rocm-systems#11781), so a thermal bit counts only
    if its own sensor is near its limit. A power limit at full load is normal, and is reported as `power`.
    """
    if metrics.limits is None:
        return None
    return tuple(limit for limit in metrics.limits if _is_believable(limit, metrics))


def _is_believable(limit: str, metrics: Metrics) -> bool:
    needs = _HOT_ENOUGH_C.get(limit)
    if needs is None:
        return True
    value = getattr(metrics, needs[0])
    return value is not None and value >= needs[1]


def _read_field(table: bytes, size: int, field: Field) -> float | None:
    offset, letter, unit = field
    width = _WIDTHS[letter]
    if offset + width > size:
        return None
    value = int(struct.unpack_from("<" + letter, table, offset)[0])
    if value == (1 << 8 * width) - 1:
        return None
    return value if unit == 1 else round(value * unit, 3)


def _read_limits(table: bytes, layout: Mapping[str, Field]) -> tuple[str, ...]:
    bits = int(struct.unpack_from("<Q", table, layout["limits"][0])[0])
    return tuple(dict.fromkeys(name for bit, name in LIMITS.items() if bits >> bit & 1))
