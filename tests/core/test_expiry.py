"""What is old is deleted by a clock that is believed: one that jumped ahead is believed after a day."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.stats.expiry import JUMP_S, TRUSTED_AFTER_S, ExpiryTime, decode_expiry_time

START = Moment(1000.0, 1_763_600_000.0)
MINUTE_S = 60.0
DAY_S = 86_400.0
YEAR_S = 365 * DAY_S


def run(expiry: ExpiryTime, since: Moment, for_s: float, every_s: float = MINUTE_S) -> tuple[ExpiryTime, Moment]:
    """Advance it as a daemon does while the clock runs evenly; return it with the last moment."""
    now = since
    for _ in range(int(for_s / every_s)):
        now = now.plus(every_s)
        expiry = expiry.advanced(now)
    return expiry, now


def test_it_follows_a_clock_that_runs_evenly() -> None:
    expiry, now = run(ExpiryTime(unix_s=START.unix_s, at=START), START, 3600)
    assert (expiry.unix_s, expiry.ahead_since) == (now.unix_s, None)


def test_a_clock_that_is_years_ahead_for_an_hour_deletes_nothing() -> None:
    expiry = ExpiryTime(unix_s=START.unix_s, at=START)
    wrong = Moment(START.monotonic_s, START.unix_s + 20 * YEAR_S)
    expiry, now = run(expiry, wrong, 3600)
    assert expiry.unix_s == START.unix_s + 3600
    right = Moment(now.monotonic_s + 1, START.unix_s + 3601)
    assert expiry.advanced(right) == ExpiryTime(unix_s=right.unix_s, at=right)


def test_a_clock_that_stays_ahead_is_followed_after_a_day() -> None:
    wrong = Moment(START.monotonic_s, START.unix_s + 60 * DAY_S)
    expiry, now = run(ExpiryTime(unix_s=START.unix_s, at=START), wrong, TRUSTED_AFTER_S)
    assert expiry.unix_s < wrong.unix_s
    now = now.plus(MINUTE_S)
    assert expiry.advanced(now).unix_s == now.unix_s


def test_the_day_begins_again_where_the_clock_jumps_further() -> None:
    ahead = Moment(START.monotonic_s, START.unix_s + 60 * DAY_S)
    expiry, now = run(ExpiryTime(unix_s=START.unix_s, at=START), ahead, 0.9 * TRUSTED_AFTER_S)
    further = Moment(now.monotonic_s, now.unix_s + 20 * YEAR_S)
    expiry, _ = run(expiry, further, 0.9 * TRUSTED_AFTER_S)
    assert expiry.unix_s < ahead.unix_s


def test_a_clock_that_was_set_back_is_followed_at_once() -> None:
    back = Moment(START.monotonic_s + MINUTE_S, START.unix_s - 20 * YEAR_S)
    assert ExpiryTime(unix_s=START.unix_s, at=START).advanced(back).unix_s == back.unix_s


@pytest.mark.parametrize("off_s", [3600.0, JUMP_S - 1])
def test_a_machine_that_was_off_for_less_than_a_day_deletes_as_before(off_s: float) -> None:
    text = ExpiryTime(unix_s=START.unix_s, at=START).encode()
    now = Moment(5.0, START.unix_s + off_s)
    assert decode_expiry_time(text, now, None).advanced(now).unix_s == now.unix_s


def test_the_day_goes_on_over_restarts_of_the_daemon() -> None:
    """A daemon that is restarted each hour still deletes what is old, a day after the machine was off for a month."""
    on = Moment(5.0, START.unix_s + 30 * DAY_S)
    text, now = ExpiryTime(unix_s=START.unix_s, at=START).encode(), on
    for _ in range(23):
        expiry, now = run(decode_expiry_time(text, now, None).advanced(now), now, 3600)
        text = expiry.encode()
    assert expiry.unix_s < on.unix_s
    expiry, now = run(decode_expiry_time(text, now, None), now, 2 * 3600)
    assert expiry.unix_s == now.unix_s


def test_a_record_without_it_begins_at_what_was_last_written() -> None:
    now = Moment(5.0, START.unix_s + 20 * YEAR_S)
    assert decode_expiry_time(None, now, START.unix_s).unix_s == START.unix_s
    assert decode_expiry_time(None, now, None).unix_s == now.unix_s


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf 3", "1.0 -inf"])
def test_a_text_that_cannot_be_read_is_none(text: str) -> None:
    assert decode_expiry_time(text, START, 7.0).unix_s == 7.0


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 2 * DAY_S), st.one_of(st.just(0.0), st.floats(-30 * YEAR_S, 30 * YEAR_S))), max_size=30
    )
)
def test_it_is_never_ahead_of_the_clock_by_more_than_what_passed(steps: list[tuple[float, float]]) -> None:
    """Whatever the clock does, nothing younger than the clock says is deleted."""
    expiry, now = ExpiryTime(unix_s=START.unix_s, at=START), START
    for seconds, by_s in steps:
        now = Moment(now.monotonic_s + seconds, now.unix_s + seconds + by_s)
        expiry = expiry.advanced(now)
        assert expiry.unix_s <= now.unix_s
        assert decode_expiry_time(expiry.encode(), now, None).unix_s == expiry.unix_s
