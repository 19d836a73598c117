"""What is known of a loader's workers: when more of them can gain, and which batches are none of their own pace."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.tuning.compare import median_s
from supervisor.core.tuning.knob import PREFETCH, Facts
from supervisor.core.tuning.trial import Arm

WAITING_WORTH = 0.05
"""Below this share of waiting no change of the loader is tried."""
BUSY = 0.85
"""Share of the processors from which on more workers have none: those there are compute, and wait for no disk."""
STARVED = 0.3
"""From this share of waiting on, batches that workers draw ahead set the pace: nothing but the loader is tried.

Below it some of the waiting is what a training takes itself to receive its batches: a fifth of each step of a fast
one, whether 16 workers fetch or 32. Where as many fetch as there are processors, more are tried from here on.
"""
AHEAD_ENOUGH = 32
"""Batches drawn ahead, from which on no more of them are tried: they smooth what is uneven, and bring no more."""
LOADER_KNOBS = frozenset({"workers", "prefetch_factor"})
"""What exchanges the workers of a loader, and gains nothing where no step waits for its batch."""
COLD = 1.08
"""Of a block with new workers a first half that took so many times as long as the second was made while they began."""


def find_cold_steps(spans: list[float], workers: int) -> int:
    """Return how many of a block's first steps new workers made before they delivered steadily: none, or half of it."""
    half = len(spans) // 2
    half -= half % max(1, workers)
    first, second = (average_turns(part, workers) for part in (spans[:half], spans[half:]))
    is_cold = half > 1 and median_s(first) > COLD * median_s(second)
    return half if is_cold else 0


def find_idle_loader(arm: Arm, wait: float, workers: int, facts: Facts, busy: float | None) -> str | None:
    """Return why a change of the loader can gain nothing where steps wait as long, for batches of so many workers."""
    ahead = workers * (facts.prefetch or PREFETCH)
    if arm.knob == "prefetch_factor" and ahead >= AHEAD_ENOUGH:
        return f"{ahead} batches are drawn ahead already"
    if wait < WAITING_WORTH:
        return f"{wait:.1%} of a step waits for data: a faster loader gains nothing"
    most = facts.processors or 1
    if arm.knob != "workers" or not isinstance(arm.value, int) or not workers >= most < arm.value:
        return None
    if busy is not None and busy >= BUSY * most:
        return f"{workers} workers keep {busy:.1f} of {most} processors busy: more of them gain nothing"
    if wait < STARVED:
        return f"{wait:.0%} of a step waits for data of {workers} workers: more workers than processors gain nothing"
    return None


def find_starved(wait: float, workers: int, facts: Facts, busy: float | None) -> str | None:
    """Return why nothing but a change of the loader can gain where steps wait as long; None where it may.

    Where the model computes on the processors that its workers need, and these are busy, what it takes less of is
    theirs: a small net on two of them was 8 % faster with a fused optimizer, which was not tried.
    """
    if workers == 0 or wait < STARVED:
        return None
    if facts.device == "cpu" and busy is not None and busy >= BUSY * (facts.processors or 1):
        return None
    return f"{wait:.0%} of a step waits for data: what is faster waits longer"


def workers_of(settings: Mapping[str, object], facts: Facts) -> int:
    """Return how many workers a loader has under settings."""
    held = settings.get("workers", facts.workers or 0)
    return held if isinstance(held, int) else 0


def count_ahead(settings: Mapping[str, object], facts: Facts) -> int:
    """Return how many batches the workers of a loader make ahead."""
    prefetch = settings.get("prefetch_factor", facts.prefetch or PREFETCH)
    return (prefetch if isinstance(prefetch, int) else PREFETCH) * workers_of(settings, facts)


def count_switch_steps(held: Mapping[str, object], wanted: Mapping[str, object], facts: Facts) -> int:
    """Return how many batches of the old loader are still to come, and are none of the new one's pace."""
    if loader_of(held) == loader_of(wanted):
        return 0
    return count_ahead(held, facts) + workers_of(wanted, facts) + 1


def loader_of(settings: Mapping[str, object]) -> tuple[object, ...]:
    """Return the part of settings that exchanges the workers of a loader."""
    return tuple(settings.get(name) for name in sorted(LOADER_KNOBS))


def average_turns(times: list[float], workers: int) -> tuple[float, ...]:
    """Return the mean time of each turn of all workers.

    Of two workers that begin together every second step takes no time: no one step is typical.
    """
    turns = [times[at : at + workers] for at in range(0, len(times) - workers + 1, workers)] if workers > 1 else []
    return tuple(sum(turn) / workers for turn in turns) or tuple(times)
