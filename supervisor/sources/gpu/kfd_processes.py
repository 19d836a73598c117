"""Reads which processes hold GPU memory, from the compute driver and from /proc/PID/fdinfo.

The compute driver lists processes that use ROCm, with their VRAM. fdinfo lists every client of the graphics driver,
also with GTT and engine times, but only for processes that this user may inspect. Keys and units: the kernel's
Documentation/gpu/drm-usage-stats.rst and amdgpu's; kernels before 5.19 print other keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from supervisor.core.readings import GpuProcess, GpuReading
from supervisor.sources.gpu.sensor_values import bytes_of, count, number, pci_address
from supervisor.sources.kernel_files import read_text


def read_kfd_processes(
    sys_root: Path, ids_by_gpu: Mapping[str, Iterable[str]], readings: tuple[GpuReading, ...]
) -> tuple[GpuReading, ...]:
    """Return the readings with the compute driver's processes; unchanged if that driver is not loaded."""
    folder = f"{sys_root}/class/kfd/kfd/proc"
    try:
        pids = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())  # noqa: PTH208 (a third of the cost)
    except OSError:
        return readings
    return tuple(
        replace(reading, processes=tuple(_list_holders(folder, pids, tuple(ids_by_gpu.get(reading.gpu, ())))))
        for reading in readings
    )


def _list_holders(folder: str, pids: Iterable[int], ids: tuple[str, ...]) -> Iterable[GpuProcess]:
    for pid in pids:
        parts = [count(number(read_text(f"{folder}/{pid}/vram_{text}"))) for text in ids]
        known = [part for part in parts if part is not None]
        if known:
            yield GpuProcess(pid=pid, name=process_name(pid), vram_bytes=sum(known))


def parse_fdinfo(text: str) -> tuple[str, str, GpuProcess] | None:
    """Return GPU, client and usage (with pid 0) of one fdinfo text of the amdgpu driver; None for other drivers."""
    lines = (line.partition(":")[::2] for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, value in lines}
    gpu = pci_address(fields.get("drm-pdev") or fields.get("pdev"))
    if gpu is None or fields.get("drm-driver", "amdgpu") != "amdgpu":
        return None
    vram = fields.get("drm-memory-vram") or fields.get("vram mem")
    gtt = fields.get("drm-memory-gtt") or fields.get("gtt mem")
    engines = [fields[key] for key in fields if key.startswith("drm-engine-") and "capacity" not in key]
    times = [number(text.removesuffix("ns").strip()) for text in engines]
    known = [time for time in times if time is not None and time >= 0]
    process = GpuProcess(
        pid=0, vram_bytes=_parse_bytes(vram), gtt_bytes=_parse_bytes(gtt), engine_s=sum(known) / 1e9 if known else None
    )
    return gpu, fields.get("drm-client-id") or fields.get("pasid") or "", process


def read_fdinfo(pids: Iterable[int], proc_root: Path = Path("/proc")) -> dict[str, tuple[GpuProcess, ...]]:
    """Return the clients of amdgpu among `pids` by GPU; processes that this user may not inspect are omitted."""
    found: dict[str, list[GpuProcess]] = {}
    for pid in pids:
        seen: dict[tuple[str, str], GpuProcess] = {}
        for text in _read_fdinfos(f"{proc_root}/{pid}"):
            if (parsed := parse_fdinfo(text)) is not None:
                seen[parsed[0], parsed[1]] = parsed[2]
        for gpu in {gpu for gpu, _ in seen}:
            clients = [gpu_process for (address, _), gpu_process in seen.items() if address == gpu]
            found.setdefault(gpu, []).append(_sum_clients(pid, process_name(pid, proc_root), clients))
    return {gpu: tuple(processes) for gpu, processes in found.items()}


def merged(known: tuple[GpuProcess, ...] | None, more: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...] | None:
    """Return the processes of both lists, each once, with the larger VRAM, since either list may be incomplete."""
    if known is None and not more:
        return None
    by_pid = {gpu_process.pid: gpu_process for gpu_process in known or ()}
    for gpu_process in more:
        before = by_pid.get(gpu_process.pid)
        if before is None:
            by_pid[gpu_process.pid] = gpu_process
            continue
        sizes = [size for size in (before.vram_bytes, gpu_process.vram_bytes) if size is not None]
        by_pid[gpu_process.pid] = replace(
            gpu_process, name=gpu_process.name or before.name, vram_bytes=max(sizes) if sizes else None
        )
    return tuple(by_pid[pid] for pid in sorted(by_pid))


def process_name(pid: int, proc_root: Path = Path("/proc")) -> str | None:
    """Return the kernel's name of a process, None if it has ended."""
    return read_text(f"{proc_root}/{pid}/comm")


def _sum_clients(pid: int, name: str | None, clients: Iterable[GpuProcess]) -> GpuProcess:
    known = tuple(clients)
    return GpuProcess(
        pid=pid,
        name=name,
        vram_bytes=_sum_known(gpu_process.vram_bytes for gpu_process in known),
        gtt_bytes=_sum_known(gpu_process.gtt_bytes for gpu_process in known),
        engine_s=None
        if all(gpu_process.engine_s is None for gpu_process in known)
        else sum(gpu_process.engine_s or 0.0 for gpu_process in known),
    )


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _read_fdinfos(process: str) -> Iterable[str]:
    try:
        descriptors = os.listdir(f"{process}/fd")  # noqa: PTH208 (every process is gone through)
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{process}/fd/{descriptor}")  # noqa: PTH115 (the same)
        except OSError:
            continue
        if target.startswith("/dev/dri/") and (text := read_text(f"{process}/fdinfo/{descriptor}")):
            yield text


def _parse_bytes(text: str | None) -> int | None:
    value, _, unit = (text or "").partition(" ")
    return bytes_of(value, unit.strip() or "b")
