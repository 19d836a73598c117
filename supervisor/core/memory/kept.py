"""The estimate of a job's memory that was kept when a person had it made, for its remedies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor.core.foreign_values import BYTES_MAX, as_int, as_text

BATCH_MAX = 1 << 20
SAME_CAPACITY = 0.01
"""Two GPUs of which the memory differs by less are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEstimate:
    """Of the command as configured, without any change that was only asked about."""

    torch: str
    card_bytes: int
    configured: int
    """Samples in a micro-batch by its loader."""
    largest: int
    """The largest micro-batch that fits; 0: none does."""
    ran: bool = False
    """Whether that one was seen to run."""

    def is_of(self, torch: str | None, capacity_bytes: int | None) -> bool:
        """Whether it holds for an attempt with this torch, on a GPU with this memory; not where one is not known."""
        if torch != self.torch or capacity_bytes is None:
            return False
        return abs(capacity_bytes - self.card_bytes) <= SAME_CAPACITY * self.card_bytes


def digest_command(command: Sequence[str]) -> str:
    """Return what identifies a command, of any length."""
    return hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()


def read_kept_estimate(kept: Mapping[str, object]) -> KeptEstimate | None:
    """Return an estimate as it was kept, None where a part is missing."""
    torch, card = as_text(kept.get("torch")), as_int(kept.get("card_bytes"), 1, BYTES_MAX)
    configured = as_int(kept.get("configured"), 1, BATCH_MAX)
    largest = as_int(kept.get("largest"), 0, BATCH_MAX)
    if torch is None or card is None or configured is None or largest is None:
        return None
    return KeptEstimate(
        torch=torch, card_bytes=card, configured=configured, largest=largest, ran=kept.get("ran") is True
    )
