"""Reserves the blocks of a file that is mapped into memory: a write into a hole of a full disk would be SIGBUS."""

from __future__ import annotations

import errno
import fcntl
import os

STAT_BLOCK_BYTES = 512
"""Unit of st_blocks, whatever the file system's blocks are."""
PIECE_BYTES = 1 << 16
BLOCK_BYTES = 1 << 12


def reserve_blocks(file: int, size: int) -> None:
    """Make the open file at least `size` bytes long, without a hole, and leave its content. Raises OSError.

    Where the file system cannot allocate, the C library would write a byte into each block, thousands of requests to
    another machine; to a file that is open to append it does not, and large pieces are written.
    """
    found = os.fstat(file)
    if found.st_size >= size and found.st_blocks * STAT_BLOCK_BYTES >= size:
        return
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_APPEND)
    try:
        if _allocate(file, size):
            return
        # At its end: another process may have made the file longer meanwhile, and may have written into it.
        _append_zeros(file, found.st_size, size)
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    if found.st_blocks * STAT_BLOCK_BYTES < found.st_size:
        _fill_holes(file, min(found.st_size, size))


def _allocate(file: int, size: int) -> bool:
    """Whether the file system itself could allocate the blocks."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EOPNOTSUPP):
            raise
        return False
    return True


def _append_zeros(file: int, length: int, size: int) -> None:
    zeros = bytes(PIECE_BYTES)
    while length < size:
        length += os.write(file, zeros[: min(PIECE_BYTES - length % PIECE_BYTES, size - length)])


def _fill_holes(file: int, size: int) -> None:
    """Write the blocks that read as zeros, which may be holes; another process may write into the others."""
    for start in range(0, size, PIECE_BYTES):
        piece = os.pread(file, min(PIECE_BYTES, size - start), start)
        begin = None
        for at in range(0, len(piece) + BLOCK_BYTES, BLOCK_BYTES):
            is_zero = at < len(piece) and not any(piece[at : at + BLOCK_BYTES])
            if is_zero and begin is None:
                begin = at
            elif not is_zero and begin is not None:
                _write_zeros(file, min(at, len(piece)) - begin, start + begin)
                begin = None


def _write_zeros(file: int, count: int, at: int) -> None:
    while count > 0:
        written = os.pwrite(file, bytes(count), at)
        count, at = count - written, at + written
