"""Copies an open file to another name, in the cheapest way that is safe."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

FICLONE = 0x40049409
"""ioctl_ficlone(2): both files share their blocks until one of them is written."""
FILE_MODE = 0o640
"""The training reads it through the group that it shares with the daemon; only the daemon writes."""
PIECE_BYTES = 1 << 26
NOT_HERE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class NoRoomError(RuntimeError):
    """The disk has not enough free space for a copy."""


def clone_file(fd: int, target: Path, *, reserve_bytes: int, linked: bool) -> str:
    """Create `target` with the content and times of `fd`; return the method: reflink, link or copy.

    A hard link if `linked` (the file will not be written in place) and the system permits it; else a reflink if the
    file system supports it; else a copy. Raises NoRoomError if a copy would leave less than `reserve_bytes` free.
    """
    found = os.fstat(fd)
    if linked and _try_link(fd, target):
        os.fsync(fd)
        return "link"
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(out, FILE_MODE)
        how = "reflink" if _try_reflink(fd, out) else _copy_bytes(fd, out, found.st_size, reserve_bytes, target)
        os.utime(out, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.fsync(out)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise NoRoomError(f"{target.parent}: {error.strerror}") from error
        raise
    finally:
        os.close(out)
    return how


def _try_link(fd: int, target: Path) -> bool:
    """Give the open file a second name, independent of what its first name refers to now."""
    try:
        # Python passes AT_SYMLINK_FOLLOW to linkat(2), needed for the link in /proc, only with a directory descriptor.
        os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=fd, follow_symlinks=True)
    except OSError:
        return False  # another file system, or a file that we may not write (protected_hardlinks): copied instead
    return True


def _try_reflink(fd: int, out: int) -> bool:
    try:
        fcntl.ioctl(out, FICLONE, fd)
    except OSError as error:
        if error.errno in NOT_HERE:
            return False
        raise
    return True


def _copy_bytes(fd: int, out: int, size: int, reserve_bytes: int, target: Path) -> str:
    free = shutil.disk_usage(target.parent).free
    if free - size < reserve_bytes:
        raise NoRoomError(
            f"{free / 1e6:.0f} MB free, {size / 1e6:.0f} MB needed, {reserve_bytes / 1e6:.0f} MB to remain free"
        )
    at = 0
    while at < size:
        made = _copy_piece(fd, out, min(PIECE_BYTES, size - at), at)
        if not made:
            break  # the file was truncated meanwhile, which the caller detects by its size
        at += made
    return "copy"


def _copy_piece(fd: int, out: int, length: int, at: int) -> int:
    try:
        return os.copy_file_range(fd, out, length, at, at)
    except OSError as error:
        if error.errno not in NOT_HERE:
            raise
    piece = os.pread(fd, length, at)
    return os.pwrite(out, piece, at)
