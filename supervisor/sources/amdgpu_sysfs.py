"""Reads AMD cards from sysfs, the cheapest source there is; it never wakes a suspended card and opens no device.

Meanings and units: the kernel's Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from supervisor.core.miopen import gfx_name
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.plausible import celsius, count, number, pci_address, percent, unique_id, watts
from supervisor.sources.source import SourceSilentError

REDISCOVER_S = 60.0
"""Cards and their hwmon folders get new numbers when the driver is loaded again."""
_CARD = re.compile(r"card\d+")
_ASLEEP = frozenset({"suspended", "suspending"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """One card: what never changes, and where to read what does."""

    gpu: str
    device: str
    name: str | None
    unique_id: str | None
    gfx_version: str | None
    temperatures: dict[str, str] = field(default_factory=dict)
    """Path by label: `edge`, `junction`, `mem`."""
    clocks: dict[str, str] = field(default_factory=dict)
    """Path by label: `sclk`, `mclk`."""
    powers: tuple[str, ...] = ()
    power_cap: str = ""
    fan: str = ""


class AmdgpuSysfs:
    """Every card that the amdgpu driver holds, under `sys_root` (`/sys`)."""

    name: ClassVar[str] = "sysfs"
    interval_s: ClassVar[float] = 0.0
    deadline_s: ClassVar[float] = 5.0
    wait_s: ClassVar[float] = 0.5

    def __init__(self, sys_root: Path = Path("/sys")) -> None:
        self._root = sys_root
        self._cards: tuple[_Card, ...] = ()
        self._discovered: Moment | None = None

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        """Return one reading a card. Raises SourceSilentError where the driver holds none.

        A file that answers EPERM or EBUSY (the card is being reset) leaves None behind.
        """
        if self._discovered is None or now.seconds_since(self._discovered) >= REDISCOVER_S:
            self._cards, self._discovered = tuple(_discover(self._root)), now
        if not self._cards:
            raise SourceSilentError(f"no card of the amdgpu driver under {self._root}/class/drm")
        readings = tuple(reading for card in self._cards if (reading := _read_card(card, now)) is not None)
        if len(readings) < len(self._cards):
            self._discovered = None
        return readings

    def close(self) -> None:
        """Nothing is held open."""


def _read_card(card: _Card, now: Moment) -> GpuReading | None:
    status = _text(f"{card.device}/power/runtime_status")
    if status is None and not os.path.exists(card.device):  # noqa: PTH110 (a Path would cost more than the question)
        return None
    if status in _ASLEEP:
        return GpuReading(
            at=now,
            gpu=card.gpu,
            source=AmdgpuSysfs.name,
            name=card.name,
            unique_id=card.unique_id,
            gfx_version=card.gfx_version,
            runtime_status=status,
        )
    device, temperatures, clocks = card.device, card.temperatures, card.clocks
    return GpuReading(
        at=now,
        gpu=card.gpu,
        source=AmdgpuSysfs.name,
        name=card.name,
        unique_id=card.unique_id,
        gfx_version=card.gfx_version,
        gpu_busy_percent=percent(_number(f"{device}/gpu_busy_percent")),
        memory_busy_percent=percent(_number(f"{device}/mem_busy_percent")),
        vram_used_bytes=count(_number(f"{device}/mem_info_vram_used")),
        vram_total_bytes=count(_number(f"{device}/mem_info_vram_total")),
        gtt_used_bytes=count(_number(f"{device}/mem_info_gtt_used")),
        gtt_total_bytes=count(_number(f"{device}/mem_info_gtt_total")),
        edge_c=_millidegrees(temperatures.get("edge")),
        junction_c=_millidegrees(temperatures.get("junction")),
        memory_c=_millidegrees(temperatures.get("mem")),
        power_w=next((value for path in card.powers if (value := _microwatts(path)) is not None), None),
        power_cap_w=_microwatts(card.power_cap),
        fan_rpm=count(_number(card.fan)),
        sclk_hz=count(_number(clocks.get("sclk"))),
        mclk_hz=count(_number(clocks.get("mclk"))),
        runtime_status=status,
    )


def _discover(root: Path) -> Iterator[_Card]:
    """Look through the cards; only files that never touch the hardware are read here."""
    entries = [entry for entry in _names(root / "class/drm") if _CARD.fullmatch(entry)]
    versions = _gfx_versions(root) if entries else {}
    for entry in entries:
        device = f"{root}/class/drm/{entry}/device"
        uevent = dict(line.partition("=")[::2] for line in (_text(f"{device}/uevent") or "").splitlines())
        gpu = pci_address(uevent.get("PCI_SLOT_NAME"))
        if uevent.get("DRIVER") != "amdgpu" or gpu is None:
            continue
        kfd_name, gfx_version = versions.get(gpu, (None, None))
        hwmon = _hwmon(device)
        yield _Card(
            gpu=gpu,
            device=device,
            name=_text(f"{device}/product_name") or kfd_name,
            unique_id=unique_id(_text(f"{device}/unique_id")),
            gfx_version=gfx_version,
            temperatures=_by_label(hwmon, "temp"),
            clocks=_by_label(hwmon, "freq"),
            powers=tuple(f"{hwmon}/{file}" for file in ("power1_average", "power1_input")) if hwmon else (),
            power_cap=f"{hwmon}/power1_cap" if hwmon else "",
            fan=f"{hwmon}/fan1_input" if hwmon else "",
        )


def _hwmon(device: str) -> str | None:
    folders = _names(Path(device, "hwmon"))
    return next((f"{device}/hwmon/{folder}" for folder in folders if folder.startswith("hwmon")), None)


def _by_label(hwmon: str | None, kind: str) -> dict[str, str]:
    """Map label to input file: which of temp1, temp2, temp3 is the junction differs from card to card."""
    if hwmon is None:
        return {}
    labels = ((_text(f"{hwmon}/{kind}{index}_label"), f"{hwmon}/{kind}{index}_input") for index in range(1, 9))
    return {label: path for label, path in labels if label}


def _gfx_versions(root: Path) -> dict[str, tuple[str | None, str | None]]:
    """Map PCI address to the compute driver's name and gfx version of the card (`navi10`, `gfx1010`)."""
    found: dict[str, tuple[str | None, str | None]] = {}
    nodes = root / "class/kfd/kfd/topology/nodes"
    for entry in _names(nodes):
        text = _text(f"{nodes}/{entry}/properties") or ""
        properties = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) >= 2)
        location, domain = number(properties.get("location_id")), number(properties.get("domain", "0"))
        version = number(properties.get("gfx_target_version"))
        if location is None or domain is None or not version or not 0 < location < 1 << 16:
            continue
        where = int(location)
        gpu = f"{int(domain):04x}:{where >> 8:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"
        found[gpu] = (_text(f"{nodes}/{entry}/name"), gfx_name(int(version)))
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _text(path: str) -> str | None:
    """Return a small file's text without blanks around it, None where it cannot be read or is empty."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096).decode("ascii", "replace").strip("\n\t \x00") or None
    except OSError:
        # EPERM or EBUSY: suspended or in reset. EINVAL: the firmware does not know this sensor.
        return None
    finally:
        os.close(fd)


def _number(path: str | None) -> float | None:
    return number(_text(path)) if path else None


def _millidegrees(path: str | None) -> float | None:
    value = _number(path)
    return None if value is None else celsius(value / 1000)


def _microwatts(path: str) -> float | None:
    value = _number(path)
    return None if value is None else watts(value / 1e6)
