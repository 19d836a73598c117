"""Detects the amdgpu driver without starting a tool: ROCm's tools are programs in Python that take 0.15 s each."""

from __future__ import annotations

from pathlib import Path

from supervisor.sources.gpu.source import SourceSilentError


def require_driver(sys_root: Path) -> None:
    """Raise SourceSilentError if no amdgpu driver is loaded, so that no process is started for a query.

    A driver that is built into the kernel has this folder too, for its parameters.
    """
    module = sys_root / "module/amdgpu"
    if not module.exists():
        raise SourceSilentError(f"no amdgpu driver ({module} does not exist)")
