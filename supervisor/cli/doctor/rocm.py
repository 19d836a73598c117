"""The checks of `doctor` for ROCm and the drivers: versions, gfx overrides, known issues and permissions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.config import Settings
from supervisor.control.types import DoctorLine
from supervisor.core.readings import GpuReading
from supervisor.core.remedies.gpu_issues import issues_of
from supervisor.core.remedies.presets import find_harms, presets_of

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_VERSION = re.compile(r"\d+(?:\.\d+){1,3}\S*")
_TRIPLE = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", re.ASCII)


def rocm(root: Path = Path("/")) -> Iterator[DoctorLine]:
    """List the installed ROCm and kernel drivers; the torch of a training may include its own ROCm."""
    found = [f"{version} in {folder}" for folder, version in _find_installations(root)]
    yield DoctorLine(name="rocm", level="ok", found=", ".join(found) or "not installed; torch may include its own")
    for driver in ("amdgpu", "nvidia"):
        folder = root / "sys/module" / driver
        if folder.exists():
            version = _read_text(folder / "version") or "built into the kernel"
            yield DoctorLine(name=f"driver {driver}", level="ok", found=version)


def overrides(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorLine]:
    """Check each HSA_OVERRIDE_GFX_VERSION, which makes ROCm load another GPU's kernels."""
    overrides_by_place = {
        f"job {name}": job.env[OVERRIDE] for name, job in settings.jobs.items() if OVERRIDE in job.env
    }
    if OVERRIDE in environment:
        overrides_by_place["this shell"] = environment[OVERRIDE]
    for where, value in overrides_by_place.items():
        target = gfx_of(value)
        yield DoctorLine(
            name="gfx override",
            level="ok" if target else "warn",
            found=f"{where}: {OVERRIDE}={value}" + (f", kernels of {target}" if target else " is not a version"),
            remedy=None if target else 'write three numbers, such as "10.3.0" for gfx1030',
        )


def variables(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorLine]:
    """Name the variables of each job, and of this shell, that do harm in a training."""
    places = {f"job {name}": job.env for name, job in settings.jobs.items()}
    for where, env in {**places, "this shell": environment}.items():
        for harm, what in find_harms(env):
            yield DoctorLine(
                name="variable",
                level="warn",
                found=f"{where}: {harm.name}={env[harm.name]}: {what} ({harm.source})",
                remedy=f"take {harm.name} out of the environment",
            )


def gfx_of(override: str) -> str | None:
    """Return the target that an override names: 10.3.0 is gfx1030, 9.0.10 gfx90a; None for an invalid version."""
    found = _TRIPLE.fullmatch(override.strip())
    if found is None:
        return None
    major, minor, stepping = (int(group) for group in found.groups())
    return f"gfx{major}{minor:x}{stepping:x}" if minor < 16 and stepping < 16 else None


def known_issues(gpus: tuple[GpuReading, ...]) -> Iterator[DoctorLine]:
    """List the publicly known issues of each GPU, with their source."""
    for gpu in gpus:
        for issue in issues_of(gpu.gfx_version):
            yield DoctorLine(
                name=f"known {gpu.gpu}",
                level="warn" if issue.remedy else "ok",
                found=f"{gpu.gfx_version}: {issue.what} ({issue.source})",
                remedy=issue.remedy,
            )


def presets(gpus: tuple[GpuReading, ...]) -> Iterator[DoctorLine]:
    """List the variables that were published as a help for each GPU, with their source."""
    for gpu in gpus:
        for preset in presets_of(gpu.gfx_version):
            values = ", ".join(f"{name}={value}" for name, value in preset.env.items())
            yield DoctorLine(
                name=f"preset {gpu.gpu}",
                level="ok",
                found=f"{gpu.gfx_version}, ROCm {preset.rocm}: {preset.what} ({preset.source}): "
                f'preset = "{preset.name}" in a job sets {values}',
            )


def nvidia_devices(dev: Path = Path("/dev")) -> Iterator[DoctorLine]:
    """Check whether this user may open the devices of NVIDIA's driver."""
    for node in (dev / "nvidiactl", *sorted(dev.glob("nvidia[0-9]*"))):
        if node.exists() and not os.access(node, os.R_OK | os.W_OK):
            yield DoctorLine(
                name="devices",
                level="fail",
                found=f"{node} is not accessible to this user",
                remedy=f"run `sudo chmod 0666 {node}`, or load the nvidia module with NVreg_DeviceFileMode=0666",
            )


def sensor_files(sys_root: Path = Path("/sys")) -> Iterator[DoctorLine]:
    """Check whether this user may read the sensors of amdgpu; in a container they may be hidden or unreadable."""
    for device in sorted((sys_root / "class/drm").glob("card[0-9]*/device")):
        if "DRIVER=amdgpu" not in (_read_text(device / "uevent") or ""):
            continue
        files = (device / "gpu_busy_percent", device / "mem_info_vram_used", device / "gpu_metrics")
        closed = [path.name for path in files if path.exists() and not os.access(path, os.R_OK)]
        if closed:
            yield DoctorLine(
                name="devices",
                level="warn",
                found=f"{device}: {', '.join(closed)} cannot be read by this user",
                remedy=f"sudo chmod a+r {' '.join(str(device / text) for text in closed)}",
            )


def _find_installations(root: Path) -> Iterator[tuple[Path, str]]:
    seen: set[Path] = set()
    for folder in (root / "opt/rocm", *sorted((root / "opt").glob("rocm-*"))):
        found = _VERSION.match(_read_text(folder / ".info/version") or "")
        if found and folder.resolve() not in seen:
            seen.add(folder.resolve())
            yield folder, found[0]


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
