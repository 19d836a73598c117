"""One thread that does one task at a time next to the training. The interpreter's exit waits for it, up to a limit.

A thread that is cut off by that end while it is inside torch takes the process down with it.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any, Callable, Optional

from rocm_agent.fence import failed

END_LIMIT_S = 120.0


class Background:
    """Begins its thread with the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._work: Optional[Callable[[], Any]] = None
        self._thread: Optional[threading.Thread] = None

    @property
    def busy(self) -> bool:
        """Whether work is under way or waits."""
        return self._work is not None

    def begin(self, work: Callable[[], Any]) -> bool:
        """Have `work` done; return False where there is other work still."""
        with self._changed:
            if self._work is not None:
                return False
            self._work = work
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                atexit.register(self.wait, END_LIMIT_S)
            self._changed.notify_all()
        return True

    def wait(self, limit_s: Optional[float] = None) -> bool:
        """Wait until nothing is under way; return False where the limit came first. A forked child has no thread."""
        if os.getpid() != self._pid:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._work is None, limit_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work is not None)
                work = self._work
            try:
                work()
            except Exception as error:
                failed("snapshots." + self._name, error)
            work = None
            with self._changed:
                self._work = None
                self._changed.notify_all()
