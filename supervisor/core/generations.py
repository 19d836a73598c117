"""Which generations of a job's checkpoints are kept: a choice over values; it deletes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from supervisor.core.checkpoints import Checkpoint, Fingerprint, Verdict, newest_first

HOUR_S = 3600.0
BEST = "best"
"""How the name of a file begins in which a framework keeps its best state."""

Key = tuple[str, Fingerprint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is kept of each job."""

    keep_newest: int = 3
    """So many proven ones, and so many that nobody has looked at yet."""
    keep_hourly: int = 12
    """The newest one of each of the last so many hours in which any was saved."""
    keep_best: int = 1
    limit_bytes: int = 20_000_000_000


def kept(generations: Iterable[Checkpoint], policy: Policy, *, room: bool = True) -> dict[Key, str]:
    """Return which generations are kept and by what limit, in words; the others may go.

    Rejected ones are not kept. Over the size bound the oldest go first, the best and the newest last, and the newest
    proven one never. Without `room` on the disk that one alone is kept, with what is newer and not yet looked at.
    """
    ordered = newest_first(one for one in generations if one.verdict is not Verdict.REJECTED)
    proven = [one for one in ordered if one.verdict is Verdict.PROVEN]
    waiting = [one for one in ordered if one.verdict is None]
    reasons: dict[Key, list[str]] = {}
    chosen = _chosen(proven, policy) if room else [("newest", proven[:1])]
    for word, ones in (*chosen, ("not yet proven", waiting[: policy.keep_newest if room else 1])):
        for one in ones:
            reasons.setdefault(one.key, []).append(word)
    words = {key: ", ".join(found) for key, found in reasons.items()}
    return _within(policy.limit_bytes, ordered, proven, words)


def _chosen(proven: Sequence[Checkpoint], policy: Policy) -> list[tuple[str, Sequence[Checkpoint]]]:
    hours: dict[int, Checkpoint] = {}
    for one in proven:
        hours.setdefault(int(one.saved_unix_s // HOUR_S), one)
    recent = sorted(hours, reverse=True)[: policy.keep_hourly]
    return [
        ("newest", proven[: max(1, policy.keep_newest)]),
        ("hourly", [hours[hour] for hour in recent]),
        ("best", _best(proven)[: policy.keep_best]),
    ]


def _best(proven: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return them by fitness; where none is known, those that their framework called its best, newest first."""
    measured = [one for one in proven if one.fitness is not None]
    if measured:
        return sorted(measured, key=lambda one: one.fitness or 0.0, reverse=True)
    return [one for one in proven if (one.source or "").rpartition("/")[2].startswith(BEST)]


def _within(
    limit_bytes: int, ordered: Sequence[Checkpoint], proven: Sequence[Checkpoint], words: dict[Key, str]
) -> dict[Key, str]:
    """Let go of the least wanted until the rest fits."""
    never = proven[0].key if proven else None
    left = [one for one in reversed(ordered) if one.key in words]
    total = sum(one.fingerprint.size_bytes for one in left)
    # Oldest first; those that more than one limit keeps, or that are the best, after those that are merely old.
    for one in sorted(left, key=lambda one: words[one.key] != "hourly"):
        if total <= limit_bytes:
            break
        if one.key != never:
            del words[one.key]
            total -= one.fingerprint.size_bytes
    return words
