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
BY_STEPS = ("sigstop", "loader_stall")
"""Found by limits that are learned from steps; that of a validation needs three of them."""
LEARNED_STEPS, STEP_S = 1000, 0.35
"""How long a step takes at most, with everything around it."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One injection and what came of it; seconds of the Unix clock."""

    name: str
    due_s: float
    """After the first launch."""
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


def planned(asked: argparse.Namespace, chance: random.Random) -> list[Fault]:
    """Return the faults, each kind as often as the others, at random moments at least APART_S apart."""
    kinds, count, seconds = asked.only, asked.faults, asked.minutes * 60
    drawn = [one for _ in range(-(-count // len(kinds))) for one in chance.sample(kinds, len(kinds))][:count]
    apart_s = min(APART_S, seconds / (count + 1) / 2)
    places = sorted(chance.uniform(0, seconds - apart_s * (count + 1)) for _ in drawn)
    free = [place + apart_s * (index + 1) for index, place in enumerate(places)]
    learned_s = {"validation_stall": 3 * asked.epoch_steps * STEP_S} | dict.fromkeys(BY_STEPS, LEARNED_STEPS * STEP_S)
    last_s = {"validation_stall": seconds - asked.epoch_steps * STEP_S}
    faults = []
    for name in sorted(drawn, key=lambda one: -learned_s.get(one, 0.0)):
        able = [one for one in free if learned_s.get(name, 0.0) <= one <= last_s.get(name, seconds)]
        faults.append(Fault(name=name, due_s=chance.choice(able or free[-1:])))
        free.remove(faults[-1].due_s)
    return sorted(faults, key=lambda one: one.due_s)
