"""Which remedy against a full GPU comes first, by an estimate of its memory or by what torch reported.

It changes the order of a ladder and leaves none out: where it is wrong, the next fault goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from supervisor.core.memory.kept import KeptEstimate
from supervisor.core.memory.shortage import Shortage
from supervisor.core.remedies.causes import OOM_GPU
from supervisor.core.remedies.context import Ended, RemedyContext
from supervisor.core.remedies.spec import InForce
from supervisor.core.units import GB

SHRINKING = "half_batch"
TIMES_MAX = 20
"""The largest micro-batch that an estimate has, halved so often, is a single sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """The order in which remedies are tried, and how often the batch is shrunk at once."""

    order: tuple[str, ...]
    times: int | None = None
    """None: once, as ever."""
    note: str | None = None
    """Why, for a person; None where nothing is known."""


def fit_order(
    order: tuple[str, ...], ended: Ended, context: RemedyContext, held: Iterable[InForce], factor: float
) -> Fitting:
    """Return the order as what is known of the memory changes it; `factor`: what the batch is multiplied by."""
    if ended.cause != OOM_GPU or SHRINKING not in order:
        return Fitting(order=order)
    kept, shortage = context.estimate, ended.shortage
    capacity = None if shortage is None else shortage.capacity_bytes
    fitting = Fitting(order=order)
    if kept is not None and kept.is_of(ended.torch_version, capacity):
        shrunk = sum(remedy.times or 1 for remedy in held if remedy.remedy == SHRINKING)
        fitting = _fit_by_estimate(order, kept, shrunk, factor)
    if fitting.order[0] == "allocator" and shortage is not None and shortage.is_beyond_allocator:
        later = _put_allocator_later(order, shortage)
        return replace(later, note="; ".join(filter(None, (fitting.note, later.note))))
    return fitting


def _fit_by_estimate(order: tuple[str, ...], kept: KeptEstimate, shrunk: int, factor: float) -> Fitting:
    seen = "ran" if kept.ran else "fits"
    known = f"estimate: the largest micro-batch that {seen} has {kept.largest} of {kept.configured} samples"
    batch = shrink(kept.configured, factor, shrunk)
    if batch <= kept.largest:
        return Fitting(order=order, note=f"{known}, and it had {batch}: what else takes memory is not known")
    times = next((n for n in range(1, TIMES_MAX) if shrink(kept.configured, factor, shrunk + n) <= kept.largest), None)
    if times is None:
        return Fitting(order=order, note="estimate: no micro-batch fits")
    fitting = shrink(kept.configured, factor, shrunk + times)
    first = (SHRINKING, *_without_first_place(order, SHRINKING))
    return Fitting(order=first, times=times if times > 1 else None, note=f"{known}: {fitting} fit, {batch} do not")


def _put_allocator_later(order: tuple[str, ...], shortage: Shortage) -> Fitting:
    """Return the order with the allocator's settings after the first that shrinks what is allocated."""
    later: list[str] = []
    for remedy in _without_first_place(order, "allocator"):
        later += [remedy, "allocator"] if remedy == SHRINKING and "allocator" not in later else [remedy]
    note = (
        f"{shortage.tried_bytes / GB:.2f} GB were asked for, {shortage.free_bytes / GB:.2f} GB were free and "
        f"{shortage.unused_bytes / GB:.2f} GB held in vain: no setting of the allocator makes room"
    )
    return Fitting(order=tuple(later), note=note)


def shrink(batch: int, factor: float, times: int) -> int:
    """Return the samples of a micro-batch that is multiplied so often: one at least, as the agent reckons it."""
    return max(1, int(batch * factor**times))


def _without_first_place(order: tuple[str, ...], remedy: str) -> tuple[str, ...]:
    place = order.index(remedy)
    return (*order[:place], *order[place + 1 :])
