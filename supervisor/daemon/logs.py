"""How log records become lines: an event name and its fields, safe for a journal or a terminal; it filters nothing."""

from __future__ import annotations

import json
import logging
import sys

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
JOURNAL_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class Line(logging.Formatter):
    """`attempt.stopped job="yolo" rule="stall"`; values as JSON, so that nothing in them can end the line."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        fields = getattr(record, "fields", {})
        told = " ".join(f"{key}={json.dumps(value, default=str)}" for key, value in fields.items())
        text = f"{record.getMessage()} {told}".rstrip()
        if record.exc_info:
            text += " exception=" + json.dumps(self.formatException(record.exc_info))
        if self._journal:
            # The journal has the time; `<4>` before a line is its priority (sd-daemon(3)).
            return f"<{JOURNAL_PRIORITY.get(record.levelno, 6)}>{text}"
        return f"{self.formatTime(record)} {record.levelname.lower()} {text}"


def begin(level: str, *, journal: bool) -> None:
    """Send log records to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line(journal=journal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    for noisy in ("apscheduler", "alembic", "urllib3", "uvicorn", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the level at run time."""
    logging.getLogger().setLevel(LEVELS[level])
