"""The peer of a connection, as the kernel reports it, and what it may do; nothing that the peer sends counts."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

SO_PEERGROUPS = 59
"""Linux 4.13, asm-generic/socket.h; the standard library does not name it."""
_CREDENTIALS = struct.Struct("3i")
_GROUPS_BYTES = 1024
"""256 groups; socket.getsockopt asks for no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The process that connected, as it was when it connected."""

    pid: int
    uid: int
    groups: frozenset[int]

    @property
    def name(self) -> str:
        """The user who asks, as it is recorded."""
        return f"uid {self.uid}"

    def may_act(self, socket_gid: int) -> bool:
        """Whether it may start and stop: root, the daemon's own user, members of the socket's group.

        Who may look is whoever the socket's mode lets connect; a mode wider than 0660 widens that alone.
        """
        return self.uid in (0, os.geteuid()) or socket_gid in self.groups


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected; see SO_PEERCRED and SO_PEERGROUPS in socket(7) and unix(7)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Peer(pid=pid, uid=uid, groups=_read_groups(connection) | {gid})


def _read_groups(connection: socket.socket) -> frozenset[int]:
    """Return the supplementary groups; none where the kernel does not report them: the peer may then not act."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return frozenset()
    return frozenset(struct.unpack(f"{len(raw) // 4}I", raw))


def find_owner(connection: socket.socket, address: Any) -> str:
    """Return whose connection it is; raise OSError where it ended.

    Over IPv6 one machine has as many addresses as it likes, so those of one network (/64) count as one.
    """
    if connection.family == socket.AF_UNIX:
        return peer_of(connection).name
    host = str(address[0])
    if connection.family == socket.AF_INET or host.startswith("::ffff:"):
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))
