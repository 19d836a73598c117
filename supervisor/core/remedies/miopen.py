"""The gfx targets on which MIOpen is known not to work, and the Conv2d algorithm that a job gets.

The target is the GPU's own, as the kernel driver reports it, not HSA_OVERRIDE_GFX_VERSION: the override makes libraries
load kernels of another target, and MIOpen still finds none that fit.
"""

from __future__ import annotations

from dataclasses import dataclass

CONV2D_SETTINGS = ("auto", "off", "planned", "unfold", "unfold_reference")
"""Values of a job's `conv2d`: `auto`, `off`, or the name of an algorithm of rocm_agent.conv2d."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiopenFact:
    """What is publicly known about MIOpen on one gfx target."""

    gfx_version: str
    gpus: str
    fails: bool
    source: str


MIOPEN_FACTS = (
    MiopenFact(
        gfx_version="gfx803",
        gpus="RX 470-590, Fury",
        fails=False,
        source="ROCm/legacy-rocm-build#1659: a patched build runs; Comfy-Org/ComfyUI#15615: leaves MIOpen on",
    ),
    MiopenFact(
        gfx_version="gfx900",
        gpus="Vega 56 and 64, MI25",
        fails=False,
        source="Comfy-Org/ComfyUI#15615: leaves MIOpen on",
    ),
    MiopenFact(
        gfx_version="gfx906",
        gpus="Radeon VII, MI50, MI60",
        fails=False,
        source="Comfy-Org/ComfyUI#15615: leaves MIOpen on",
    ),
    MiopenFact(
        gfx_version="gfx1010",
        gpus="RX 5600 (XT), RX 5700 (XT)",
        fails=True,
        source="hkevin01/robust-thermal-image-object-detection: an RX 5600 XT hangs in the kernel search "
        "(99 % GPU use), or fails with an unknown error; ROCm/MIOpen#1995: unsupported, no precompiled kernels",
    ),
    MiopenFact(
        gfx_version="gfx1011",
        gpus="Radeon Pro V520",
        fails=True,
        source="ROCm/MIOpen#796, #1586: kernels of training do not assemble",
    ),
    MiopenFact(
        gfx_version="gfx1012",
        gpus="RX 5300, RX 5500 (XT)",
        fails=True,
        source="ROCm/legacy-rocm-build#1306: the convolution layers of MNIST fail on an RX 5500 XT",
    ),
    MiopenFact(
        gfx_version="gfx1030",
        gpus="RX 6800, RX 6900 XT",
        fails=False,
        source="ROCm/MIOpen#1309: kernels and databases are made for it; "
        "Comfy-Org/ComfyUI#15615: fp16 crashes were seen with torch 2.6+rocm6.1",
    ),
    MiopenFact(
        gfx_version="gfx1100",
        gpus="RX 7900",
        fails=False,
        source="ROCm/MIOpen#2097: supported",
    ),
)
"""One row per target; a target without a row is not known to fail."""

_FAILING = frozenset(fact.gfx_version for fact in MIOPEN_FACTS if fact.fails)


def miopen_fails(gfx_version: str) -> bool:
    """Whether MIOpen is known not to work on `gfx_version`; feature suffixes (`gfx1010:xnack-`) are ignored."""
    return gfx_version.partition(":")[0] in _FAILING


def gfx_name(gfx_target_version: int) -> str | None:
    """Return the name of KFD's `gfx_target_version`: 90010 is gfx90a, 100100 gfx1010; None for 0, which is a CPU.

    The number is major * 10000 + minor * 100 + stepping (the kernel's kfd topology), and the name writes the last two
    in hexadecimal (LLVM's AMDGPUUsage). None also for a number that no name fits.
    """
    major, rest = divmod(gfx_target_version, 10000)
    minor, stepping = divmod(rest, 100)
    if major < 1 or minor > 15 or stepping > 15:
        return None
    return f"gfx{major}{minor:x}{stepping:x}"


def conv2d_algorithm(setting: str, gfx_versions: tuple[str, ...], *, miopen_failed: bool) -> str:
    """Return `off` or the algorithm that a job with the setting `conv2d = setting` gets.

    `gfx_versions` are the targets of the GPUs that the job uses, as far as known; `miopen_failed`: MIOpen has failed in
    this job before. Only `auto` uses them. Raises ValueError for a setting that does not exist.
    """
    if setting not in CONV2D_SETTINGS:
        raise ValueError(f"conv2d = {setting!r} is not a setting; choose one of {', '.join(CONV2D_SETTINGS)}")
    if setting != "auto":
        return setting
    return "planned" if miopen_failed or any(map(miopen_fails, gfx_versions)) else "off"
