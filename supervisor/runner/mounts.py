"""Which kind of file system a path lies on, from the kernel's list of mounts: the file system itself is not asked."""

from __future__ import annotations

import os
from pathlib import Path

LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "overlay", "ramfs", "reiserfs", "rootfs"}
    | {"tmpfs", "xfs", "zfs"}
)
"""Kinds that lie on a disk or in the memory of this machine: no server and no other process answers for them."""


def is_local(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a path lies on a disk of this machine; a kind that is not known does not."""
    where = os.path.realpath(path)
    best, local = "", False
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    for line in lines:
        before, _, after = line.partition(" - ")
        place = before.split()[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = where == place or where.startswith(f"{place.rstrip('/')}/")
        if inside and len(place) >= len(best):  # of two at one place the later one covers the other
            best, local = place, after.split()[0] in LOCAL
    return local
