"""Reports the exception that ends a program, then calls the program's own hook. Prints nothing."""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import atexit
import sys

from . import events
from .fence import fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Optional, Type

TRACEBACK_LIMIT = 16 << 10

_reported = None


def begin() -> None:
    """Report exceptions that end this process, also where a library replaces our hook."""
    users = sys.excepthook

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        _report_once(kind, error, trace)
        users(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_report_last)


def is_ending() -> bool:
    """Whether an exception ends this program."""
    return _reported is not None


def _report_last() -> None:
    """Report the interpreter's last exception, unless the hook has reported it already."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        _report_once(sys.last_type, error, sys.last_traceback)


@fenced
def _report_once(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    global _reported
    if error is _reported:
        return
    _reported = error
    try:
        _write_exception(kind, error, trace)
    except RuntimeError as interrupting:
        # A signal's handler of the program raised in here. torch's does when a loader's worker was killed, which is
        # why the program is ending; where it ended is in the first traceback.
        _write_exception(type(interrupting), interrupting, trace)


def _write_exception(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    import traceback  # costs milliseconds, and most programs end without it

    text = "".join(traceback.format_exception(kind, error, trace))
    if len(text) > TRACEBACK_LIMIT:  # the end names the error, the beginning says which command led there
        text = text[: TRACEBACK_LIMIT // 4] + "\n[...]\n" + text[-TRACEBACK_LIMIT * 3 // 4 + 8 :]
    events.write("exception", type=kind.__name__, message=str(error), traceback=text)
