"""Says something to the training's user, once; it raises nothing, not even where warnings are errors."""

from __future__ import annotations

import warnings
from typing import Set

_said: Set[str] = set()


def tell(message: str) -> None:
    """Warn, once a process for each message."""
    if message in _said:
        return
    _said.add(message)
    try:
        warnings.warn(f"conv2d: {message}", stacklevel=3)
    except Exception:  # noqa: S110 - law 10: a warning that is an error here is not said
        pass
