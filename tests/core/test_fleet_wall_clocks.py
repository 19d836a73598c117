"""A leader whose clock is ahead: what is saved after the training began is not taken for older than it."""

from __future__ import annotations

import pytest

from supervisor.core.fleet.wall_clocks import AHEAD_MAX_S, WallClocks

BEGAN_S = 1_700_000_000.0


@pytest.mark.parametrize(
    ("node_s", "storage_s", "earlier_s"),
    [
        (3600.0, 0.0, 3600.0),
        (0.0, 3600.0, 3600.0),
        (3600.0, 7200.0, 7200.0),
        (-3600.0, -50.0, 0.0),
        (AHEAD_MAX_S + 1.0, 30.0, 30.0),
    ],
)
def test_the_begin_is_that_of_the_earliest_clock_but_for_one_that_was_never_set(
    node_s: float, storage_s: float, earlier_s: float
) -> None:
    clocks = WallClocks()
    clocks.note_node("n0", node_s)
    clocks.note_node("n1", 9000.0)
    clocks.note_storage(storage_s)
    assert clocks.find_begin(BEGAN_S, "n0") == BEGAN_S - earlier_s
    assert clocks.find_begin(BEGAN_S, None) == BEGAN_S - (storage_s if storage_s > 0 else 0.0)


def test_a_leaders_clock_that_is_set_back_is_not_counted_twice() -> None:
    clocks = WallClocks()
    clocks.note_node("n0", 3600.0)
    clocks.note_storage(3600.0)
    clocks.note_set_back(3000.0)
    assert clocks.find_begin(BEGAN_S - 3000.0, "n0") == BEGAN_S - 3600.0


def test_a_begin_from_the_record_is_by_the_earliest_clock_already() -> None:
    clocks = WallClocks()
    clocks.is_begin_recorded = True
    clocks.note_node("n0", 3600.0)
    assert clocks.find_begin(BEGAN_S, "n0") == BEGAN_S


def test_a_clock_that_is_read_again_and_again_leaves_the_begin_as_it_is() -> None:
    """The state of the training, in which it is, is written where it changes; each write reads that clock."""
    clocks = WallClocks()
    clocks.note_storage(0.004)
    assert clocks.find_begin(BEGAN_S, None) == BEGAN_S
    clocks.note_storage(3600.0)
    clocks.note_storage(3600.004)
    assert clocks.find_begin(BEGAN_S, None) == BEGAN_S - 3600.0
