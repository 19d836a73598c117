"""Requests JSON from a child process, line by line, so that a library that hangs or crashes cannot harm the daemon.

And what the sources have in common that read through such a child.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from supervisor.children.child import Child as Process
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, start
from supervisor.core.foreign_values import read_json_object
from supervisor.sources.gpu.source import SourceSilentError

_LONGEST_ANSWER_BYTES = 1 << 20


class Child:
    """A script that reports once that it is ready and then answers each line; started at the first request."""

    def __init__(self, script: Path, deadline_s: float, interpreter: str = sys.executable) -> None:
        # -I: no package from the user's directory or PYTHONPATH may replace an installed one.
        self._command = (interpreter, "-I", str(script))
        self._deadline_s = deadline_s
        self._process: Process | None = None
        self._undead: Process | None = None
        self._unread = b""

    def ask(self) -> Mapping[str, object]:
        """Return the answer. Raises SourceSilentError with the child's error, or if it exceeds the deadline."""
        try:
            if self._process is None:
                self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
            return self._read_answer()
        except SourceSilentError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise SourceSilentError(f"child: {error.strerror or error}") from error

    def close(self) -> None:
        """Kill the child and close its pipes; a child in an uninterruptible wait is not waited for."""
        child, self._process, self._unread = self._process, None, b""
        if child is not None and not child.end():
            self._undead = child

    def _start(self) -> None:
        if self._undead is not None and self._undead.poll() is None:
            raise SourceSilentError(f"an earlier child (pid {self._undead.pid}) could not be killed")
        self._process = start(self._command, stdin=PIPE, stdout=PIPE, new_session=True)
        self._read_answer()

    def _read_answer(self) -> Mapping[str, object]:
        answer = read_json_object(self._read_line())
        if answer is None:
            raise SourceSilentError("the child's answer is not a JSON object")
        if "error" in answer:
            raise SourceSilentError(str(answer["error"])[:200])
        return answer

    def _read_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        limit = RunningLimit(self._deadline_s)
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not limit.wait_for(lambda wait_s: bool(ready.select(wait_s))):
                    raise SourceSilentError(f"no answer within {self._deadline_s:.0f} s")
                chunk = os.read(self._process.stdout.fileno(), 65536)
                self._unread += chunk
                if not chunk or len(self._unread) > _LONGEST_ANSWER_BYTES:
                    raise SourceSilentError("the child ended" if not chunk else "the child's answer is incomplete")
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class ChildSource:
    """A source that reads through a child, started at the first reading and kept."""

    def __init__(self, script: Path, interpreter: str, interval_s: float, deadline_s: float) -> None:
        self._child = Child(script, deadline_s, interpreter)
        self.interval_s = interval_s
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Kill the child."""
        self._child.close()


def list_gpus(
    answer: Mapping[str, object], key: str, parse_address: Callable[[object], str | None]
) -> Iterator[tuple[Mapping[str, object], str]]:
    """Yield each GPU of a child's answer that has a PCI address under `key`, with that address."""
    listed = answer.get("cards")
    for values in listed if isinstance(listed, list) else ():
        if isinstance(values, dict) and (gpu := parse_address(values.get(key))):
            yield values, gpu
