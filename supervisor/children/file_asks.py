"""The daemon's side of the process that works on files: starts it, asks it, gives each answer to who waits for it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, BinaryIO, ParamSpec, TypeVar, cast

from supervisor.children.child import Child
from supervisor.children.file_server import pack, read_message, write_fully
from supervisor.children.installed import AT_START, MARK, ROOT, was_replaced
from supervisor.children.prompt_thread import PromptThread
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, start
from supervisor.core.stats.log_limit import LogLimit

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TRIES = 2
LOG_AGAIN_S = 600.0
SERVE = (
    "import sys; sys.path.append(sys.argv[1]); from supervisor.children.file_server import serve; serve(*sys.argv[1:])"
)
REPLACED = "the package was replaced since this process began"


class NoAnswerError(RuntimeError):
    """The process that works on files ended before it answered; nothing is known of what it was asked."""


class _Asked:
    """One question; its answer comes from another thread."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.overdue = False
        """Whether who asked waits for it no more."""
        self.answered = threading.Event()
        self.answer: tuple[bool | None, Any] | None = None
        """As `file_server.answer_to` has it; None where the process ended before."""


class FileServer:
    """The other process: started at the first question, and again at the next where it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._questions: SimpleQueue[bytes] = SimpleQueue()
        """Those of the present process that are still to be written to it."""
        self._asked: dict[int, _Asked] = {}
        self._last = 0
        self._log_limit = LogLimit(LOG_AGAIN_S)

    @property
    def pid(self) -> int | None:
        """Its process id; None while there is none."""
        child = self._child
        return child.pid if child is not None else None

    def do(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Return what `work` returns there, or raise what it raises.

        Where no process can be started, or what it would import is of another version by now, it is done here. Raises
        NoAnswerError where two of them ended over it.
        """
        return self.do_within(None, work, *given, **named)

    def do_within(self, limit_s: float | None, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """As `do`; raises TimeoutError where there is no answer for `limit_s`.

        As long as the same question is open after that it raises at once, so that it holds one thread there.
        """
        body = pickle.dumps((work, given, named))
        if limit_s is not None and self._is_overdue(body):
            raise _late(limit_s)
        for _ in range(TRIES):
            try:
                asked = self._ask(body)
            except (OSError, RuntimeError, MemoryError) as error:
                return self._do_here(str(error), work, *given, **named)
            limit = None if limit_s is None else RunningLimit(limit_s)
            if not (asked.answered.wait() if limit is None else limit.wait_for(asked.answered.wait)):
                asked.overdue = True
                raise _late(limit_s)
            if asked.answer is not None:
                succeeded, value = asked.answer
                if succeeded is None:
                    return self._do_here(value, work, *given, **named)
                if succeeded:
                    return cast("T", value)
                raise value
        raise NoAnswerError(f"the process that works on files ended {TRIES} times before it had answered")

    def _do_here(self, why: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        if self._log_limit.allows(why, time.perf_counter()):
            log.warning("files.not_apart", extra={"fields": {"why": why}})
        return work(*given, **named)

    def _is_overdue(self, body: bytes) -> bool:
        with self._lock:
            return any(asked.overdue and asked.body == body for asked in self._asked.values())

    def _ask(self, body: bytes) -> _Asked:
        asked = _Asked(body)
        with self._lock:
            if self._child is None:
                self._begin()
            self._last += 1
            self._asked[self._last] = asked
            self._questions.put(pack(self._last, body))
        return asked

    def _begin(self) -> None:
        if was_replaced():
            raise OSError(REPLACED)
        # -S -I: it imports nothing from a directory of a user, which may lie on such a file system.
        command, env = (
            [sys.executable, "-S", "-I", "-c", SERVE, ROOT, MARK, AT_START or ""],
            {**os.environ, "MALLOC_ARENA_MAX": "1"},
        )
        child = start(command, stdin=PIPE, stdout=PIPE, env=env)
        questions: SimpleQueue[bytes] = SimpleQueue()
        try:
            PromptThread(lambda: self._read_answers(child), "files apart").start()
            PromptThread(lambda: self._write_questions(child, questions), "files asked").start()
        except (RuntimeError, MemoryError):
            child.end()
            raise
        self._child, self._questions = child, questions

    def _write_questions(self, child: Child, questions: SimpleQueue[bytes]) -> None:
        """Write what is asked, in its own thread: a process that is stopped takes nothing once its pipe is full."""
        assert child.stdin is not None
        # OSError: it has ended. Its pipe may be closed meanwhile, and the number be another file's.
        with contextlib.suppress(OSError, ValueError), os.fdopen(os.dup(child.stdin.fileno()), "wb") as pipe:
            while question := questions.get():
                write_fully(pipe.fileno(), question)
        with self._lock:
            self._forget(child)

    def _read_answers(self, child: Child) -> None:
        assert child.stdout is not None
        # ValueError: closed by whoever found out first that it has ended.
        with contextlib.suppress(OSError, ValueError), os.fdopen(os.dup(child.stdout.fileno()), "rb") as answers:
            while (message := read_message(cast("BinaryIO", answers))) is not None:
                self._give(*message)
        with self._lock:
            self._forget(child)

    def _give(self, number: int, body: bytes) -> None:
        with self._lock:
            asked = self._asked.pop(number, None)
        if asked is not None:
            try:
                asked.answer = pickle.loads(body)  # noqa: S301 - from a child of ours, over a pipe that only it has
            except Exception as error:  # noqa: BLE001 - who waits for it is told
                asked.answer = (False, RuntimeError(f"an answer that cannot be read: {error}"))
            asked.answered.set()

    def _forget(self, child: Child) -> None:
        """Leave a process that has ended, and tell those who wait for it; the lock is held."""
        if self._child is not child:
            return
        self._child = None
        self._questions.put(b"")  # ends the thread that writes them
        child.kill()
        child.close_pipes()
        child.abandon()
        waiting, self._asked = list(self._asked.values()), {}
        for asked in waiting:
            asked.answered.set()


def _late(limit_s: float | None) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"does not answer within {limit_s:g} s")
