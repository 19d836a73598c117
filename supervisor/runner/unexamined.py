"""Counts how often checkpoints could not be examined: no verdict comes of that, until it was tried often enough."""

from __future__ import annotations

import threading
from collections import Counter

from supervisor.core.checkpoints.checkpoint import Fingerprint
from supervisor.runner.proving import Proof

EXAMINED_TIMES = 3
"""How often in all a checkpoint is examined that could not be: one that ends each prover must not stop a search."""


class UnexaminedError(OSError):
    """A checkpoint could not be examined: its disk, want of memory or a limit of time kept it from being read.

    Nothing is known of its content. A verdict would be final, and is not given.
    """


class Unexamined:
    """Safe to call from any thread."""

    def __init__(self) -> None:
        """Begin with none."""
        self._times: Counter[tuple[str, Fingerprint]] = Counter()
        self._lock = threading.Lock()

    def check(self, proof: Proof) -> None:
        """Raise UnexaminedError where a checkpoint was not examined; not where that was tried `EXAMINED_TIMES`."""
        key = proof.checkpoint.key
        with self._lock:
            if proof.is_examined:
                self._times.pop(key, None)
                return
            self._times[key] += 1
            times = self._times[key]
        if times < EXAMINED_TIMES:
            raise UnexaminedError(
                f"{proof.checkpoint.path}: {proof.checkpoint.reason}; it is not rejected for that, but examined again"
            )
