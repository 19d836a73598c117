"""Finds the GPUs of the amdgpu driver and their sysfs files, without waking a suspended GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.core.remedies.miopen import gfx_name
from supervisor.sources.gpu.sensor_values import number, pci_address, unique_id
from supervisor.sources.kernel_files import read_text

_CARD = re.compile(r"card\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU: its constant properties, and the paths of its sensors."""

    gpu: str
    device: str
    name: str | None
    unique_id: str | None
    gfx_version: str | None
    kfd_ids: tuple[str, ...] = ()
    """The compute driver's ids of the GPU, one per partition."""
    temperatures: dict[str, str] = field(default_factory=dict)
    """Path by label: `edge`, `junction`, `mem`."""
    clocks: dict[str, str] = field(default_factory=dict)
    """Path by label: `sclk`, `mclk`."""
    powers: tuple[str, ...] = ()
    power_cap: str = ""
    fan: str = ""
    error_counts: tuple[str, ...] = ()
    has_processor_rail: bool = False
    """Whether it has a voltage `vddnb`, which only APUs have."""


@dataclass(slots=True)
class _Node:
    """The compute driver's properties of one GPU, all partitions together."""

    name: str | None
    gfx_version: str | None
    ids: list[str]


def discover(root: Path) -> Iterator[Card]:
    """Yield the amdgpu GPUs under `root` (`/sys`) in the order of their names."""
    entries = [entry for entry in _list_names(root / "class/drm") if _CARD.fullmatch(entry)]
    nodes = _read_kfd_nodes(root) if entries else {}
    for entry in entries:
        device = f"{root}/class/drm/{entry}/device"
        uevent = dict(line.partition("=")[::2] for line in read_text(f"{device}/uevent").splitlines())
        gpu = pci_address(uevent.get("PCI_SLOT_NAME"))
        if uevent.get("DRIVER") == "amdgpu" and gpu is not None:
            yield _build_card(device, gpu, nodes.get(gpu, _Node(None, None, [])))


def _build_card(device: str, gpu: str, node: _Node) -> Card:
    hwmon = next(
        (f"{device}/hwmon/{name}" for name in _list_names(Path(device, "hwmon")) if name.startswith("hwmon")), None
    )
    counts = [name for name in _list_names(Path(device, "ras")) if name.endswith("_err_count")]
    return Card(
        gpu=gpu,
        device=device,
        name=read_text(f"{device}/product_name") or node.name,
        unique_id=unique_id(read_text(f"{device}/unique_id")),
        gfx_version=node.gfx_version,
        kfd_ids=tuple(node.ids),
        temperatures=_map_labels(hwmon, "temp"),
        clocks=_map_labels(hwmon, "freq"),
        powers=tuple(f"{hwmon}/{file}" for file in ("power1_average", "power1_input")) if hwmon else (),
        power_cap=f"{hwmon}/power1_cap" if hwmon else "",
        fan=f"{hwmon}/fan1_input" if hwmon else "",
        error_counts=tuple(f"{device}/ras/{count}" for count in counts),
        has_processor_rail="vddnb" in _map_labels(hwmon, "in", first=0),
    )


def _map_labels(hwmon: str | None, kind: str, first: int = 1) -> dict[str, str]:
    """Map label to input file: which of temp1, temp2, temp3 is the junction differs between GPUs."""
    if hwmon is None:
        return {}
    labels = ((read_text(f"{hwmon}/{kind}{index}_label"), f"{hwmon}/{kind}{index}_input") for index in range(first, 9))
    return {label: path for label, path in labels if label}


def _read_kfd_nodes(root: Path) -> dict[str, _Node]:
    """Map PCI address to the compute driver's properties; partitions of one GPU share its address."""
    found: dict[str, _Node] = {}
    nodes = root / "class/kfd/kfd/topology/nodes"
    for entry in sorted(_list_names(nodes), key=lambda name: (len(name), name)):
        text = read_text(f"{nodes}/{entry}/properties")
        properties = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) >= 2)
        location, domain = number(properties.get("location_id")), number(properties.get("domain", "0"))
        version = number(properties.get("gfx_target_version"))
        if location is None or domain is None or not version or not 0 < location < 1 << 16 or domain < 0:
            continue
        where = int(location)
        gpu = f"{int(domain):04x}:{where >> 8:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"
        node = found.setdefault(gpu, _Node(read_text(f"{nodes}/{entry}/name"), gfx_name(int(version)), []))
        if kfd_id := read_text(f"{nodes}/{entry}/gpu_id"):
            node.ids.append(kfd_id)
    return found


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
