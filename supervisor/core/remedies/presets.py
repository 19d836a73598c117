"""Environment variables that help a training on some GPUs, by gfx target and ROCm version, and such that do harm.

Each was published by those who saw it; none was tried on such a GPU here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Variables for the GPUs of some gfx targets."""

    name: str
    targets: tuple[str, ...]
    """Prefixes of gfx names."""
    env: Mapping[str, str]
    rocm: str
    """The versions that it is for, in words."""
    what: str
    source: str


PRESETS = (
    Preset(
        name="gfx1010",
        targets=("gfx1010", "gfx1011", "gfx1012"),
        env={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"},
        rocm="before 6.1",
        what="kernels of gfx1030, where there are none of its own; they crash on some of these GPUs",
        source="ROCm/pytorch#882",
    ),
    Preset(
        name="gfx1031",
        targets=("gfx1031", "gfx1032"),
        env={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"},
        rocm="every version",
        what="kernels of gfx1030, where there are none of its own",
        source="ROCm/legacy-rocm-build#2720, #2061",
    ),
    Preset(
        name="gfx906",
        targets=("gfx906", "gfx908"),
        env={"TORCH_BLAS_PREFER_HIPBLASLT": "0"},
        rocm="6.2 and later",
        what="no matrix products by hipBLASLt, which has no kernels for it",
        source="pytorch/pytorch#138067, #128753",
    ),
    Preset(
        name="gfx1100",
        targets=("gfx1100", "gfx1101"),
        env={"TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL": "1"},
        rocm="6.2 and later",
        what="attention by AOTriton's kernels, which are experimental for it",
        source="ROCm/TheRock#1437, ROCm/aotriton#117",
    ),
    Preset(
        name="gfx1100-nhwc-off",
        targets=("gfx1100", "gfx1101", "gfx1102"),
        env={"PYTORCH_MIOPEN_SUGGEST_NHWC": "0"},
        rocm="7.0 and 7.1",
        what="no convolutions in channels_last by MIOpen, which are slow on it",
        source="pytorch/pytorch#170780, #170947",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """A variable that does harm in a training with a value, or without one with every value that is not off."""

    name: str
    what: str
    source: str
    value: str | None = None
    voids: tuple[str, ...] = ()
    """Variables that it makes void, of which one has to be set; () where it does harm by itself."""


ALLOCATOR = ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
OFF = frozenset({"", "0"})
HARMS = (
    Harm(
        name="PYTORCH_NO_HIP_MEMORY_CACHING",
        voids=ALLOCATOR,
        what="torch keeps no memory of the GPU, so that {others} is void",
        source="torch, c10/cuda/CUDACachingAllocator.cpp",
    ),
    Harm(
        name="PYTORCH_NO_HIP_MEMORY_CACHING",
        what="torch keeps no memory of the GPU: each tensor is taken from the driver, which is several times slower",
        source="chelsea0x3b/dfdx#678",
    ),
    Harm(
        name="AMD_SERIALIZE_KERNEL",
        what="the host waits for each kernel; it is for debugging",
        source="HIP's documentation on debugging",
    ),
    Harm(
        name="HIP_LAUNCH_BLOCKING",
        what="the host waits for each kernel; it is for debugging",
        source="HIP's documentation on debugging",
    ),
    Harm(
        name="CUDA_LAUNCH_BLOCKING",
        what="the host waits for each kernel; it is for debugging",
        source="CUDA's programming guide",
    ),
    Harm(
        name="MIOPEN_FIND_ENFORCE",
        value="1",
        what="1 enforces nothing; a search is 3, one that updates the database 4",
        source="MIOpen's documentation, find modes",
    ),
    Harm(
        name="MIOPEN_DEBUG_DISABLE_FIND_DB",
        what="MIOpen searches again at each start",
        source="MIOpen's documentation, find database",
    ),
    Harm(
        name="MIOPEN_DISABLE_CACHE",
        what="MIOpen compiles again at each start",
        source="MIOpen's documentation, kernel cache",
    ),
)


def presets_of(gfx_version: str | None) -> tuple[Preset, ...]:
    """Return the presets for a target; () for one that is unknown or has none."""
    target = (gfx_version or "").partition(":")[0]
    return tuple(preset for preset in PRESETS if target and target.startswith(preset.targets))


def env_of(name: str) -> Mapping[str, str] | None:
    """Return the variables of a preset, None where there is none of that name."""
    return next((preset.env for preset in PRESETS if preset.name == name), None)


def find_harms(env: Mapping[str, str]) -> Iterator[tuple[Harm, str]]:
    """Yield the variables of an environment that do harm, each once, and what they do."""
    found: set[str] = set()
    for harm in HARMS:
        value = env.get(harm.name)
        if value is None or harm.name in found or (value != harm.value if harm.value else value.strip() in OFF):
            continue
        others = [name for name in harm.voids if name in env]
        if harm.voids and not others:
            continue
        found.add(harm.name)
        yield harm, harm.what.format(others=", ".join(others))
