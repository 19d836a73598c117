"""Answers each line on standard input with one line of JSON about NVIDIA GPUs; runs as a separate process.

NVML may block in the driver while a GPU is being reset, and a crash in it ends the process that loaded it, so the
daemon does not load it. This file needs only the standard library and the package nvidia-ml-py.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> int:
    """Write `{"ready": true}` or `{"error": ...}`, then answer each line until standard input ends."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError as error:
        _write_answer({"error": f"nvidia-ml-py is not installed ({error})"})
        return 1
    except Exception as error:  # noqa: BLE001 (NVML's errors are classes of the package that may be absent)
        _write_answer({"error": f"NVML: {error}"})
        return 1
    _write_answer({"ready": True})
    for _ in sys.stdin:
        try:
            cards = [
                _read_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())
            ]
            _write_answer({"cards": cards})
        except Exception as error:  # noqa: BLE001 (this line is the fence)
            _write_answer({"error": f"{type(error).__name__}: {error}"})
    return 0


def _read_gpu(nvml: Any, card: Any) -> dict[str, object]:
    """Return NVML's values of a GPU in NVML's units; None for values that it does not support."""
    use, memory = _query_or_none(nvml.nvmlDeviceGetUtilizationRates, card), _read_memory(nvml, card)
    corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {
        "index": _query_or_none(nvml.nvmlDeviceGetIndex, card),
        "bus_id": _decode_text(nvml.nvmlDeviceGetPciInfo(card).busId),
        "name": _decode_text(_query_or_none(nvml.nvmlDeviceGetName, card)),
        "uuid": _decode_text(_query_or_none(nvml.nvmlDeviceGetUUID, card)),
        "busy": getattr(use, "gpu", None),
        "memory_busy": getattr(use, "memory", None),
        "memory_used": getattr(memory, "used", None),
        "memory_total": getattr(memory, "total", None),
        "temperature": _query_or_none(nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
        "memory_temperature": _read_field(nvml, card, nvml.NVML_FI_DEV_MEMORY_TEMP),
        "power_mw": _query_or_none(nvml.nvmlDeviceGetPowerUsage, card),
        "power_cap_mw": _query_or_none(nvml.nvmlDeviceGetEnforcedPowerLimit, card),
        "sm_mhz": _query_or_none(nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
        "memory_mhz": _query_or_none(nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_MEM),
        "level": _query_or_none(nvml.nvmlDeviceGetPerformanceState, card),
        "reasons": _query_or_none(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card),
        "lanes": _query_or_none(nvml.nvmlDeviceGetCurrPcieLinkWidth, card),
        "generation": _query_or_none(nvml.nvmlDeviceGetCurrPcieLinkGeneration, card),
        "replays": _query_or_none(nvml.nvmlDeviceGetPcieReplayCounter, card),
        "ecc_corrected": _query_or_none(nvml.nvmlDeviceGetTotalEccErrors, card, corrected, nvml.NVML_VOLATILE_ECC),
        "ecc_uncorrected": _query_or_none(nvml.nvmlDeviceGetTotalEccErrors, card, uncorrected, nvml.NVML_VOLATILE_ECC),
        "processes": _list_processes(nvml, card),
    }


def _read_memory(nvml: Any, card: Any) -> Any:
    """Return the memory as nvidia-smi reports it: the older call includes the driver's reserved memory in `used`."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    newer = None if version is None else _query_or_none(nvml.nvmlDeviceGetMemoryInfo, card, version)
    return _query_or_none(nvml.nvmlDeviceGetMemoryInfo, card) if newer is None else newer


def _list_processes(nvml: Any, card: Any) -> list[dict[str, object]] | None:
    found = _query_or_none(nvml.nvmlDeviceGetComputeRunningProcesses, card)
    if not isinstance(found, list):
        return None
    return [{"pid": match.pid, "memory": match.usedGpuMemory, "name": _read_process_name(match.pid)} for match in found]


def _read_process_name(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123 (startup)
            return file.read().strip() or None
    except OSError:
        return None


def _read_field(nvml: Any, card: Any, field: int) -> object:
    values = _query_or_none(nvml.nvmlDeviceGetFieldValues, card, [field])
    if not isinstance(values, (list, tuple)) and not hasattr(values, "__getitem__"):
        return None
    value = values[0]
    return int(value.value.uiVal) if value.nvmlReturn == 0 else None


def _query_or_none(query: Any, *arguments: object) -> Any:
    try:
        return query(*arguments)
    except Exception:  # noqa: BLE001 (a function that the driver lacks raises another class than one that fails)
        return None


def _decode_text(value: object) -> object:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _write_answer(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
