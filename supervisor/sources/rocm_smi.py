"""Reads cards through `rocm-smi --json`, a fallback: a process a reading, in a group of its own that a deadline ends.

Only standard output is read (its warnings go to standard error), values are taken by name, and what is absent or
`N/A` is None. Key names: rocm_smi.py of ROCm 2.x to 7.x.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import ClassVar

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.plausible import celsius, count, number, pci_address, percent, unique_id, watts
from supervisor.sources.source import SourceSilentError

FLAGS = (
    "--showuse", "--showmemuse", "--showmeminfo", "vram", "gtt", "--showtemp", "--showpower", "--showmaxpower",
    "--showfan", "--showclocks", "--showid", "--showuniqueid", "--showbus", "--showproductname", "--json",
)  # fmt: skip
_CARD = re.compile(r"card\d+")
_CLOCK = re.compile(r"\(\s*(\d+(?:\.\d+)?)\s*Mhz\s*\)", re.IGNORECASE)
_GFX = re.compile(r"gfx[0-9a-f]{3,6}")
_MISSPELT_GFX = {"gfx9010": "gfx90a", "gfx9012": "gfx90c"}
"""ROCm 6 prints the stepping in decimal."""


class RocmSmi:
    """The tool of the name, run once a reading."""

    name: ClassVar[str] = "rocm-smi"
    wait_s: ClassVar[float] = 0.0

    def __init__(
        self, command: Sequence[str] = ("rocm-smi",), interval_s: float = 10.0, deadline_s: float = 10.0
    ) -> None:
        self._command = (*command, *FLAGS)
        self._undead: subprocess.Popen[bytes] | None = None
        self.interval_s = interval_s
        self.deadline_s = deadline_s

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Run the tool. Raises SourceSilentError where it is missing, too slow, or sees no card."""
        if self._undead is not None and self._undead.poll() is None:
            # It waits in the kernel, where no signal reaches it; a second one would only join it there.
            raise SourceSilentError(f"an earlier rocm-smi (pid {self._undead.pid}) cannot be ended")
        readings = parse(self._run(), now)
        if not readings:
            raise SourceSilentError("rocm-smi names no card")
        return readings

    def close(self) -> None:
        """Nothing is held open."""

    def _run(self) -> str:
        try:
            tool = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            raise SourceSilentError(f"{self._command[0]}: {error.strerror or error}") from error
        try:
            stdout, stderr = tool.communicate(timeout=self.deadline_s)
        except subprocess.TimeoutExpired as late:
            self._end(tool)
            raise SourceSilentError(f"no answer within {self.deadline_s:.0f} s") from late
        if b"{" not in stdout:
            said = stderr.decode("utf-8", "backslashreplace").strip().splitlines()
            raise SourceSilentError(said[-1][:200] if said else f"rocm-smi said nothing, status {tool.returncode}")
        return stdout.decode("utf-8", "backslashreplace")

    def _end(self, tool: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGKILL)
        for pipe in (tool.stdout, tool.stderr):
            if pipe:
                pipe.close()
        try:
            tool.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._undead = tool


def parse(stdout: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return one reading for each card that the JSON names with its PCI address; () for anything else."""
    cards = _document(stdout)
    readings = (_reading(card, at) for key, card in cards.items() if _CARD.fullmatch(key) and isinstance(card, dict))
    return tuple(reading for reading in readings if reading is not None)


def _document(stdout: str) -> Mapping[str, object]:
    """Return the JSON object in the text, whatever lines stand before it; {} where there is none or it is cut."""
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


def _reading(card: Mapping[str, object], at: Moment) -> GpuReading | None:
    gpu = pci_address(card.get("PCI Bus"))
    if gpu is None:
        return None
    # "GPU memory use (%)" is the memory controller's activity up to ROCm 6.1.0, as the later name says.
    return GpuReading(
        at=at,
        gpu=gpu,
        source=RocmSmi.name,
        name=_name(card),
        unique_id=unique_id(card.get("Unique ID")),
        gfx_version=_gfx(card.get("GFX Version")),
        gpu_busy_percent=percent(_first(card, "GPU use (%)")),
        memory_busy_percent=percent(_first(card, "GPU Memory Read/Write Activity (%)", "GPU memory use (%)")),
        vram_used_bytes=count(_first(card, "VRAM Total Used Memory (B)")),
        vram_total_bytes=count(_first(card, "VRAM Total Memory (B)")),
        gtt_used_bytes=count(_first(card, "GTT Total Used Memory (B)")),
        gtt_total_bytes=count(_first(card, "GTT Total Memory (B)")),
        edge_c=celsius(_first(card, "Temperature (Sensor edge) (C)")),
        junction_c=celsius(_first(card, "Temperature (Sensor junction) (C)")),
        memory_c=celsius(_first(card, "Temperature (Sensor memory) (C)")),
        power_w=watts(_first(card, "Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)")),
        power_cap_w=watts(_first(card, "Max Graphics Package Power (W)")),
        fan_rpm=count(_first(card, "Fan RPM")),
        sclk_hz=_clock(card.get("sclk clock speed:")),
        mclk_hz=_clock(card.get("mclk clock speed:")),
    )


def _first(card: Mapping[str, object], *keys: str) -> float | None:
    return next((value for key in keys if (value := number(card.get(key))) is not None), None)


def _clock(text: object) -> int | None:
    found = _CLOCK.fullmatch(text.strip()) if isinstance(text, str) else None
    return count(number(float(found[1]) * 1e6)) if found else None


def _name(card: Mapping[str, object]) -> str | None:
    for key in ("Card series", "Card Series", "Device Name"):
        text = card.get(key)
        # Without the PCI ID database the tool prints the vendor's number instead of a name.
        if isinstance(text, str) and text.strip() and not text.startswith(("0x", "N/A")):
            return text.strip()[:200]
    return None


def _gfx(text: object) -> str | None:
    if not isinstance(text, str) or not _GFX.fullmatch(text):
        return None
    return _MISSPELT_GFX.get(text, text)
