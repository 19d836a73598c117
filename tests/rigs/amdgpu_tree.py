"""Simulated AMD cards in sysfs: as a folder for readers that take a root, and as /sys for real tools.

    tree = AmdgpuTree.build(tmp_path)            # an RX 5600 XT; tree.sys_root for sysfs readers, no rights needed
    tree.set("gpu_busy_percent", 91)             # the next reading sees it
    tree.run(["rocm-smi", "--showuse"])          # the tool sees the tree as /sys; needs root

File names and units are those of the kernel's Documentation/gpu/amdgpu; the numbers are those of a card at work.
It has no /dev/dri and answers no ioctl.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _MS_BIND = 0x00020000, 0x4000, 1 << 18, 4096
_KEPT = ("fs", "kernel", "devices/system")
"""Parts of the real /sys that programs need to run at all."""

DEVICE: Mapping[str, object] = {
    "vendor": "0x1002",
    "device": "0x731f",
    "subsystem_vendor": "0x1da2",
    "subsystem_device": "0xe411",
    "revision": "0xca",
    "class": "0x030000",
    "unique_id": "3c1f5a7788e0d412",
    "vbios_version": "113-1E4110U-O42",
    "gpu_busy_percent": 97,
    "mem_busy_percent": 38,
    "mem_info_vram_total": 6425673728,
    "mem_info_vram_used": 4812345344,
    "mem_info_gtt_total": 16777216000,
    "mem_info_gtt_used": 52428800,
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": 16,
    "pcie_replay_count": 0,
    "pp_dpm_sclk": "0: 300Mhz \n1: 800Mhz \n2: 1750Mhz *",
    "pp_dpm_mclk": "0: 100Mhz \n1: 500Mhz \n2: 625Mhz \n3: 875Mhz *",
    "power_dpm_force_performance_level": "auto",
    "power/runtime_status": "active",
    "power/control": "auto",
}
_LINK_BANDWIDTH: Mapping[str, int] = {"min_bandwidth": 312, "max_bandwidth": 16000, "flags": 1}
HWMON: Mapping[str, object] = {
    "name": "amdgpu",
    "temp1_label": "edge",
    "temp1_input": 63000,
    "temp2_label": "junction",
    "temp2_input": 79000,
    "temp3_label": "mem",
    "temp3_input": 74000,
    "power1_average": 131000000,
    "power1_cap": 160000000,
    "fan1_input": 1743,
    "fan1_max": 3200,
    "pwm1": 110,
    "pwm1_max": 255,
    "in0_label": "vddgfx",
    "in0_input": 1000,
    "freq1_label": "sclk",
    "freq1_input": 1750000000,
    "freq2_label": "mclk",
    "freq2_input": 875000000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Where a simulated card sits, and what about it differs from the RX 5600 XT of `DEVICE` and `HWMON`."""

    address: str = "0000:0a:00.0"
    index: int = 0
    driver: str = "amdgpu"
    gfx_target_version: int = 100100
    kfd_name: str = "navi10"
    device: Mapping[str, object] = field(default_factory=dict)
    hwmon: Mapping[str, object] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    """Files of the RX 5600 XT that this card has not: `hwmon/fan1_input`."""

    @property
    def folder(self) -> str:
        return f"devices/pci0000:00/0000:00:03.1/{self.address}"


def gpu_metrics(version: tuple[int, int], size: int, **values: tuple[int, str, int]) -> bytes:
    """Return a binary table: each value with its offset and struct letter, everything else absent."""
    table = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", table, 0, size, *version)
    for offset, letter, value in values.values():
        struct.pack_into("<" + letter, table, offset, value)
    return bytes(table)


def mi50(address: str = "0000:63:00.0", index: int = 0) -> Card:
    """An Instinct MI50 with 32 GB: passive, with error counters and a table v1.1 without throttle word."""
    ras = {f"ras/{block}_err_count": f"ue: {ue}\nce: {ce}" for block, ue, ce in (("umc", 1, 12), ("gfx", 0, 3))}
    return Card(
        address=address,
        index=index,
        gfx_target_version=90006,
        kfd_name="vega20",
        device={
            "device": "0x66a1",
            "subsystem_vendor": "0x1002",
            "subsystem_device": "0x0834",
            "unique_id": "2f048617326b1ea",
            "mem_info_vram_total": 34342961152,
            "mem_info_vram_used": 10850304,
            "pcie_replay_count": 7,
            "gpu_busy_percent": 64,
            "pp_dpm_mclk": "0: 350Mhz \n1: 800Mhz \n2: 1000Mhz *",
            "gpu_metrics": gpu_metrics((1, 1), 96, edge=(4, "H", 61), hotspot=(6, "H", 72)),
            **ras,
        },
        hwmon={"power1_average": 186000000, "power1_cap": 225000000, "freq2_input": 1000000000},
        lacks=frozenset({"hwmon/fan1_input", "hwmon/fan1_max", "hwmon/pwm1", "hwmon/pwm1_max"}),
    )


def rx7900xt(address: str, index: int, hotspot_c: int = 54) -> Card:
    """An RX 7900 XT whose firmware sets the hotspot's throttle bit whatever its temperature."""
    temperatures = {"edge": (4, "H", hotspot_c - 10), "hotspot": (6, "H", hotspot_c), "memory": (8, "H", 60)}
    return Card(
        address=address,
        index=index,
        gfx_target_version=110000,
        kfd_name="gfx1100",
        device={
            "device": "0x744c",
            "subsystem_vendor": "0x1da2",
            "subsystem_device": "0x471e",
            "unique_id": f"{0xD4E6A1B300000000 + index:016x}",
            "mem_info_vram_total": 21458059264,
            "mem_info_vram_used": 1073741824 * (index + 1),
            "gpu_metrics": gpu_metrics((1, 3), 120, throttle=(112, "Q", 1 << 36), **temperatures),
        },
        hwmon={"temp2_input": hotspot_c * 1000, "power1_average": 290000000, "power1_cap": 315000000},
    )


def phoenix(address: str = "0000:c4:00.0", index: int = 0) -> Card:
    """A Radeon 780M in a Ryzen 7 7840: edge temperature alone, a carve-out of 512 MB that is always nearly full."""
    return Card(
        address=address,
        index=index,
        gfx_target_version=110003,
        kfd_name="gfx1103",
        device={
            "device": "0x15bf",
            "subsystem_vendor": "0x17aa",
            "subsystem_device": "0x50d9",
            "mem_info_vram_total": 536870912,
            "mem_info_vram_used": 514580480,
            "mem_info_gtt_total": 16441004032,
            "mem_info_gtt_used": 3946811392,
            "gpu_metrics": gpu_metrics((2, 1), 120, edge=(4, "H", 4800)),
        },
        hwmon={"temp1_input": 48000, "power1_average": 14087000, "in1_label": "vddnb", "in1_input": 700},
        lacks=frozenset(
            {"unique_id", "mem_busy_percent", "pcie_replay_count", "hwmon/power1_cap", "hwmon/freq2_label"}
            | {"hwmon/freq2_input", "hwmon/fan1_input", "hwmon/fan1_max", "hwmon/pwm1", "hwmon/pwm1_max"}
            | {f"hwmon/temp{place}_{what}" for place in (2, 3) for what in ("label", "input")}
        ),
    )


@dataclass(frozen=True, slots=True)
class AmdgpuTree:
    """The files of some simulated cards below one folder."""

    folder: Path
    cards: tuple[Card, ...]

    @classmethod
    def build(cls, folder: Path, *cards: Card) -> AmdgpuTree:
        """Write the files; without cards, those of one RX 5600 XT."""
        tree = cls(folder, cards or (Card(),))
        tree._write("module/amdgpu/initstate", "live")
        tree._write("module/amdgpu/version", "5.18.13")
        (tree.sys_root / "class/kfd/kfd/proc").mkdir(parents=True)
        tree._kfd_node(0, {"cpu_cores_count": 12, "simd_count": 0, "gfx_target_version": 0}, gpu_id=0, name="")
        for number, card in enumerate(tree.cards, start=1):
            tree._card(card, number)
        return tree

    @property
    def sys_root(self) -> Path:
        """What /sys is for the simulated machine."""
        return self.folder / "sys"

    def device(self, card: int = 0) -> Path:
        """The card's folder."""
        return self.sys_root / self.cards[card].folder

    def set(self, name: str, value: object, card: int = 0) -> None:
        """Let one file of the card say something else: `gpu_busy_percent`, `hwmon/temp2_input`."""
        self._write(f"{self.cards[card].folder}/{name.replace('hwmon/', f'hwmon/hwmon{card + 3}/')}", value)

    def remove(self, name: str, card: int = 0) -> None:
        """Let the card lack one file."""
        (self.device(card) / name.replace("hwmon/", f"hwmon/hwmon{card + 3}/")).unlink()

    def run(self, command: Sequence[str], timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command that sees this tree as /sys, in a mount namespace of its own; needs root."""
        return subprocess.run(
            self.command(command),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that `run` runs, for whoever starts processes by himself."""
        return [sys.executable, __file__, str(self.folder), *command]

    def _card(self, card: Card, number: int) -> None:
        pci_id = f"{DEVICE['vendor']}:{card.device.get('device', DEVICE['device'])}".replace("0x", "").upper()
        uevent = f"DRIVER={card.driver}\nPCI_CLASS=30000\nPCI_ID={pci_id}\nPCI_SLOT_NAME={card.address}"
        for name, value in {**DEVICE, "uevent": uevent, **card.device}.items():
            if name not in card.lacks:
                self._write(f"{card.folder}/{name}", value)
        hwmon = f"hwmon{card.index + 3}"
        for name, value in {**HWMON, **card.hwmon}.items():
            if f"hwmon/{name}" in card.lacks:
                continue
            self._write(f"{card.folder}/hwmon/{hwmon}/{name}", value)
        for minor, node in ((card.index, f"card{card.index}"), (128 + card.index, f"renderD{128 + card.index}")):
            self._write(f"{card.folder}/drm/{node}/uevent", f"MAJOR=226\nMINOR={minor}\nDEVNAME=dri/{node}")
            self._link(f"../../../{card.address}", f"{card.folder}/drm/{node}/device")
            self._link(f"../../{card.folder}/drm/{node}", f"class/drm/{node}")
        self._link(f"../../{card.folder}/hwmon/{hwmon}", f"class/hwmon/{hwmon}")
        self._link(f"../../../{card.folder}", f"bus/pci/devices/{card.address}")
        self._kfd_node(number, self._gpu_properties(card), gpu_id=41000 + number, name=card.kfd_name)

    @staticmethod
    def _gpu_properties(card: Card) -> Mapping[str, int]:
        domain, bus, rest = card.address.split(":")
        slot, function = rest.split(".")
        return {
            "cpu_cores_count": 0,
            "simd_count": 72,
            "simd_per_cu": 2,
            "array_count": 4,
            "simd_arrays_per_engine": 2,
            "cu_per_simd_array": 9,
            "max_waves_per_simd": 20,
            "wave_front_size": 32,
            "gfx_target_version": card.gfx_target_version,
            "vendor_id": 0x1002,
            "device_id": int(str(card.device.get("device", DEVICE["device"])), 16),
            "location_id": int(bus, 16) << 8 | int(slot, 16) << 3 | int(function),
            "domain": int(domain, 16),
            "drm_render_minor": 128 + card.index,
            "hive_id": 0,
            "unique_id": int(str(card.device.get("unique_id", DEVICE["unique_id"])), 16),
        }

    def _kfd_node(self, number: int, properties: Mapping[str, int], gpu_id: int, name: str) -> None:
        node = f"class/kfd/kfd/topology/nodes/{number}"
        self._write(f"{node}/properties", "\n".join(f"{key} {value}" for key, value in properties.items()))
        link = {"type": 2, "node_from": number, "node_to": 0 if number else 1, "weight": 20, **_LINK_BANDWIDTH}
        self._write(f"{node}/io_links/0/properties", "\n".join(f"{key} {value}" for key, value in link.items()))
        self._write(f"{node}/gpu_id", gpu_id)
        self._write(f"{node}/name", name)

    def _write(self, name: str, value: object) -> None:
        path = self.sys_root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode("ascii"))

    def _link(self, target: str, name: str) -> None:
        path = self.sys_root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def _enter(folder: Path) -> None:
    """Make the tree this process' /sys, in a mount namespace that no other process shares."""
    libc = ctypes.CDLL(None, use_errno=True)

    def bind(source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        _checked(libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None), target)

    _checked(libc.unshare(_CLONE_NEWNS), folder)
    _checked(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), Path("/"))
    real = folder / "real"
    bind(Path("/sys"), real)
    for part in _KEPT:
        bind(real / part, folder / "sys" / part)
    bind(folder / "sys", Path("/sys"))


def _checked(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


if __name__ == "__main__":
    _enter(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
