"""Which faults strike an ETTR trial, and when; it strikes none."""

from __future__ import annotations

import argparse
import random
import signal
from dataclasses import dataclass

APART_S = 40.0
ORDERED = ("exception", "out_of_memory", "nan", "loader_stall", "validation_stall")
"""The training does these to itself."""
SIGNALS = {"sigkill": signal.SIGKILL, "sigsegv": signal.SIGSEGV, "sigabrt": signal.SIGABRT, "sigstop": signal.SIGSTOP}
FAULTS = (*SIGNALS, *ORDERED, "worker_killed", "checkpoint_truncated", "daemon_killed")
LEARNED_FROM = {"sigstop": ("step", 1100), "loader_stall": ("step", 1100), "validation_stall": ("validation", 3)}
"""What must have been made before the limits are learned by which these are found, with some steps to spare."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One injection and what came of it; seconds of the Unix clock."""

    name: str
    struck: float | None = None
    attempt: int | None = None
    rule: str = ""
    remedy: str = ""
    found_s: float | None = None
    lost_s: float = 0.0
    down_s: float = 0.0
    start_s: float = 0.0

    @property
    def cost_s(self) -> float:
        """All that it cost."""
        return self.lost_s + self.down_s + self.start_s


def planned(asked: argparse.Namespace, chance: random.Random) -> tuple[list[Fault], list[float]]:
    """Return the faults in random order, each kind as often as the others, and as many random moments.

    A moment is in seconds after the first launch, at least APART_S from the next.
    """
    kinds, count, seconds = asked.only, asked.faults, asked.minutes * 60
    drawn = [item for _ in range(-(-count // len(kinds))) for item in chance.sample(kinds, len(kinds))][:count]
    apart_s = min(APART_S, seconds / (count + 1) / 2)
    places = sorted(chance.uniform(0, seconds - apart_s * (count + 1)) for _ in drawn)
    return [Fault(name=item) for item in drawn], [at + apart_s * (index + 1) for index, at in enumerate(places)]
