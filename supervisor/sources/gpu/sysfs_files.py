"""Reads small sysfs files repeatedly through descriptors that stay open.

An open descriptor costs one system call per reading instead of three; the kernel renders the content at each read. It
holds no reference on the driver: after the device is removed, a read fails with ENODEV.
"""

from __future__ import annotations

import errno
import os

_LONGEST = 8192


class SysfsFiles:
    """Open files by path; a file that cannot be read is tried again at the next reading."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._absent: set[str] = set()
        self.device_gone = False
        """Whether a read failed with ENODEV since the last `forget`."""

    def __del__(self) -> None:
        self.forget()

    def raw(self, path: str) -> bytes | None:
        """Return a file's bytes, None if it is missing or cannot be read.

        EPERM and EBUSY mean a GPU that is suspended or being reset, EINVAL a sensor that the firmware lacks.
        """
        fd = self._open.get(path)
        if fd is None:
            if path in self._absent:
                return None
            try:
                fd = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._absent.add(path)
                return None
            except OSError:
                return None
        try:
            return os.pread(fd, _LONGEST, 0)
        except OSError as error:
            if error.errno == errno.ENODEV:
                self.device_gone = True
            return None

    def text(self, path: str) -> str | None:
        """Return a file's text without surrounding white space, None if it is empty or cannot be read."""
        content = self.raw(path)
        return None if content is None else content.decode("ascii", "replace").strip("\n\t \x00") or None

    def forget(self) -> None:
        """Close all files and try missing ones again."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
        self._absent.clear()
        self.device_gone = False
