"""Publicly known issues of GPUs, by gfx target.

Those of MIOpen are in `miopen.py`, because a job's Conv2d is chosen by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.remedies.miopen import MIOPEN_FACTS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIssue:
    """A known issue of the GPUs of some gfx targets."""

    targets: tuple[str, ...]
    """Prefixes of gfx names: `gfx11` matches every RDNA3 GPU."""
    what: str
    remedy: str | None
    source: str


GPU_ISSUES = (
    GpuIssue(
        targets=("gfx1010", "gfx1011", "gfx1012"),
        what="before ROCm 6.1 no kernels fit it (hipErrorNoBinaryForGpu); an override helps some, crashes others",
        remedy='a build seen to train on it; with old ones env = { HSA_OVERRIDE_GFX_VERSION = "10.3.0" } in the job',
        source="ROCm/pytorch#882; ROCm/legacy-rocm-build#887",
    ),
    GpuIssue(
        targets=("gfx1031", "gfx1032"),
        what="ROCm ships no kernels for it; those of gfx1030 run on it under an override",
        remedy='env = { HSA_OVERRIDE_GFX_VERSION = "10.3.0" } in the job',
        source="ROCm/legacy-rocm-build#2720, #2061",
    ),
    GpuIssue(
        targets=("gfx11", "gfx12"),
        what="its firmware reports thermal throttling on a cool GPU; the bit counts only near the temperature limit",
        remedy=None,
        source="ROCm/rocm-systems#11781; Umio-Yasuno/libdrm-amdgpu-sys-rs#7",
    ),
    GpuIssue(
        targets=("gfx94",),
        what="its XGMI error file cannot be read; errors of the links show in the RAS block xgmi_wafl",
        remedy=None,
        source="ROCm/rocm-systems#11468",
    ),
)
"""One row per issue, the most specific targets first."""


def issues_of(gfx_version: str | None) -> tuple[GpuIssue, ...]:
    """Return the known issues of a target, including MIOpen's; () for a target that is unknown or has none."""
    if gfx_version is None:
        return ()
    target = gfx_version.partition(":")[0]
    miopen = tuple(
        GpuIssue(
            targets=(fact.gfx_version,),
            what="MIOpen does not work on it",
            remedy='conv2d = "auto" computes convolutions without it',
            source=fact.source,
        )
        for fact in MIOPEN_FACTS
        if fact.fails and fact.gfx_version == target
    )
    return miopen + tuple(issue for issue in GPU_ISSUES if target.startswith(issue.targets))
