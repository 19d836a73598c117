"""The resource limits that a container is started with where podman's own cannot be set."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

CAP_SYS_RESOURCE = 1 << 24
"""The capability to raise a limit, a bit in /proc/self/status (capabilities(7))."""
PODMANS_PROCESSES = 32_768
"""Podman lowers the limit of its own processes to this, and cannot raise it again."""


def list_limits(status: Path = Path("/proc/self/status"), uid: int | None = None) -> Mapping[str, int]:
    """Return the limits to name, of descriptors and processes; none where podman's own can be set.

    As root podman asks for a million descriptors, which a root without CAP_SYS_RESOURCE may not have: in a container,
    or under a unit with a bounding set. As another user it asks for that user's own.
    """
    if (os.geteuid() if uid is None else uid) != 0 or _may_raise(status):
        return {}
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    known = {"nofile": files, "nproc": PODMANS_PROCESSES if processes < 0 else min(processes, PODMANS_PROCESSES)}
    return {name: most for name, most in known.items() if most >= 0}


def _may_raise(status: Path) -> bool:
    """Whether the process may raise a limit; where it is unknown, podman is left to try."""
    try:
        lines = status.read_text().splitlines()
        effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
        return bool(int(effective, 16) & CAP_SYS_RESOURCE)
    except (OSError, ValueError, IndexError, StopIteration):
        return True
