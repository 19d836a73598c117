"""The boot of this machine: what its processes have in common, and what a process id is unique in."""

from __future__ import annotations

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def read_boot_id() -> str:
    """Return what the kernel drew at random when it booted; raises OSError."""
    with open(BOOT_ID) as file:
        return file.read().strip()
