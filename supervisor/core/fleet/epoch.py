"""The number of a launch of all ranks: it only grows, and what carries a lower one is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"([A-Za-z0-9_-]{1,64})\.(\d{1,9})\.(\d{1,9})")
LAUNCHES_MAX = 100_000_000
"""One each second for three years."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One launch of all ranks: the engine's job, how often the engine restarted it, how often the leader did.

    Kubernetes counts leaders in place of restarts: of two that each take themselves for the leader, the later one's
    launches are the newer.

    `TORCHELASTIC_RESTART_COUNT` cannot serve: after a fault it differs between the nodes.
    """

    job: str
    engine_restarts: int
    relaunch: int

    @property
    def is_possible(self) -> bool:
        """Whether a training can have come so far: from no other does a leader go on, so that it runs out of none."""
        return max(self.engine_restarts, self.relaunch) <= LAUNCHES_MAX

    def __str__(self) -> str:
        """Return it as the id of its rendezvous."""
        return f"{self.job}.{self.engine_restarts}.{self.relaunch}"

    def is_newer_than(self, other: Epoch | None) -> bool:
        """Whether it comes after another; of two trainings neither does."""
        if other is None:
            return True
        own, its = (self.engine_restarts, self.relaunch), (other.engine_restarts, other.relaunch)
        return self.job == other.job and own > its

    def next(self, fence: int = 0) -> Epoch:
        """Return the number of the next launch by a leader whose engine has counted `fence`."""
        return Epoch(self.job, max(self.engine_restarts, fence), self.relaunch + 1)


def read_epoch(text: object) -> Epoch | None:
    """Return the epoch that a text names; None for anything else."""
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    return Epoch(found[1], int(found[2]), int(found[3])) if found is not None else None


def check_job(name: str) -> str:
    """Return the name of a training as an epoch has it. Raises ValueError for one that it cannot have."""
    if _TEXT.fullmatch(f"{name}.0.0") is None:
        raise ValueError(f"training {name!r}: use 1 to 64 letters, digits, - and _")
    return name
