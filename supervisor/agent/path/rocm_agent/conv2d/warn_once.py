"""Warns the training's user, once per message. Raises nothing, even where warnings are errors."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Set

_given: Set[str] = set()


def warn_once(message: str) -> None:
    """Warn, once per process for each message."""
    if message in _given:
        return
    _given.add(message)
    with suppress(Exception):  # law 10: where warnings are errors, none is given
        warnings.warn(f"conv2d: {message}", stacklevel=3)
