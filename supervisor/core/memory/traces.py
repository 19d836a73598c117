"""Reckons from the traces of two micro-batches what the allocator would hold of a GPU, also where there is none.

How much it cannot join depends on the sizes and the order of the tensors, and neither grows with their sum nor stays:
of a ViT it held 12 % more than tensors at 32 and 11 % at 64 pictures, and 4 % at 128. So the blocks of one training are
taken again, each as large as follows from its size in both traces (`allocator.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from supervisor.core.memory.allocator import MIB, UNIT_BYTES, Allocator
from supervisor.core.memory.points import Point

PASS_WORKSPACE_BYTES = 32 * MIB
"""What cuBLAS takes on an H200 for each of the two threads that compute a forward and a backward pass."""
LOOK_AHEAD = 40
"""Blocks that one of two traces may have more than the other at a place: an algorithm's workspace, a new state."""
NEARBY, AGREE_NEARBY, AGREE = 3, 3, 6
"""Blocks in a row by which the place is known where both go on alike, the first where no more than `NEARBY` differ."""
LEAST_FOUND = 0.7
"""Of the bytes that the blocks of a step take: with less that is found in the other trace nothing is reckoned."""
ROUNDING = 2
"""Units by which a block may be larger than in proportion to the samples."""
ALLOWED_ERROR = 0.03
"""A simulation is believed where it comes to what was reserved in the probe itself, but for this share."""


def predict_reserved(points: Sequence[Point], batch: int) -> int | None:
    """Return the bytes that the allocator would hold at a micro-batch; None where that cannot be reckoned by traces."""
    pair = _choose(points, batch)
    if pair is None:
        return None
    whole, other = pair
    if whole.device == "cpu":
        whole, other = _hold_workspaces(whole), _hold_workspaces(other)
    elif not _is_believed(whole):
        return None
    share = (batch - _batch_of(whole)) / (_batch_of(other) - _batch_of(whole))
    sizes = _scale(whole, other, share)
    return None if sizes is None else _simulate(whole, sizes)


def _is_believed(whole: Point) -> bool:
    """Whether a simulation of a probe comes to what its allocator held, as where that has no settings of its own."""
    simulated = _simulate(whole, _list_sizes(whole))
    return bool(whole.reserved_bytes) and abs(simulated / (whole.reserved_bytes or 1) - 1) <= ALLOWED_ERROR


def _choose(points: Sequence[Point], batch: int) -> tuple[Point, Point] | None:
    """Return the point at a micro-batch with a whole trace, or the largest with one, and the largest other one."""
    traced = sorted((point for point in points if point.batch and len(point.trace_marks) > 2), key=_batch_of)
    wholes = sorted((point for point in traced if point.trace_is_whole), key=lambda point: point.batch == batch)
    whole = wholes[-1] if wholes else None
    other = next((point for point in reversed(traced) if whole is not None and point.batch != whole.batch), None)
    return None if whole is None or other is None else (whole, other)


def _hold_workspaces(point: Point) -> Point:
    """Return a point with what a library takes on a GPU for the forward pass, and for the backward pass.

    It takes them once, between the tensors, which then lie around them: of a T5 5 % more is held by that.
    """
    events: list[int] = []
    numbers: list[int] = []
    """Of the blocks, with those that are added."""
    peak, added = _find_peak(point), 0
    for place, event in enumerate(point.trace_events):
        if event < 0:
            events.append(-numbers[-event - 1])
            continue
        events.append(event)
        numbers.append(len(numbers) + 1 + added)
        if len(numbers) == point.trace_marks[0] + 1 or place == peak:
            events.append(PASS_WORKSPACE_BYTES // UNIT_BYTES)
            added += 1
    marks = [mark if mark < 1 else numbers[mark - 1] for mark in point.trace_marks]
    return replace(point, trace_events=events, trace_marks=marks)


def _find_peak(point: Point) -> int:
    """Return the event of the first step after which most is taken: there its backward pass begins, or has begun."""
    begin, end = point.trace_marks[:2]
    sizes: list[int] = []
    taken = most = found = 0
    for place, event in enumerate(point.trace_events):
        if event < 0:
            taken -= sizes[-event - 1]
            continue
        sizes.append(event)
        taken += event
        if begin < len(sizes) <= end and taken > most:
            most, found = taken, place
    return found


def _batch_of(point: Point) -> int:
    return point.batch or 0


def _list_sizes(point: Point) -> list[int]:
    return [event for event in point.trace_events if event > 0]


def _simulate(point: Point, sizes: Sequence[int]) -> int:
    """Return what is held once the blocks of a trace were taken and returned, the sizes in units by their number."""
    allocator = Allocator()
    addresses: list[int] = []
    for event in point.trace_events:
        if event > 0:
            addresses.append(allocator.take(max(1, sizes[len(addresses)]) * UNIT_BYTES))
        else:
            allocator.give_back(addresses[-event - 1])
    return allocator.reserved_bytes


def _scale(whole: Point, other: Point, share: float) -> list[int] | None:
    """Return the sizes of the blocks of a trace at a micro-batch that is so far on the way to that of the other trace.

    Steps are compared with the last one of the other trace. A block that has none like it, as the state that an
    optimizer makes in the first step, is one that does not grow, unless all of its size do that are returned.
    """
    sizes, last_step = _list_sizes(whole), _list_sizes(other)[other.trace_marks[-2] : other.trace_marks[-1]]
    grown: dict[int, int] = {}
    for begin, end in zip(whole.trace_marks, whole.trace_marks[1:], strict=False):
        for place, found in _align(sizes[begin:end], last_step, _batch_of(other) / _batch_of(whole)):
            grown[begin + place] = last_step[found]
    place = whole.trace_marks[-2]
    found_units = sum(size for number, size in enumerate(sizes[place:], place) if number in grown)
    if found_units < LEAST_FOUND * sum(sizes[place : whole.trace_marks[-1]]):
        return None
    by_size: dict[int, set[int]] = defaultdict(set)
    for number, size in grown.items():
        by_size[sizes[number]].add(size)
    returned = {-event - 1 for event in whole.trace_events if event < 0}
    for number in range(whole.trace_marks[0], len(sizes)):
        alike = by_size.get(sizes[number], set())
        if number not in grown and number in returned and len(alike) == 1:
            grown[number] = next(iter(alike))
    return [round(size + (grown.get(number, size) - size) * share) for number, size in enumerate(sizes)]


def _align(first: Sequence[int], second: Sequence[int], ratio: float) -> list[tuple[int, int]]:
    """Return the places of two steps that have the same block, where one or the other may have some more.

    `ratio`: how many times as many samples the second has.
    """
    found: list[tuple[int, int]] = []

    def agree(at: int, other_at: int, count: int) -> bool:
        if at + count > len(first) or other_at + count > len(second):
            return False
        return all(_may_be_same(first[at + step], second[other_at + step], ratio) for step in range(count))

    def count_needed(way: tuple[int, int]) -> int:
        return AGREE_NEARBY if sum(way) <= NEARBY else AGREE

    at = other_at = 0
    while at < len(first) and other_at < len(second):
        if agree(at, other_at, 1):
            found.append((at, other_at))
            at, other_at = at + 1, other_at + 1
            continue
        ways = ((more, ahead - more) for ahead in range(1, LOOK_AHEAD) for more in range(ahead + 1))
        alike = (way for way in ways if agree(at + way[0], other_at + way[1], count_needed(way)))
        step = next(alike, (1, 1))
        at, other_at = at + step[0], other_at + step[1]
    return found


def _may_be_same(size: int, other: int, ratio: float) -> bool:
    """Whether blocks may be of the same tensor: with more samples it takes as much, or more, but for a rounding."""
    if ratio < 1:
        size, other, ratio = other, size, 1 / ratio
    return size <= other <= ratio * size + ROUNDING
