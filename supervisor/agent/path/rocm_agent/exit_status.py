"""Finds the status that `sys.exit` has ended the program with: no hook for exceptions is called for `SystemExit`.

The interpreter frees the exception that has left the outermost frame before it ends, when no frame is left. One that
the program caught is freed while a frame runs, or, as the context of a later exception, after the frame that caught it
has gone on.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os
import sys

from .fence import fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import FrameType
    from typing import List, Optional, Tuple

    Places = List[Tuple[FrameType, int]]
    """Frames, each with its instruction."""

_noted: Optional[Tuple[int, int]] = None
"""The process that has ended, and its status."""


def find() -> Optional[int]:
    """Return the status of this process, whose last frame is gone; None where it is not known."""
    return _noted[1] if _noted is not None and _noted[0] == os.getpid() else None


@fenced
def follow(raised: SystemExit) -> None:
    """Have the status of an exit noted once that has ended the program; one in another thread ends that alone."""
    import threading

    code = raised.code
    if threading.current_thread() is threading.main_thread() and (code is None or isinstance(code, int)):
        raised._rocm_follower = _Follower((code or 0) & 0xFF, _list_places())  # type: ignore[attr-defined]


class _Follower:
    """Lies in an exception, and notes its status if it is freed after no frame has caught it."""

    def __init__(self, status: int, places: Places) -> None:
        self.status, self.places, self.pid = status, places, os.getpid()

    def __del__(self) -> None:
        if sys._getframe().f_back is None:
            self._note_end()

    @fenced
    def _note_end(self) -> None:
        global _noted
        import threading

        if threading.current_thread() is not threading.main_thread() or self.pid != os.getpid() or find() is not None:
            return  # an exception is freed before its context
        if all(_passed_through(frame, at) for frame, at in self.places):
            _noted = self.pid, self.status


def _list_places() -> Places:
    """Return the frames that an exit leaves, without those of the agent."""
    frame: Optional[FrameType] = sys._getframe()
    places: Places = []
    folder = os.path.dirname(__file__)
    while frame is not None:
        if os.path.dirname(frame.f_code.co_filename) != folder:
            places.append((frame, frame.f_lasti))
        frame = frame.f_back
    return places


def _passed_through(frame: FrameType, raised_at: int) -> bool:
    """Whether an exception that was raised at an instruction of a frame has left it, in `finally` or `raise` as well.

    Before Python 3.10 an exception that takes its place in an `except` block looks the same.
    """
    from opcode import opname

    last, code = frame.f_lasti, frame.f_code.co_code
    if last == raised_at or sys.version_info < (3, 10):
        return last == raised_at
    name = opname[code[last]]
    return name == "RERAISE" or (name == "RAISE_VARARGS" and code[last + 1] == 0)
