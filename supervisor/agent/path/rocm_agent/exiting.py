"""Reports that the program has come to its end: what it does from then on, in threads and exit handlers, makes no step.

Python calls `threading._shutdown` first at its exit, before it joins threads and before it runs exit handlers; after
`sys.exit` too, which no hook for exceptions sees. A process that trains and is gone without this report was killed, or
crashed; one that its own program ends by a signal is reported by the program's process.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os
import sys

from . import events, exceptions, exit_status
from .fence import fenced
from .layout import CHECKPOINT, EXITING, STEP, VALIDATE

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any, Callable, Optional

    from .recorder import Recorder

_begun_in = 0
_reported_in = 0
"""The processes that did so: a forked child has to do it again."""
_ended_in = 0
"""The process whose end was reported."""
_error = ""
_main_frame: Optional[FrameType] = None
"""The outermost frame of the main thread: whether it has returned shows at the end whether the program had its way."""


@fenced
def begin(holding: Callable[[], Optional[Recorder]]) -> None:
    """Report the end of this process, which trains; `holding` returns its recorder, None where it has none."""
    global _begun_in, _main_frame
    if _begun_in == os.getpid():
        return
    import threading

    if not _begun_in:
        shutdown = threading._shutdown  # type: ignore[attr-defined]

        def _shutdown(*words: Any) -> Any:
            _report_end(holding())
            return shutdown(*words)

        threading._shutdown = _shutdown  # type: ignore[attr-defined]
        for name in ("_exit", "execv", "execve"):
            setattr(os, name, _leaving_by(getattr(os, name), of_status=name == "_exit"))
    _begun_in = os.getpid()
    _main_frame = _find_main_frame()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _note_exception, exitpriority=0)


def watch_program(threading: ModuleType, find_other: Callable[[], int]) -> None:
    """Report at the end of the program that what trains in another process still lives.

    Exit handlers kill it then, an actor of Ray or a process of multiprocessing that is a daemon: after that nothing
    tells it from one that was killed while the program went on. `find_other` returns its pid, 0 where there is none.
    """
    shutdown = threading._shutdown

    def _shutdown(*words: Any) -> Any:
        if not exceptions.is_ending():
            _report_outlived(find_other)
        return shutdown(*words)

    threading._shutdown = _shutdown  # type: ignore[attr-defined]


@fenced
def _report_outlived(find_other: Callable[[], int]) -> None:
    pid = find_other()
    if pid and _is_alive(pid):
        events.write("program_ends", of=pid)


def _is_alive(pid: int) -> bool:
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _leaving_by(leave: Callable[..., Any], *, of_status: bool) -> Callable[..., Any]:
    """Return a function of `os` after which no exit handler runs, that reports the end of this process first."""

    def _leave(*words: Any, **named: Any) -> Any:
        status = next(iter((*words, *named.values())), 0) if of_status else None
        if _begun_in == os.getpid() and (_ended_in != os.getpid() or status):
            _report_left(status)
        return leave(*words, **named)

    return _leave


@fenced
def report_training() -> None:
    """Report once that this process trains as well as the one that has the recorder."""
    global _reported_in
    if _reported_in != os.getpid():
        _reported_in = os.getpid()
        events.write("trains")


def install(popen: ModuleType) -> None:
    """Report the processes of multiprocessing that end by a signal: before the program sends one, or once it reaps it.

    A program may join a process without a look at how it ended, and end with status 0.
    """
    kind: Any = popen.Popen
    if "_send_signal" in vars(kind):
        _report_what_is_sent(kind)
    poll = kind.poll

    def _poll(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.returncode
        code = poll(self, *args, **kwargs)
        if before is None and code is not None and code < 0 and "_rocm_is_ended" not in vars(self):
            _report_killed(self.pid, code)
        return code

    kind.poll = _poll


def _report_what_is_sent(kind: Any) -> None:
    send = kind._send_signal

    def _send_signal(self: Any, sig: int) -> Any:
        if self.returncode is None:
            self._rocm_is_ended = True
            _report_sent(self.pid)
        return send(self, sig)

    kind._send_signal = _send_signal


@fenced
def _report_sent(pid: int) -> None:
    events.write("trains", of=pid, ended=True)


@fenced
def _report_killed(pid: int, code: int) -> None:
    from .elastic_hook import name_end

    events.write("trains", of=pid, ended=True, error=name_end(code))


@fenced
def _note_exception() -> None:
    """Keep the exception that ends a process of multiprocessing, which calls this while it is raised."""
    global _error
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, SystemExit):
        _error = "%s: %s" % (type(error).__name__, error)


@fenced
def _report_left(status: Optional[int]) -> None:
    """Report an end by `os._exit`, as of programs whose threads or libraries hang, or (None) as another program."""
    global _ended_in
    _ended_in = os.getpid()
    known = None if status is None else status & 0xFF
    events.write("trains", ended=True, error=_error or ("status %d" % status if status else ""), status=known)


@fenced
def _report_end(recorder: Optional[Recorder]) -> None:
    global _ended_in
    if _begun_in == os.getpid():
        _ended_in = os.getpid()
        well = _has_main_returned() or (not exceptions.is_ending() and exit_status.find() == 0)
        events.write("trains", ended=True, error=_error, status=0 if well else None)
    # An exception that ends it is reported as such, and has the limit of the stage that it was raised in.
    if recorder is not None and recorder.stage in (STEP, VALIDATE, CHECKPOINT) and not exceptions.is_ending():
        recorder.stage, recorder.aside = EXITING, 0


def _find_main_frame() -> Optional[FrameType]:
    import threading

    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_main_returned() -> bool:
    """Whether the program's outermost frame has returned, so that its status is 0.

    After an exception, `SystemExit` as well, that frame is where it was raised.
    """
    from opcode import opname

    frame = _main_frame
    if frame is None or not 0 <= frame.f_lasti < len(frame.f_code.co_code):
        return False
    return opname[frame.f_code.co_code[frame.f_lasti]] in ("RETURN_VALUE", "RETURN_CONST")
