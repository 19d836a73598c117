"""The files of an attempt that its shim makes: what it reports in room kept for it, and the flight recorder.

Used by shim.py in its process: imports only the standard library. The constants of core/attempt_files.py are repeated.
"""

# ruff: noqa: PTH104, PTH108, PTH118, PTH123, SIM105 - as in shim.py: memory for life

from __future__ import annotations

import errno
import json
import os
import struct

TYPE_CHECKING = False  # typing is memory for life
if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 1
"""Of launch.json, shim.json and exit.json."""
RUN = "run"
"""The part of an attempt's folder that training and shim may write; the rest only the daemon may write."""
NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""For files that the training can replace: follow no link, and do not block on a pipe."""
RESERVED_BYTES = 4096
RECORDER_IDENTITY = struct.pack("<8sIIII", b"ROCMREC1", 4096, 72, 131072, 0)
RECORDER_BYTES = 4096 + 131072 * 72
ZEROS_BYTES = 1 << 16
CLAIM_OFFSET, COMMAND_OFFSET, ANSWER_OFFSET = 24, 128, 192
COMMAND_SAVE_AND_STOP = 2
ANSWERS_THAT_END = (2, 3)
"""Saved, and cannot save: after either there is nothing to wait for."""


class Promise:
    """A small file whose blocks are allocated in advance, so that it can be written when the disk is full.

    Creating it also claims the folder: an attempt runs once, so FileExistsError means that another shim has claimed it,
    whether that still runs or is over.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.path = os.path.join(folder, RUN, name)
        if os.path.lexists(self.path):
            raise FileExistsError(self.path)
        self.file = os.open(self.path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)
        try:
            os.posix_fallocate(self.file, 0, RESERVED_BYTES)
        except OSError:
            pass  # writing it later is tried without the reservation

    def keep(self, facts: dict[str, object], *, lasting: bool) -> None:
        """Write the facts and give the file its name; `lasting` waits until they are on the disk."""
        text = json.dumps({"version": VERSION, **facts}).encode() + b"\n"
        os.pwrite(self.file, text.ljust(RESERVED_BYTES), 0)
        try:
            os.ftruncate(self.file, len(text))
            if lasting:
                os.fsync(self.file)
        except OSError:
            pass  # blanks at the end harm no reader
        os.rename(self.path + ".tmp", self.path)
        os.close(self.file)


def allocate(path: str, size: int) -> None:
    """Allocate all blocks of an empty file. Raises OSError.

    Where the file system cannot, the C library would write a byte into each block, thousands of requests to another
    machine; to a file that is open to append it does not, and large pieces are written.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | NO_LINK)
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EOPNOTSUPP):
            raise
        written, zeros = 0, bytes(ZEROS_BYTES)
        while written < size:
            written += os.write(file, zeros[: size - written])
    finally:
        os.close(file)


class Recorder:
    """The header fields of recorder.bin that the shim uses; only the agent writes records."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, RUN, "recorder.bin")
        self.request = 0

    def make(self) -> str | None:
        """Create the file with all its blocks; return the error, since the training can run without it.

        All blocks are allocated: writing to a hole on a full disk would raise SIGBUS in the training.
        """
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)
        except OSError as error:
            return f"recorder.bin: {error.strerror}"
        try:
            allocate(self.path, RECORDER_BYTES)
            os.pwrite(file, RECORDER_IDENTITY, 0)
        except OSError as error:
            os.unlink(self.path)
            return f"recorder.bin: {error.strerror}"
        finally:
            os.close(file)
        return None

    def read_claim(self) -> int:
        """Return the pid that claimed the recorder last; 0 where none has, or it cannot be read."""
        try:
            with open(os.open(self.path, os.O_RDONLY | NO_LINK), "rb", buffering=0) as file:
                return int(struct.unpack("<I", os.pread(file.fileno(), 4, CLAIM_OFFSET))[0])
        except (OSError, struct.error):
            return 0

    def ask_to_save(self, alive: Iterable[int]) -> bool:
        """Write the command to save; return False if no process in `alive` has claimed the recorder."""
        try:
            with open(os.open(self.path, os.O_RDWR | NO_LINK), "r+b", buffering=0) as file:
                (claimed,) = struct.unpack("<I", os.pread(file.fileno(), 4, CLAIM_OFFSET))
                if claimed not in alive:
                    return False
                last = struct.unpack("<II", os.pread(file.fileno(), 8, COMMAND_OFFSET))[1]
                self.request = last % 0xFFFFFFFF + 1
                os.pwrite(file.fileno(), struct.pack("<II", COMMAND_SAVE_AND_STOP, self.request), COMMAND_OFFSET)
        except (OSError, struct.error):
            return False
        return True

    def answered(self) -> bool:
        """Whether the training has saved, or reported that it cannot."""
        try:
            with open(os.open(self.path, os.O_RDONLY | NO_LINK), "rb", buffering=0) as file:
                answer, request = struct.unpack("<II", os.pread(file.fileno(), 8, ANSWER_OFFSET))
        except (OSError, struct.error):
            return True  # the recorder is gone: no answer can come
        return request == self.request and answer in ANSWERS_THAT_END
