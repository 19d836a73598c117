"""As few micro-batches are probed as tell what a training takes at the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.memory.estimate import fit_line
from supervisor.core.memory.points import Point
from supervisor.core.memory.probing import collect_points

GIB = 1 << 30
FIXED, EACH = 4 * GIB, 100 << 20


def point(batch: int) -> Point:
    """A network of 1 GiB under AdamW that takes 100 MiB a sample."""
    return Point(
        device="cuda", batch=batch, configured=batch, weights_bytes=GIB, gradient_bytes=GIB, optimizer_bytes=2 * GIB,
        graph_bytes=FIXED + EACH * batch, update_bytes=5 * GIB, reserved_bytes=None, other_bytes=500 << 20,
        card_bytes=24 * GIB,
    )  # fmt: skip


def probe(wanted: int, most: int = 1000, card_gib: int = 24, *, quick: bool = False) -> tuple[list[int], list[Point]]:
    """Return what was probed of a network that runs up to a micro-batch, in order, and the points."""
    asked: list[int] = []

    def measure(batch: int) -> Point | None:
        asked.append(batch)
        return point(batch) if batch <= most else None

    return asked, collect_points(measure, wanted, card_gib * GIB, quick=quick)


def test_that_in_question_and_one_that_takes_most_of_the_card_are_enough() -> None:
    asked, points = probe(16)
    assert asked[0] == 16
    assert len(asked) == 2
    assert [found.batch for found in points] == asked
    taken = FIXED + EACH * asked[1]
    assert 0.4 * 24 * GIB < taken < 0.61 * 24 * GIB, "of one point less is known, so that a smaller one is taken"
    line = fit_line(points)
    assert line is not None
    assert line.at(200) == FIXED + 200 * EACH


@pytest.mark.parametrize(
    ("wanted", "most", "asked"),
    [
        pytest.param(100, 1000, [100, 50], id="it takes most of the card itself: half of it"),
        pytest.param(100, 60, [100, 50, 25, 12], id="it does not run: smaller ones"),
        pytest.param(100, 30, [100, 50, 25, 12], id="nor does half of it"),
        pytest.param(100, 0, [100, 50, 25, 12], id="none runs"),
        pytest.param(1, 0, [1], id="none is smaller"),
    ],
)
def test_smaller_ones_are_probed_where_no_large_one_can_be(wanted: int, most: int, asked: list[int]) -> None:
    found, points = probe(wanted, most)
    assert found == asked
    assert [taken.batch for taken in points] == [batch for batch in reversed(asked) if batch <= most]


def test_where_the_large_one_does_not_run_half_is_probed_too() -> None:
    asked, points = probe(16, most=40)
    assert asked[::2] == [16, 8]
    assert asked[1] > 40
    assert [found.batch for found in points] == [8, 16]


def test_no_large_one_is_probed_in_haste_or_for_an_unknown_card() -> None:
    assert probe(16, quick=True)[0] == [16, 8]

    def measure(batch: int) -> Point:
        return replace(point(batch), card_bytes=None)

    assert [found.batch for found in collect_points(measure, 16, None)] == [8, 16]


def test_from_one_sample_a_large_one_is_approached_in_two_steps() -> None:
    """Of such a training most is gradients, which one point alone takes for a large sample."""
    asked, points = probe(1)
    assert [asked[0], len(asked), len(points)] == [1, 3, 3]
    assert 0.55 * 24 * GIB < FIXED + EACH * asked[2] < 0.61 * 24 * GIB
