"""One child process: a thread starts it, waits for its end and reports it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from supervisor.children.posix_spawn import Program, spawn
from supervisor.children.running_limit import RunningLimit

REAPED_ELSEWHERE = 255
"""The status of a child that ended, where how it ended is not known."""


class Child:
    """A child process. Once it has ended it stays a zombie, with its id, until `poll` or `wait` has returned that."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pid = 0
        self.returncode: int | None = None
        """Exit status, negative: the signal; None until `poll` or `wait` has returned it."""
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        """This process's ends of the pipes."""
        self._status: int | None = None
        self._error: OSError | ValueError | None = None
        self._thread_id: int | None = None
        self._abandoned = False
        self._begun, self._ended = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    # --- by the thread that starts it -----------------------------------------------------------------------------

    def begin(self, files: Sequence[int]) -> bool:
        """Start the program with these descriptors as 0, 1 and 2; return whether it was started."""
        self._thread_id = threading.get_native_id()
        try:
            if not self._abandoned:
                self.pid = spawn(self.program, files)
        except (OSError, ValueError) as error:
            self._error = error
        with self._lock:
            self._begun.set()
            if self._abandoned and self.pid:
                self._send_signal(signal.SIGKILL)
        return self.pid > 0

    def fail(self, error: OSError) -> None:
        """Report that there was no thread that could start it."""
        self._error = error
        self._begun.set()

    def wait_and_report(self) -> None:
        """Wait until it has ended. The calling thread must stay: the kernel takes it for the parent (prctl(2))."""
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            ended = None  # reaped by other code in this process: it has ended, and how is lost
        with self._lock:
            if ended is None:
                self._status = REAPED_ELSEWHERE
            else:
                self._status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            if self._abandoned:
                self._reap()
            self._ended.set()

    # --- by whoever had it started --------------------------------------------------------------------------------

    def wait_until_begun(self, limit_s: float) -> bool:
        """Return whether it has begun or failed within `limit_s`; where it has not, it is killed and never begins.

        Raises OSError or ValueError where it could not be started.
        """
        if not RunningLimit(limit_s).wait_for(self._begun.wait):
            with self._lock:
                begun = self._begun.is_set()
                self._abandoned = not begun
            if not begun:
                self._kill_unbegun()
                return False
        if self._error is not None:
            raise self._error
        return True

    @property
    def stuck(self) -> bool:
        """Whether its program has neither begun nor failed."""
        return not self._begun.is_set()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self.wait(0.0)

    def wait(self, limit_s: float | None = None) -> int | None:
        """Wait until it has ended, for `limit_s` at most; return the exit status, None while it runs."""
        if self.returncode is None and self._ended.wait(limit_s):
            with self._lock:
                self._reap()
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL; does nothing once it has ended."""
        with self._lock:
            self._send_signal(signal.SIGKILL)

    def kill_group(self) -> None:
        """Send SIGKILL to its process group, of which it must be the leader; does nothing once it was reaped."""
        with self._lock:
            if self.pid and self.returncode is None:
                try:
                    os.killpg(self.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    return

    def end(self, limit_s: float = 1.0) -> bool:
        """Kill it, close the pipes and wait for `limit_s` at most; return whether it has ended.

        One that has not (it waits in the kernel, in state D) is reaped when it does.
        """
        self.kill()
        self.close_pipes()
        if self.wait(limit_s) is not None:
            return True
        self.abandon()
        return False

    def abandon(self) -> None:
        """Have it reaped whenever it ends; `poll` and `wait` still return its status."""
        with self._lock:
            self._abandoned = True
            if self._status is not None:
                self._reap()

    def close_pipes(self) -> None:
        """Close this process's ends."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def _reap(self) -> None:
        if self.returncode is None and self._status is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.returncode = self._status

    def _send_signal(self, number: signal.Signals) -> None:
        if self.pid and self._status is None:
            os.kill(self.pid, number)

    def _kill_unbegun(self) -> None:
        """Kill what the thread that is stuck in starting it has for a child."""
        try:
            below = Path(f"/proc/self/task/{self._thread_id}/children").read_text().split()
        except OSError:
            return  # it is killed as soon as it begins
        for pid in below:
            os.kill(int(pid), signal.SIGKILL)
