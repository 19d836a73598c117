"""The daemon's end, part by part: systemd is asked for time before each, and a part that fails keeps no other from it.

Together the parts may take longer than TimeoutStopSec, whose end is a SIGKILL; each by itself has a limit far below
what is asked for. A message that is lost is made good by the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

log = logging.getLogger(__name__)

PART_EXTENSION_S = 60.0
"""Asked for before each part, of which none takes half as long, and for what the interpreter does after the last."""


class AsksForTime(Protocol):
    """Whom the service manager hears of."""

    def extend_timeout(self, seconds: float, *, again: bool = False) -> None:
        """Ask for `seconds` more, from now, to stop; what is asked `again` does not wait to be sent."""
        ...


def end_in_turn(manager: AsksForTime, parts: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """End the parts one after the other; an error is logged, as the record is closed by the last of them."""
    for number, (name, end) in enumerate(parts):
        manager.extend_timeout(PART_EXTENSION_S, again=number > 0)
        try:
            end()
        except Exception:
            log.exception("daemon.part_failed", extra={"fields": {"part": name}})
    manager.extend_timeout(PART_EXTENSION_S, again=True)
