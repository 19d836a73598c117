"""Which processes are frozen with their control group: `docker pause`, `systemctl freeze`, a suspended Slurm job.

The kernel shows such a process as one that sleeps, or that waits in it where the freezer is that of version 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from supervisor.sources.kernel_files import read_text

GROUPS = Path("/sys/fs/cgroup")
UNIFIED = ("", "unified")
"""Where version 2 is mounted; the latter on machines with both."""


def find_frozen(pids: Iterable[int], proc: Path = Path("/proc"), groups: Path = GROUPS) -> tuple[int, ...]:
    """Return those of some processes that are frozen; the files that show it are readable by every user."""
    known: dict[str, bool] = {}
    found = []
    for pid in pids:
        text = read_text(proc / str(pid) / "cgroup")
        if text not in known:
            known[text] = _is_frozen(text, groups)
        if known[text]:
            found.append(pid)
    return tuple(found)


def _is_frozen(text: str, groups: Path) -> bool:
    """Whether the groups of a process are frozen, by its `/proc/PID/cgroup`; a group above it freezes it as well."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        group = path.lstrip("/")
        if ".." in path:
            continue  # it lies outside of what is mounted here
        if "freezer" in kinds.split(",") and read_text(groups / "freezer" / group / "freezer.state") == "FROZEN":
            return True
        if number == "0" and any(_is_frozen_by_2(groups / mount / group) for mount in UNIFIED):
            return True
    return False


def _is_frozen_by_2(group: Path) -> bool:
    return "frozen 1" in read_text(group / "cgroup.events").splitlines()
