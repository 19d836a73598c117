"""Begins work in a thread of its own behind a fence; what the work came to, it tells by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def begin(what: str, job: str, work: Callable[[], None]) -> None:
    """Have `work` done beside everything else; an error that it did not expect is logged and ends it alone."""

    def fenced() -> None:
        try:
            work()
        except Exception:
            log.exception("act.failed", extra={"fields": {"act": what, "job": job}})

    threading.Thread(target=fenced, name=f"{what}-{job}", daemon=True).start()
