"""Counts the saves that the training makes itself: after each, an exact snapshot is worth taking."""

from __future__ import annotations

import threading

made = 0
"""Calls of torch.save by the training's main thread; what the agent writes is not counted."""


def seen(target: object = None) -> None:
    """Count one save to `target`, unless it is the agent's."""
    global made
    if threading.current_thread() is threading.main_thread() and not getattr(target, "of_the_agent", False):
        made += 1
