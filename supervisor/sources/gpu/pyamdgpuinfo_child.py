"""Answers each line on standard input with one line of JSON about the GPUs; runs as a separate process.

pyamdgpuinfo is GPL-3.0-only, holds the interpreter's lock in every ioctl and may block in the kernel, so the daemon
does not import it. This file needs only the standard library and that package.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any


def main() -> int:
    """Write `{"ready": true}` or `{"error": ...}`, then answer each line until standard input ends."""
    try:
        library = importlib.import_module("pyamdgpuinfo")
    except ImportError as error:
        _write_answer({"error": f"not installed ({error})"})
        return 1
    _write_answer({"ready": True})
    for _ in sys.stdin:
        try:
            _write_answer({"cards": cards(library)})
        except Exception as error:  # noqa: BLE001 (this line is the fence: the library raises anything)
            _write_answer({"error": f"{type(error).__name__}: {error}"})
    return 0


def cards(library: Any) -> list[dict[str, object]]:
    """Return the values of each GPU; None for a sensor that it lacks."""
    return [_read_gpu(library.get_gpu(index)) for index in range(library.detect_gpus())]


def _read_gpu(gpu: Any) -> dict[str, object]:
    memory = gpu.memory_info
    return {
        "pci_slot": gpu.pci_slot,
        "name": gpu.name,
        "load": _query_or_none(gpu.query_load),
        "vram_used": _query_or_none(gpu.query_vram_usage),
        "vram_total": memory.get("vram_size"),
        "gtt_used": _query_or_none(gpu.query_gtt_usage),
        "gtt_total": memory.get("gtt_size"),
        "temperature": _query_or_none(gpu.query_temperature),
        "power": _query_or_none(gpu.query_power),
        "sclk": _query_or_none(gpu.query_sclk),
        "mclk": _query_or_none(gpu.query_mclk),
    }


def _query_or_none(query: Callable[[], object]) -> object:
    try:
        return query()
    except (RuntimeError, OSError):
        return None


def _write_answer(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
