"""What a leader's clock is ahead of a node's: clocks that began anywhere, run unlike each other, and change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet.clock_offset import DRIFT, ClockOffset


@given(
    ahead_s=st.floats(-1e6, 1e6),
    drift=st.floats(-DRIFT / 2, DRIFT / 2),
    beats=st.lists(st.tuples(st.floats(0, 600), st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=20),
)
def test_the_error_that_is_stated_is_never_exceeded(
    ahead_s: float, drift: float, beats: list[tuple[float, float, float]]
) -> None:
    """However long answers are under way, and however unlike there and back."""

    def theirs(now_s: float) -> float:
        return ahead_s + now_s * (1 + drift)

    offset, now_s = ClockOffset(), 0.0
    for pause_s, there_s, back_s in beats:
        sent_s = now_s + pause_s
        now_s = sent_s + there_s + back_s
        offset = offset.measured(sent_s=sent_s, theirs_s=theirs(sent_s + there_s), now_s=now_s)
        true_s = theirs(now_s) - now_s
        assert abs(offset.seconds - true_s) <= offset.error_at(now_s) + DRIFT * 4.0 + 1e-6


def test_a_quick_answer_counts_more_than_a_slow_one_until_it_is_old() -> None:
    offset = ClockOffset().measured(sent_s=0.0, theirs_s=3600.001, now_s=0.002)
    slow = offset.measured(sent_s=10.0, theirs_s=3610.9, now_s=11.0)
    assert slow == offset
    assert (round(offset.seconds, 6), offset.error_s) == (3600.0, 0.001)
    assert offset.measured(sent_s=6000.0, theirs_s=9600.9, now_s=6001.0) != offset, "a clock drifts in 100 minutes"


def test_nan_is_no_measurement() -> None:
    assert ClockOffset().measured(sent_s=float("nan"), theirs_s=1.0, now_s=2.0) == ClockOffset()
