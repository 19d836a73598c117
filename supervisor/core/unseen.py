"""Why something about an attempt cannot be watched now, in words; it flags nothing."""

from __future__ import annotations

from supervisor.core.history import History

ENDED = "the attempt has ended"


def no_steps_due(history: History) -> str | None:
    """Return why no step is to be expected; None where one is."""
    if history.over:
        return ENDED
    return "the training has finished" if history.train_ended else None


def no_cards(history: History) -> str | None:
    """Return why nothing is known of the job's cards; None where something is."""
    if history.over:
        return ENDED
    if history.device == "cpu":
        return "it trains on the CPU"
    return None if any(True for gpu in history.gpus if history.uses(gpu)) else "no reading of its GPUs"
