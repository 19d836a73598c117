"""Log records as lines for a journal or a terminal, written by a thread so that a stalled reader blocks nothing.

Standard error may be a pipe or the journal's socket. Both hold a bounded number of bytes; when they are full because
the reader has stopped (a pager left open, a stopped journal), a write blocks.

A line is at most LINE_CHARS long, a value VALUE_CHARS. Of each event about each job a burst is written and then one
line a second, of all together some twenty; what was left out is counted and reported.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import select
import sys
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, TextIO, cast

from supervisor.core.foreign_values import cut
from supervisor.core.stats.rate_limit import Allowance

WAITING_BYTES = 1 << 20
"""Text that waits beyond this is dropped, and its pieces counted."""
END_LIMIT_S = 2.0
"""What is left at the end of the daemon may take so long to be written."""


class LogWriter(io.TextIOBase):
    """Hands the lines that are written to it, one a call, to a thread that writes them to the descriptor `fd`."""

    def __init__(self, fd: int, *, prefix: str = "") -> None:
        """`prefix` comes before the line that counts what was dropped."""
        self._fd, self._prefix = fd, prefix
        self._lines: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._busy = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()
        atexit.register(self.drain)

    def write(self, text: str) -> int:
        """Queue a line, or count it where too much waits already."""
        line = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._bytes + len(line) > WAITING_BYTES:
                self._dropped += 1
            else:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: what was queued is written once the reader reads; callers do not wait for that."""

    def drain(self) -> None:
        """Wait until everything is written, for a limited time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._busy, END_LIMIT_S)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines))
                text, dropped = b"".join(self._lines), self._dropped
                self._lines.clear()
                self._bytes, self._dropped, self._busy = 0, 0, True
            if dropped:
                text += f'{self._prefix}log.dropped lines={dropped} why="standard error was not read"\n'.encode()
            self._write(text)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _write(self, text: bytes) -> None:
        while text:
            try:
                text = text[os.write(self._fd, text) :]
            except BlockingIOError:  # another program made the terminal or pipe non-blocking for all that share it
                select.select([], [self._fd], [])
            except OSError:
                return  # the reader is gone, or the disk is full: it cannot be reported


LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
JOURNAL_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
VALUE_CHARS, ESCAPED_CHARS = 2000, 100
TRACE_CHARS = 8000
LINE_CHARS = 12_000
LINES_PER_S, LINES_AT_ONCE = 1.0, 40
"""Of one event about one job; an incident writes about ten lines."""
ALL_LINES_PER_S, ALL_LINES_AT_ONCE = 20.0, 600
SUMMARY_EVERY_S = 10.0
EVENTS_KNOWN = 1000
SUMMARY_EVENTS = 20


class Line(logging.Formatter):
    """`attempt.stopped job="yolo" rule="stall"`; values as JSON, so that nothing in them can end the line."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        fields = getattr(record, "fields", {})
        shown = " ".join(f"{key}={_format_value(value)}" for key, value in fields.items())
        text = f"{cut(record.getMessage(), VALUE_CHARS)} {shown}".rstrip()
        if record.exc_info:
            text = (
                cut(text, LINE_CHARS - TRACE_CHARS)
                + " exception="
                + _format_trace(self.formatException(record.exc_info))
            )
        text = cut(text, LINE_CHARS)
        if self._journal:
            # The journal has the time; `<4>` before a line is its priority (sd-daemon(3)).
            return f"<{JOURNAL_PRIORITY.get(record.levelno, 6)}>{text}"
        return f"{self.formatTime(record)} {record.levelname.lower()} {text}"


def _format_value(value: object) -> str:
    """Return a value as JSON of some VALUE_CHARS characters; of one that is cut, as a string, the beginning."""
    if isinstance(value, str):
        value = cut(value, VALUE_CHARS)
    text = json.dumps(value, default=lambda other: cut(str(other), VALUE_CHARS))
    if len(text) <= VALUE_CHARS + ESCAPED_CHARS:
        return text
    # A character may take six as JSON.
    return json.dumps(cut(value if isinstance(value, str) else text, VALUE_CHARS // 6))


def _format_trace(text: str) -> str:
    """Return a trace with its beginning and its end, which names the error."""
    if len(text) > TRACE_CHARS // 2:
        text = text[: TRACE_CHARS // 8] + "\n[...]\n" + text[-TRACE_CHARS * 3 // 8 :]
    return json.dumps(text)


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO | LogWriter]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 takes no parameter here


class Handler(_StreamHandler):
    """Writes lines, and counts those beyond the limits instead; the counts follow as `log.left_out`."""

    def __init__(self, stream: TextIO | LogWriter) -> None:
        super().__init__(stream)
        self._all = Allowance(ALL_LINES_PER_S, ALL_LINES_AT_ONCE)
        self._each: dict[tuple[str, str], Allowance] = {}
        self._left_out: Counter[str] = Counter()
        self._reported_at_s: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, or count it."""
        at_s, name = record.created, cut(str(record.msg), 200)
        if self._reported_at_s is None:
            self._reported_at_s = at_s
        if self._left_out and at_s - self._reported_at_s >= SUMMARY_EVERY_S:
            self._write_summary(record)
        about = str(getattr(record, "fields", {}).get("job", ""))[:200]
        if not self._allowance_of(name, about).take(at_s) or not self._all.take(at_s):
            self._left_out[name] += 1
            return
        super().emit(record)

    def close(self) -> None:
        """Tell what was left out at last."""
        if self._left_out:
            self._write_summary(logging.makeLogRecord({"created": self._reported_at_s}))
        super().close()

    def _allowance_of(self, name: str, about: str) -> Allowance:
        if len(self._each) >= EVENTS_KNOWN and (name, about) not in self._each:
            del self._each[next(iter(self._each))]
        return self._each.setdefault((name, about), Allowance(LINES_PER_S, LINES_AT_ONCE))

    def _write_summary(self, like: logging.LogRecord) -> None:
        """Write how many lines of which events were left out, and start counting again."""
        lines = dict(self._left_out.most_common(SUMMARY_EVENTS))
        record = logging.makeLogRecord({"levelno": logging.WARNING, "levelname": "WARNING", "msg": "log.left_out"})
        record.created, record.msecs = like.created, like.msecs
        record.fields = {"lines": self._left_out.total(), "of": lines}
        self._left_out.clear()
        self._reported_at_s = like.created
        super().emit(record)


def begin(level: str, *, journal: bool) -> None:
    """Send log records to standard error from now on, without ever waiting for whoever reads them.

    What else is printed there goes the same way: Python itself reports a thread's exception, a failed finalizer and a
    warning on `sys.stderr`, in whichever thread has it.
    """
    writer = LogWriter(sys.stderr.fileno(), prefix="<4>" if journal else "")
    sys.stderr = cast("TextIO", writer)
    handler = Handler(writer)
    handler.setFormatter(Line(journal=journal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    for noisy in ("apscheduler", "alembic", "urllib3", "uvicorn", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the level at run time."""
    logging.getLogger().setLevel(LEVELS[level])
