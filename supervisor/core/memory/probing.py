"""Chooses the micro-batches that are probed on a GPU: as few as tell what a training takes at the others.

A probe takes a second or more, most of it for drawing a large micro-batch. Two far apart give a better line than two
near each other, so that half of the one in question is probed only where none is much larger.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.core.memory.estimate import next_probe
from supervisor.core.memory.points import Point


def collect_points(
    measure: Callable[[int], Point | None], wanted: int, card_bytes: int | None, *, quick: bool = False
) -> list[Point]:
    """Return points, the smallest first: at the micro-batch in question and at one that takes most of the card.

    `measure` returns None where a micro-batch does not run. Where that in question does not, smaller ones are probed.
    With `quick` no large one is. Without a card given it is that of the first point.
    """
    found: dict[int, Point | None] = {}

    def add(batch: int | None) -> None:
        if batch is not None and batch not in found:
            found[batch] = measure(batch)

    def collect() -> list[Point]:
        return [point for _, point in sorted(found.items()) if point is not None]

    def add_large() -> None:
        points = collect()
        card = card_bytes or (points[0].card_bytes if points else None)
        large = None if quick or card is None else next_probe(points, card)
        if large is not None and all(large < batch for batch, point in found.items() if point is None):
            add(large)

    # That in question comes first: what it takes is then what a training takes that has made no other steps.
    add(wanted)
    add_large()
    add_large()  # from two a much larger one may be seen to fit
    if len(collect()) < 2:
        add(_halve(wanted, 1))
        if found[wanted] is None:
            add(_halve(wanted, 2))
            add(_halve(wanted, 3))
        add_large()
    return collect()


def _halve(batch: int, times: int) -> int:
    return max(1, batch >> times)
