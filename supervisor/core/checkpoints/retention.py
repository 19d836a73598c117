"""Which generations of a job's checkpoints are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict, newest_first, older

HOUR_S = 3600.0
BEST = "best"
"""Beginning of the name of a file in which a framework keeps its best state."""

SAVES_WHOLE = 2
"""Saves of several files of which each file is kept."""
BEFORE_RESUME = "before the resume"

Key = tuple[str, Fingerprint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is kept of each job."""

    keep_newest: int = 3
    """Number of proven generations, and of those not yet proven."""
    keep_hourly: int = 12
    """The newest one of each of the last so many hours in which any was saved."""
    keep_best: int = 1
    limit_bytes: int = 20_000_000_000


def kept(
    generations: Iterable[Checkpoint], policy: Policy, *, room: bool = True, resumed_from: Checkpoint | None = None
) -> dict[Key, str]:
    """Return the generations that are kept, each with the names of the limits that keep it; the others may be pruned.

    Rejected ones are not kept. Over the size bound the oldest go first, the best and the newest last, and the newest
    proven one never. Without `room` on the disk that one alone is kept, with what is newer and not yet proven.
    Should what the attempt was `resumed_from` prove unusable, so is all that it saved since: the next resume takes the
    one before.
    """
    ordered = newest_first(checkpoint for checkpoint in generations if checkpoint.verdict is not Verdict.REJECTED)
    proven = [checkpoint for checkpoint in ordered if checkpoint.verdict is Verdict.PROVEN]
    waiting = [checkpoint for checkpoint in ordered if checkpoint.verdict is None]
    reasons: dict[Key, list[str]] = {}
    chosen = _choose_by_limit(proven, policy) if room else [("newest", proven[:1])]
    before = _list_before(resumed_from, proven, waiting) if room else ()
    for limit, limited in (
        *chosen,
        ("not yet proven", _choose_newest(waiting, policy.keep_newest) if room else waiting[:1]),
        (BEFORE_RESUME, before),
    ):
        for item in limited:
            reasons.setdefault(item.key, []).append(limit)
    kept_by = {key: ", ".join(found) for key, found in reasons.items()}
    return _prune_to_size(policy.limit_bytes, ordered, proven, kept_by)


def _list_before(
    resumed_from: Checkpoint | None, proven: Sequence[Checkpoint], waiting: Sequence[Checkpoint]
) -> list[Checkpoint]:
    """Return the newest proven one older than what was resumed from, and what is not yet proven between the two."""
    if resumed_from is None:
        return []
    last = next((item for item in proven if older(item, resumed_from)), None)
    between = [item for item in waiting if older(item, resumed_from) and (last is None or older(last, item))]
    return [*between[:1], *([] if last is None else [last])]


def _choose_by_limit(proven: Sequence[Checkpoint], policy: Policy) -> list[tuple[str, Sequence[Checkpoint]]]:
    hours: dict[int, Checkpoint] = {}
    for checkpoint in proven:
        hours.setdefault(int(checkpoint.saved_unix_s // HOUR_S), checkpoint)
    recent = sorted(hours, reverse=True)[: policy.keep_hourly]
    return [
        ("newest", _choose_newest(proven, max(1, policy.keep_newest))),
        ("hourly", [hours[hour] for hour in recent]),
        ("best", _sort_by_fitness(proven)[: policy.keep_best]),
    ]


def _choose_newest(ordered: Sequence[Checkpoint], count: int) -> list[Checkpoint]:
    """Return the newest `count`, and the newest of each file that is saved together with others, two where they may be.

    A program that saves its networks and their optimizers in files of their own is resumed with one of each, and from
    the save before where a kill has cut a part of the newest one.
    """
    newest = list(ordered[:count])
    files = [item for item in ordered if item.kind == "checkpoint"]
    left = dict.fromkeys(_list_saved_together(files), min(SAVES_WHOLE, count))
    for item in files:
        if left.get(item.series):
            left[item.series] -= 1
            if item not in newest:
                newest.append(item)
    return newest


def _list_saved_together(ordered: Iterable[Checkpoint]) -> list[tuple[str, str]]:
    """Return the files that come between two saves of the newest one, that among them; names without numbers."""
    found: list[tuple[str, str]] = []
    for item in ordered:
        if item.series in found:
            break
        found.append(item.series)
    return found


def _sort_by_fitness(proven: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return generations by fitness; where none is known, those named best by their framework, newest first."""
    measured = [checkpoint for checkpoint in proven if checkpoint.fitness is not None]
    if measured:
        return sorted(measured, key=lambda checkpoint: checkpoint.fitness or 0.0, reverse=True)
    return [checkpoint for checkpoint in proven if (checkpoint.source or "").rpartition("/")[2].startswith(BEST)]


def _prune_to_size(
    limit_bytes: int, ordered: Sequence[Checkpoint], proven: Sequence[Checkpoint], kept_by: dict[Key, str]
) -> dict[Key, str]:
    """Remove the least important until the others fit into the limit."""
    never = proven[0].key if proven else None
    left = [entry for entry in reversed(ordered) if entry.key in kept_by]
    total = sum(rest.fingerprint.size_bytes for rest in left)
    # Oldest first; those that more than one limit keeps, or that are the best, after those that are merely old.
    for checkpoint in sorted(left, key=lambda item: kept_by[item.key] != "hourly"):
        if total <= limit_bytes:
            break
        if checkpoint.key != never:
            del kept_by[checkpoint.key]
            total -= checkpoint.fingerprint.size_bytes
    return kept_by
