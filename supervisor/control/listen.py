"""The listening socket, passed by systemd or bound here with its final mode from the first moment."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from supervisor.children.killed import was_killed
from supervisor.control.peers import peer_of

MODE = 0o660
FIRST_PASSED_FD = 3
"""SD_LISTEN_FDS_START, sd_listen_fds(3)."""
BACKLOG = 64


class ListenError(OSError):
    """The socket could not be opened; the text says what to do."""


def from_systemd(environment: Mapping[str, str]) -> socket.socket | None:
    """Return the socket that systemd passed for `control.sock`, or None where it passed none to this process."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = environment.get("LISTEN_FDS", "")
    for fd in range(FIRST_PASSED_FD, FIRST_PASSED_FD + (int(count) if count.isdecimal() else 0)):
        if not _is_socket(fd):
            continue
        passed = socket.socket(fileno=fd)
        if passed.family == socket.AF_UNIX and passed.type == socket.SOCK_STREAM:
            passed.set_inheritable(False)
            return passed
        passed.detach()
    return None


def bind(path: Path) -> socket.socket:
    """Bind and listen at `path`, mode 0660; raise ListenError where another daemon listens there or it cannot be made.

    The mode is set on the socket before it has a name, so there is no moment at which others could connect (the umask
    can only narrow it). A socket file without a listener was left by a daemon that was killed, and is replaced; so is
    one whose listener was killed and waits in the kernel.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale_socket(path)
        os.fchmod(listening.fileno(), MODE)
        listening.bind(str(path))
        path.chmod(MODE)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if isinstance(error, ListenError):
            raise
        raise ListenError(
            f"{path}: {error.strerror or error}; set supervisor.socket to a path of at most 107 bytes in a directory "
            "that this user may write to"
        ) from error
    return listening


def _remove_stale_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is not a socket; set supervisor.socket to another path, or move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        listener: int | None
        try:
            probe.connect(str(path))
            listener = peer_of(probe).pid  # who called listen(2)
        except (ConnectionRefusedError, FileNotFoundError):
            listener = None
        except OSError as error:
            raise ListenError(
                f"{path} exists, and connecting to it to check for a daemon failed: {error.strerror or error}"
            ) from error
    if listener is None or was_killed(listener):
        path.unlink(missing_ok=True)
        return
    raise ListenError(f"another daemon listens at {path}; stop it, or set supervisor.socket to another path")


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False
