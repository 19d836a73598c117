"""What `doctor` looks at of ROCm and of the drivers: versions, gfx overrides and permissions; it repairs nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.config import Settings
from supervisor.control.types import DoctorLine
from supervisor.core.readings import GpuReading
from supervisor.core.troubles import troubles_of

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_VERSION = re.compile(r"\d+(?:\.\d+){1,3}\S*")
_TRIPLE = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", re.ASCII)


def rocm(root: Path = Path("/")) -> Iterator[DoctorLine]:
    """Look at which ROCm and which kernel drivers are there; trainings may bring a ROCm of their own."""
    found = [f"{version} in {folder}" for folder, version in _rocms(root)]
    yield DoctorLine(name="rocm", level="ok", found=", ".join(found) or "none installed; torch may bring its own")
    for driver in ("amdgpu", "nvidia"):
        folder = root / "sys/module" / driver
        if folder.exists():
            version = _text(folder / "version") or "the kernel's own"
            yield DoctorLine(name=f"driver {driver}", level="ok", found=version)


def overrides(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorLine]:
    """Look at where HSA_OVERRIDE_GFX_VERSION makes ROCm load another card's kernels, and whether it can be one."""
    said = {f"job {name}": job.env[OVERRIDE] for name, job in settings.jobs.items() if OVERRIDE in job.env}
    if OVERRIDE in environment:
        said["this shell"] = environment[OVERRIDE]
    for where, value in said.items():
        target = gfx_of(value)
        yield DoctorLine(
            name="gfx override",
            level="ok" if target else "warn",
            found=f"{where}: {OVERRIDE}={value}" + (f", kernels of {target}" if target else " is no version"),
            remedy=None if target else 'give three numbers, as "10.3.0" for gfx1030',
        )


def gfx_of(override: str) -> str | None:
    """Return the target that an override names: 10.3.0 is gfx1030, 9.0.10 gfx90a; None for what is no version."""
    found = _TRIPLE.fullmatch(override.strip())
    if found is None:
        return None
    major, minor, stepping = (int(one) for one in found.groups())
    return f"gfx{major}{minor:x}{stepping:x}" if minor < 16 and stepping < 16 else None


def known_troubles(cards: tuple[GpuReading, ...]) -> Iterator[DoctorLine]:
    """Say what each card is publicly known to suffer from, with the source."""
    for card in cards:
        for trouble in troubles_of(card.gfx_version):
            yield DoctorLine(
                name=f"known {card.gpu}",
                level="warn" if trouble.remedy else "ok",
                found=f"{card.gfx_version}: {trouble.what} ({trouble.source})",
                remedy=trouble.remedy,
            )


def nvidia_devices(dev: Path = Path("/dev")) -> Iterator[DoctorLine]:
    """Look at whether this user may ask NVIDIA's driver."""
    for node in (dev / "nvidiactl", *sorted(dev.glob("nvidia[0-9]*"))):
        if node.exists() and not os.access(node, os.R_OK | os.W_OK):
            yield DoctorLine(
                name="devices",
                level="fail",
                found=f"{node} is closed to this user",
                remedy=f"sudo chmod 0666 {node}, or NVreg_DeviceFileMode=0666 for the nvidia module",
            )


def sensor_files(sys_root: Path = Path("/sys")) -> Iterator[DoctorLine]:
    """Look at whether this user may read the sensors that amdgpu shows; a container may have hidden or closed them."""
    for device in sorted((sys_root / "class/drm").glob("card[0-9]*/device")):
        if "DRIVER=amdgpu" not in (_text(device / "uevent") or ""):
            continue
        files = (device / "gpu_busy_percent", device / "mem_info_vram_used", device / "gpu_metrics")
        closed = [one.name for one in files if one.exists() and not os.access(one, os.R_OK)]
        if closed:
            yield DoctorLine(
                name="devices",
                level="warn",
                found=f"{device}: {', '.join(closed)} cannot be read by this user",
                remedy=f"sudo chmod a+r {' '.join(str(device / one) for one in closed)}",
            )


def _rocms(root: Path) -> Iterator[tuple[Path, str]]:
    seen: set[Path] = set()
    for folder in (root / "opt/rocm", *sorted((root / "opt").glob("rocm-*"))):
        found = _VERSION.match(_text(folder / ".info/version") or "")
        if found and folder.resolve() not in seen:
            seen.add(folder.resolve())
            yield folder, found[0]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
