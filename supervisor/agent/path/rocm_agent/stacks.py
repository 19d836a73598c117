"""Lets the daemon read the stacks of every Python process: on a signal the process dumps them into its own file.

faulthandler writes from C without the interpreter's help, so a process that hangs in a GPU driver answers too. The
file's presence says that the process answers; the signal's default action would end one that does not.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from _signal import SIGRTMIN  # the signal package costs an import of enum

from .layout import STACKS, STACKS_SIGNAL_OFFSET

_folder = None
_file = None
_path = None


def begin(folder: str) -> None:
    """Answer the signal from now on, in this process."""
    global _folder
    _folder = os.path.join(folder, STACKS)
    os.makedirs(_folder, exist_ok=True)
    _register_dump()
    atexit.register(end)


def end() -> None:
    """Remove the file: from now on the signal must not be sent."""
    global _path
    if _path is not None and _path == _own_path():
        path, _path = _path, None
        try:
            place = _open_folder()
        except OSError:
            return
        try:  # noqa: SIM105 - contextlib costs an import at every interpreter's start
            os.unlink(os.path.basename(path), dir_fd=place)
        except OSError:
            pass
        os.close(place)


def fork() -> None:
    """In a forked child: answer into a file of its own, and take it away where multiprocessing lets the child end."""
    global _file
    if _file is None:
        return
    os.close(_file)
    _file = None
    _register_dump()
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        # multiprocessing's children leave without atexit; what it runs after the fork may register their own ending.
        processes.register_after_fork(_Ending, lambda _: processes.Finalize(None, end, exitpriority=0))


class _Ending:
    """A key for multiprocessing's table of what to run after a fork, which holds keys weakly: a class lives on."""


def _register_dump() -> None:
    global _file, _path
    path = _own_path()
    name = os.path.basename(path)
    early = name + ".new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    place = _open_folder()
    try:
        _file = os.open(early, flags, 0o640, dir_fd=place)
        os.fchmod(_file, 0o640)  # the daemon may be another user of the group, whatever the training's umask says
        faulthandler.register(SIGRTMIN + STACKS_SIGNAL_OFFSET, file=_file, all_threads=True, chain=False)
        os.rename(early, name, src_dir_fd=place, dst_dir_fd=place)  # only now may the signal come
        _path = path
    finally:
        os.close(place)


def _open_folder() -> int:
    """Return a descriptor of the folder itself: a link in its place would have every process write elsewhere."""
    return os.open(_folder or "", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _own_path() -> str:
    return os.path.join(_folder or "", "%d.txt" % os.getpid())
