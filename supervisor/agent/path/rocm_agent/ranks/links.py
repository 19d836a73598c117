"""Connections between the ranks of one machine, by which each says that its part of a mean lies ready.

Unix sockets: a rank that waits sleeps in the kernel, and the end of another is read at once, as the end of its socket.
"""

from __future__ import annotations

import array
import os
import shutil
import socket
import struct
import tempfile
from typing import List, Optional, Tuple

PART = struct.Struct("<QQQ")
"""Number of the mean, where the part lies in the sender's slab, its bytes."""
RANK = struct.Struct("<I")
CONNECT_S = 60.0


class LinkError(RuntimeError):
    """Another rank is gone, or it averages something else."""


class Links:
    """The connections of a rank, and the slab of each rank's file."""

    def __init__(self, rank: int, sockets: List[Optional[socket.socket]], slabs: List[int]) -> None:
        self.rank = rank
        self.sockets = sockets
        """By rank; None at one's own place."""
        self.slabs = slabs
        """File descriptors by rank, one's own too."""
        os.register_at_fork(after_in_child=self.close)  # a loader's worker would keep the end from being read

    def close(self) -> None:
        """Close all connections; what was sent can still be read."""
        for connection in self.sockets:
            if connection is not None:
                connection.close()

    def announce(self, number: int, offset: int, size: int) -> None:
        """Say to all others that a part lies ready."""
        for rank, connection in enumerate(self.sockets):
            if connection is not None:
                self.tell(rank, number, offset, size)

    def await_others(self, number: int, offset: int, size: int) -> None:
        """Wait until all others have announced the same part."""
        for rank, connection in enumerate(self.sockets):
            if connection is not None:
                self.await_part(rank, number, offset, size)

    def tell(self, rank: int, number: int, offset: int, size: int) -> None:
        """Say to one rank that this one's part lies ready, or that its own was read."""
        connection = self.sockets[rank]
        assert connection is not None
        try:
            connection.sendall(PART.pack(number, offset, size))
        except OSError as error:
            raise LinkError("rank %d is gone: %s" % (rank, error)) from error

    def await_part(self, rank: int, number: int, offset: int, size: int) -> None:
        """Wait until that rank's part lies ready. Raises LinkError where it is gone, or has another part ready."""
        connection = self.sockets[rank]
        assert connection is not None
        got = PART.unpack(_read_exactly(connection, PART.size, rank))
        if got != (number, offset, size):
            raise LinkError(
                "rank %d averages %d bytes at %d as its number %d, this rank %d at %d as number %d: the models differ"
                % (rank, got[2], got[1], got[0], size, offset, number)
            )


class Listener:
    """Where the other ranks of this machine reach this one, until all are connected."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rocm-ranks-")
        self.path = os.path.join(self._folder, "rank")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(1024)
        self._socket.settimeout(CONNECT_S)

    def close(self) -> None:
        """Take no further connections."""
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def connect(self, rank: int, paths: List[str], slab: int) -> Links:
        """Connect this rank with all others, each of which does the same. Raises OSError or LinkError."""
        sockets: List[Optional[socket.socket]] = [None] * len(paths)
        slabs = [-1] * len(paths)
        slabs[rank] = slab
        for lower in range(rank):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(CONNECT_S)
            connection.connect(paths[lower])
            _give(connection, rank, slab)
            sockets[lower], slabs[lower] = connection, _take(connection)[1]
        for _ in range(rank + 1, len(paths)):
            connection, _ = self._socket.accept()
            connection.settimeout(CONNECT_S)
            higher, descriptor = _take(connection)
            if not rank < higher < len(paths) or sockets[higher] is not None:
                raise LinkError("a process that is no rank of this training connected")
            _give(connection, rank, slab)
            sockets[higher], slabs[higher] = connection, descriptor
        for made in sockets:
            if made is not None:
                made.settimeout(None)
        return Links(rank, sockets, slabs)


def _give(connection: socket.socket, rank: int, slab: int) -> None:
    descriptors = array.array("i", [slab])
    connection.sendmsg([RANK.pack(rank)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


def _take(connection: socket.socket) -> Tuple[int, int]:
    """Return the rank at the other end and its slab's file; only this user's processes are believed."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", credentials)[1] != os.geteuid():
        raise LinkError("a process of another user connected")
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(RANK.size, socket.CMSG_SPACE(descriptors.itemsize))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: descriptors.itemsize])
    if len(data) != RANK.size or len(descriptors) != 1:
        raise LinkError("another rank ended while it connected")
    return RANK.unpack(data)[0], descriptors[0]


def _read_exactly(connection: socket.socket, size: int, rank: int) -> bytes:
    found = b""
    while len(found) < size:
        try:
            more = connection.recv(size - len(found))
        except OSError as error:
            raise LinkError("rank %d is gone: %s" % (rank, error)) from error
        if not more:
            raise LinkError("rank %d is gone: it closed its connection" % rank)
        found += more
    return found
