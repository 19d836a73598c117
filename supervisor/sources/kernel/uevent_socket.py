"""Receives and parses the kernel's uevents; messages from other senders are dropped.

Format: the kernel's lib/kobject_uevent.c, `ACTION@DEVPATH` and then KEY=VALUE, each terminated by NUL. Messages that
udev forwards in its own format (`libudev`) are not from the kernel.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

PCI = re.compile(r"(?:^|/)([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)")
"""Addresses of PCI devices in a path of /sys."""
MESSAGE_BYTES = 16384
BUFFER_BYTES = 1 << 20
_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uevent:
    """One message of the kernel."""

    action: str
    devpath: str
    facts: Mapping[str, str]

    @property
    def synthetic(self) -> bool:
        """Whether a program triggered it by writing to a `uevent` file."""
        return "SYNTH_UUID" in self.facts

    @property
    def pci(self) -> str | None:
        """Address of the PCI device, or of the PCI parent of the device, that it is about."""
        found = PCI.findall(self.devpath)
        return found[-1] if found else None


class KernelSocket:
    """The kernel's multicast group; messages that another process sent to it are dropped."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_KOBJECT_UEVENT
        )
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self._socket.bind((0, _KERNEL_GROUP))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def read(self) -> bytes | None:
        """Return one message, None if another process sent it.

        Raises BlockingIOError if there is none, OSError(ENOBUFS) if messages were lost.
        """
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        message, ancillary, _, sender = self._socket.recvmsg(MESSAGE_BYTES, space)
        return message if _is_kernels(sender, ancillary) else None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def parse_uevent(raw: bytes) -> Uevent | None:
    """Parse one message of the kernel; None for udev's format and for anything else."""
    head, *rest = raw.decode("utf-8", "backslashreplace").rstrip("\0").split("\0")
    action, separator, devpath = head.partition("@")
    if not separator or not action.isalpha() or not devpath.startswith("/"):
        return None
    facts = {name: value for name, equals, value in (text.partition("=") for text in rest) if equals}
    if facts.get("ACTION") != action or facts.get("DEVPATH") != devpath:
        return None
    return Uevent(action=action, devpath=devpath, facts=facts)


def _is_kernels(sender: object, ancillary: list[tuple[int, int, bytes]]) -> bool:
    """Whether a message is from port 0 and its credentials name no process as the sender."""
    if not isinstance(sender, tuple) or sender[0] != 0:
        return False
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return bool(pid == 0 and uid == 0)
    return False
