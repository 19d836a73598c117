"""Reports the exception that ends a program, then calls the program's own hook. Prints nothing.

So is one that the program catches, prints in its own way and answers with `sys.exit(1)`, as Hydra's decorator does: no
hook for exceptions is called for that.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import atexit
import builtins
import os
import sys
from time import monotonic_ns

from . import events
from .fence import fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any, Callable, Optional, Tuple, Type

    Report = Tuple[str, str, str]
    """Type, message and traceback of an exception."""

TRACEBACK_LIMIT = 16 << 10
EXIT_LIMIT_NS = 60 * 10**9
"""A program that lives on for longer after a call of `sys.exit` has caught that too."""

_reported = None
_answered: Optional[Tuple[int, int, Report]] = None
"""The exception that was being handled when the end was asked for: process, time and report."""


_left: Optional[Tuple[int, Report]] = None
"""The exception that left the training of a framework last, which the program may have caught: process and report."""


def begin() -> None:
    """Report exceptions that end this process, also where a library replaces our hook."""
    users = sys.excepthook

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        _report_once(kind, error, trace)
        users(kind, error, trace)

    sys.excepthook = hook
    sys.exit = _watch_exit(sys.exit, 0)
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":  # `exit` and `quit` raise by themselves
        quitter.__call__ = _watch_exit(quitter.__call__, 1)
    atexit.register(_report_last)


def watch_printing(traceback: ModuleType) -> None:
    """Report an exception that ends a process of multiprocessing, which prints it itself and calls no hook.

    The program may wait for such a process for ever.
    """
    printing = traceback.print_exc

    def print_exc(*words: Any, **named: Any) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_name == "_bootstrap" and caller.f_globals.get("__name__") == "multiprocessing.process":
            _report_raised()
        printing(*words, **named)

    traceback.print_exc = print_exc


@fenced
def _report_raised() -> None:
    error = sys.exc_info()[1]
    if isinstance(error, Exception):
        _report_once(type(error), error, error.__traceback__)


def watch_thread() -> None:
    """Report the exception that ends the thread which trains, where that is not the first one: a server lives on."""
    import threading

    own, users = threading.current_thread(), threading.excepthook
    if own is threading.main_thread():
        return

    def hook(ended: Any) -> None:
        if ended.thread is own:
            _report_of_thread(ended)
        users(ended)

    threading.excepthook = hook


@fenced
def _report_of_thread(ended: Any) -> None:
    if isinstance(ended.exc_value, Exception):
        _write_exception(_describe(ended.exc_value, ended.exc_type, ended.exc_traceback))


class Training:
    """While a framework trains: what leaves it is kept, to be reported where the program catches it and ends next."""

    def __enter__(self) -> None:
        """Begin; what an earlier training was left by is kept until this one ends."""

    def __exit__(self, _kind: object, error: Optional[BaseException], _trace: object) -> None:
        """It has ended, or an exception leaves it; a request to end the program is none of the training's."""
        if error is None or isinstance(error, Exception):
            _keep_left(error)


@fenced
def _keep_left(error: Optional[Exception]) -> None:
    global _left
    _left = None if error is None else (os.getpid(), _describe(error))


def is_ending() -> bool:
    """Whether an exception ends this program."""
    return _reported is not None


def _watch_exit(leave: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Return `leave`, whose argument at a position is the exit status, so that what it answers is kept."""

    def watched(*words: Any, **named: Any) -> Any:
        status = words[position] if len(words) > position else named.get("code")
        _note_answered(status)
        try:
            return leave(*words, **named)
        except SystemExit as raised:
            _follow(raised)
            raise

    watched.__name__, watched.__doc__ = leave.__name__, leave.__doc__  # functools costs a start more than all of this
    return watched


@fenced
def _follow(raised: SystemExit) -> None:
    from . import exit_status

    exit_status.follow(raised)


@fenced
def _note_answered(status: object) -> None:
    """Keep what is being handled; as text, for an exception keeps every frame's tensors."""
    global _answered
    import threading

    if threading.current_thread() is not threading.main_thread():
        return  # it ends that thread alone
    error = sys.exc_info()[1]
    # A wrong argument is printed with the program's usage: that says more. One that has the status for its message, as
    # click's Exit, only passes a status on, as that of a child which a launcher waited for.
    known = isinstance(error, Exception) and type(error).__module__ != "argparse" and str(error) != str(status)
    _answered = (os.getpid(), monotonic_ns(), _describe(error)) if status and known and error is not None else None


def _report_last() -> None:
    """Report the interpreter's last exception, unless the hook has reported it already."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        _report_once(sys.last_type, error, sys.last_traceback)
    elif _reported is None:
        _report_answered()


@fenced
def _report_answered() -> None:
    pid, at_ns, report = _answered or (0, 0, None)
    if report is not None and pid == os.getpid() and monotonic_ns() - at_ns < EXIT_LIMIT_NS:
        _write_exception(report)
    elif _left is not None and _left[0] == os.getpid():
        _write_exception(_left[1])


@fenced
def _report_once(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    global _reported
    if error is _reported:
        return
    _reported = error
    try:
        _write_exception(_describe(error, kind, trace))
    except RuntimeError as interrupting:
        # A signal's handler of the program raised in here. torch's does when a loader's worker was killed, which is
        # why the program is ending; where it ended is in the first traceback.
        _write_exception(_describe(interrupting, type(interrupting), trace))


def _describe(
    error: BaseException, kind: Optional[Type[BaseException]] = None, trace: Optional[TracebackType] = None
) -> Report:
    import traceback  # costs milliseconds, and most programs end without it

    kind = kind or type(error)
    text = "".join(traceback.format_exception(kind, error, trace or error.__traceback__))
    if len(text) > TRACEBACK_LIMIT:  # the end names the error, the beginning says which command led there
        text = text[: TRACEBACK_LIMIT // 4] + "\n[...]\n" + text[-TRACEBACK_LIMIT * 3 // 4 + 8 :]
    return kind.__name__, str(error), text


def _write_exception(report: Report) -> None:
    kind, message, text = report
    events.write("exception", type=kind, message=message, traceback=text)
