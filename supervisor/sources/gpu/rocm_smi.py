"""Reads GPUs through `rocm-smi --json`, a fallback that costs one process per reading.

Values are read by name; a value that is absent or `N/A` is None. Key names: rocm_smi.py of ROCm 2.x to 7.x.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.sensor_values import celsius, count, hertz, number, pci_address, percent, unique_id, watts
from supervisor.sources.gpu.tool import AmdTool

FLAGS = (
    "--showuse", "--showmemuse", "--showmeminfo", "vram", "gtt", "--showtemp", "--showpower", "--showmaxpower",
    "--showfan", "--showclocks", "--showid", "--showuniqueid", "--showbus", "--showproductname", "--json",
)  # fmt: skip
_CARD = re.compile(r"card\d{1,4}", re.ASCII)
_CLOCK = re.compile(r"\(\s*(\d+(?:\.\d+)?)\s*Mhz\s*\)", re.IGNORECASE)
_GFX = re.compile(r"gfx[0-9a-f]{3,6}")
_CORRECT_GFX = {"gfx9010": "gfx90a", "gfx9012": "gfx90c"}
"""Names that ROCm 6 prints with the stepping in decimal, and the correct ones."""


class RocmSmi(AmdTool):
    """The tool `rocm-smi`, run once per reading."""

    name: ClassVar[str] = "rocm-smi"

    def _query(self, now: Moment) -> tuple[GpuReading, ...]:
        return parse(self._tool.run(*FLAGS), now)


def parse(stdout: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each GPU in the JSON that has a PCI address; () for any other text."""
    return tuple(
        replace(_build_reading(card, at), gpu=gpu)
        for card in cards_of(stdout).values()
        if (gpu := pci_address(card.get("PCI Bus"))) is not None
    )


def parse_saved(stdout: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each GPU of a saved output, which may lack addresses."""
    return tuple(reading_of(int(key[4:]), card, at) for key, card in cards_of(stdout).items())


def reading_of(index: int, card: Mapping[str, object], at: Moment) -> GpuReading:
    """Return the reading of one GPU from its values by the tool's names."""
    return replace(_build_reading(card, at), gpu=pci_address(card.get("PCI Bus")) or f"gpu{index}", index=index)


def cards_of(stdout: str) -> dict[str, Mapping[str, object]]:
    """Return the GPUs in the JSON by the tool's names (`card0`); {} if the text has none."""
    return {
        key: card
        for key, card in _find_document(stdout).items()
        if _CARD.fullmatch(key) and isinstance(card, dict) and card
    }


def _find_document(stdout: str) -> Mapping[str, object]:
    """Return the JSON object in the text, which other lines may precede; {} if there is none or it is incomplete."""
    start, decoder = stdout.find("{"), json.JSONDecoder()
    for _ in range(8):
        if start < 0:
            break
        try:
            document, _ = decoder.raw_decode(stdout, start)
        except (ValueError, RecursionError):
            start = stdout.find("{", start + 1)
            continue
        if isinstance(document, dict) and any(_CARD.fullmatch(key) for key in document):
            return document
        start = stdout.find("{", start + 1)
    return {}


def _build_reading(card: Mapping[str, object], at: Moment) -> GpuReading:
    # Up to ROCm 6.1.0, the memory controller's activity is called "GPU memory use (%)".
    return GpuReading(
        at=at,
        gpu="",
        source=RocmSmi.name,
        name=_find_name(card),
        unique_id=unique_id(card.get("Unique ID")),
        gfx_version=_parse_gfx_version(card.get("GFX Version")),
        gpu_busy_percent=percent(_first_number(card, "GPU use (%)")),
        memory_busy_percent=percent(_first_number(card, "GPU Memory Read/Write Activity (%)", "GPU memory use (%)")),
        vram_used_bytes=count(_first_number(card, "VRAM Total Used Memory (B)")),
        vram_total_bytes=count(_first_number(card, "VRAM Total Memory (B)")),
        gtt_used_bytes=count(_first_number(card, "GTT Total Used Memory (B)")),
        gtt_total_bytes=count(_first_number(card, "GTT Total Memory (B)")),
        edge_c=celsius(_first_number(card, "Temperature (Sensor edge) (C)")),
        junction_c=celsius(_first_number(card, "Temperature (Sensor junction) (C)")),
        memory_c=celsius(_first_number(card, "Temperature (Sensor memory) (C)")),
        power_w=watts(
            _first_number(card, "Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)")
        ),
        power_cap_w=watts(_first_number(card, "Max Graphics Package Power (W)")),
        vram_used_percent=percent(_first_number(card, "GPU Memory Allocated (VRAM%)")),
        fan_rpm=count(_first_number(card, "Fan RPM")),
        sclk_hz=_parse_clock_hz(card.get("sclk clock speed:")),
        mclk_hz=_parse_clock_hz(card.get("mclk clock speed:")),
    )


def _first_number(card: Mapping[str, object], *keys: str) -> float | None:
    return next((value for key in keys if (value := number(card.get(key))) is not None), None)


def _parse_clock_hz(text: object) -> int | None:
    found = _CLOCK.fullmatch(text.strip()) if isinstance(text, str) else None
    return hertz(found[1]) if found else None


def _find_name(card: Mapping[str, object]) -> str | None:
    for key in ("Card series", "Card Series", "Device Name"):
        text = card.get(key)
        # Without the PCI ID database the tool prints the vendor's number instead of a name.
        if isinstance(text, str) and text.strip() and not text.startswith(("0x", "N/A")):
            return text.strip()[:200]
    return None


def _parse_gfx_version(text: object) -> str | None:
    if not isinstance(text, str) or not _GFX.fullmatch(text):
        return None
    return _CORRECT_GFX.get(text, text)
