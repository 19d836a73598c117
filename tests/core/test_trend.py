"""A quantity over hours: the least of each minute is kept, and the line through them has exact figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from statistics import median, quantiles

import pytest

from supervisor.core.moments import Moment
from supervisor.core.rules.bounds import is_running_out
from supervisor.core.stats.trend import BUCKETS_KEPT, CONFIDENCE_Z, MIN_POINTS, Slope, Trend

TEN_MINUTES_S, HOUR_S = 600.0, 3600.0


def at(monotonic_s: float) -> Moment:
    return Moment(monotonic_s, 1.7e9)


def minutes(count: int, value: Callable[[float], float]) -> Trend:
    """A trend with so many minutes that are over, read once in each."""
    trend = Trend()
    for minute in range(count + 1):
        trend.add(at(60.0 * minute), value(60.0 * minute))
    return trend


def rising(per_s: float) -> Callable[[float], float]:
    return lambda at_s: 5.0 + per_s * at_s


def test_the_least_value_of_each_minute_is_kept_with_the_time_at_which_the_minute_began() -> None:
    trend = Trend()
    for at_s, value in ((7.0, 5.0), (30.0, 3.0), (66.9, 4.0), (67.0, 9.0), (100.0, 12.0), (200.0, 8.0), (259.0, 1.0)):
        trend.add(at(at_s), value)
        assert trend.newest == value
    assert list(trend.points) == [(7.0, 3.0), (67.0, 9.0)], "the minute that began at 200 s is not over"
    trend.add(at(260.0), 2.0)
    assert list(trend.points) == [(7.0, 3.0), (67.0, 9.0), (200.0, 1.0)]


def test_a_value_of_zero_is_a_value() -> None:
    trend = Trend()
    for at_s, value in ((0.0, 0.0), (30.0, 4.0), (60.0, 4.0)):
        trend.add(at(at_s), value)
    assert list(trend.points) == [(0.0, 0.0)]


def test_twelve_hours_are_kept() -> None:
    trend = minutes(BUCKETS_KEPT + 5, rising(1.0))
    assert len(trend.points) == BUCKETS_KEPT == 720
    assert trend.points[0][0] == 300.0


def test_a_slope_is_known_once_ten_minutes_cover_the_window() -> None:
    assert Trend().slope(TEN_MINUTES_S) is None
    assert minutes(9, rising(1.0)).slope(TEN_MINUTES_S) is None
    assert minutes(10, rising(1.0)).slope(TEN_MINUTES_S) is not None
    assert minutes(10, rising(1.0)).slope(TEN_MINUTES_S + 1.0) is None
    assert minutes(59, rising(1.0)).slope(HOUR_S) is None
    assert minutes(60, rising(1.0)).slope(HOUR_S) is not None


def test_few_readings_over_a_long_time_are_no_slope() -> None:
    seldom = Trend()
    for number in range(MIN_POINTS):
        seldom.add(at(400.0 * number), 5.0 + number)
    assert len(seldom.points) == MIN_POINTS - 1
    assert seldom.slope(HOUR_S) is None
    seldom.add(at(4000.0), 5.0 + MIN_POINTS)
    assert seldom.slope(HOUR_S) is not None, "ten points in an hour"
    seldom.add(at(9000.0), 0.0)
    assert seldom.slope(HOUR_S) is not None
    seldom.add(at(9100.0), 0.0)
    assert seldom.slope(HOUR_S) is None, "one of the newest hour"


@pytest.mark.parametrize("count", [60, 61, 120, 121, 600])
def test_a_straight_line_has_its_own_slope_however_many_minutes_it_has(count: int) -> None:
    window_s = 60.0 * count
    slope = minutes(count, rising(0.25)).slope(window_s)
    assert slope is not None
    assert (slope.per_s, slope.low_per_s, slope.high_per_s) == pytest.approx((0.25, 0.25, 0.25))
    thinned = -(-count // 60)
    assert slope.window_s == 60.0 * ((count - 1) // thinned) * thinned, "the newest of the points is one of the fitted"
    assert slope.rise == pytest.approx(0.25 * slope.window_s)


def test_only_the_window_is_fitted() -> None:
    """Flat for two hours, then rising for one."""
    trend = minutes(180, lambda at_s: max(0.0, at_s - 7200.0))
    slope = trend.slope(HOUR_S - 60.0)
    assert slope is not None
    assert slope.low_per_s == pytest.approx(1.0)
    assert slope.window_s == HOUR_S - 60.0
    longer = trend.slope(3 * HOUR_S)
    assert longer is not None
    assert longer.low_per_s == 0.0, "each window has a fit of its own"


def test_slope_and_interval_are_those_of_theil_and_sen() -> None:
    noise = (0.0, 7.0, -4.0, 11.0, 3.0, -9.0, 5.0, 2.0, -6.0, 8.0, 1.0, -3.0)
    trend = minutes(len(noise), lambda at_s: 0.1 * at_s + noise[min(int(at_s // 60), len(noise) - 1)])
    points = list(trend.points)
    slopes = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in combinations(points, 2)]
    n = len(points)
    reach = CONFIDENCE_Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18) / 2 / len(slopes)
    shares = quantiles(slopes, n=100_000, method="inclusive")
    slope = trend.slope(60.0 * n)
    assert slope is not None
    assert slope.per_s == pytest.approx(median(slopes))
    assert slope.low_per_s == pytest.approx(shares[round(100_000 * (0.5 - reach)) - 1], rel=1e-3)
    assert slope.high_per_s == pytest.approx(shares[round(100_000 * (0.5 + reach)) - 1], rel=1e-3)
    assert slope.low_per_s < slope.per_s < slope.high_per_s
    assert slope.window_s == 660.0
    assert slope.rise == pytest.approx(660.0 * slope.per_s)


def test_a_fifth_of_outliers_moves_no_slope() -> None:
    slope = minutes(60, lambda at_s: 1e6 if at_s % 300 == 0 else 2.0 * at_s).slope(HOUR_S)
    assert slope is not None
    assert slope.per_s == pytest.approx(2.0, rel=0.05)


def test_the_fit_is_made_again_for_each_minute_that_is_over() -> None:
    trend = minutes(10, rising(1.0))
    first = trend.slope(TEN_MINUTES_S)
    trend.add(at(630.0), 1e6)
    assert trend.slope(TEN_MINUTES_S) is first, "the minute is not over"
    for minute in range(11, 30):
        trend.add(at(60.0 * minute), 5.0)
    later = trend.slope(TEN_MINUTES_S)
    assert later is not None
    assert later.per_s == 0.0


def rise(per_s: float, low_per_s: float, rose: float) -> Slope:
    return Slope(per_s=per_s, low_per_s=low_per_s, high_per_s=3.0, window_s=60.0, rise=rose)


def test_time_left_is_room_by_rate_and_none_where_nothing_rises() -> None:
    assert rise(2.0, 1.0, 1.0).left_s(10.0) == 5.0
    assert rise(0.5, 0.1, 1.0).left_s(10.0) == 20.0
    assert rise(2.0, 1.0, 1.0).left_s(-10.0) == 0.0
    assert rise(0.0, 0.0, 0.0).left_s(10.0) is None
    assert rise(-1.0, -2.0, -1.0).left_s(10.0) is None


def test_what_falls_short_of_a_rise_is_named() -> None:
    assert rise(2.0, 0.1, 8.0).falls_short_of(8.0) is None
    assert rise(2.0, 0.1, 7.9).falls_short_of(8.0) == "a large enough rise"
    assert rise(2.0, 0.0, 9.0).falls_short_of(8.0) == "a significant rise"
    assert rise(2.0, math.nan, 9.0).falls_short_of(8.0) == "a significant rise"


def test_room_that_lasts_just_as_long_is_running_out_and_what_does_not_rise_never_does() -> None:
    """However certain the rate is: a gauge says what is missing for a flag."""
    slope = Slope(per_s=2.0, low_per_s=-1.0, high_per_s=9.0, window_s=60.0, rise=1.0)
    assert is_running_out(slope, 200.0, 100.0)
    assert not is_running_out(slope, 200.1, 100.0)
    assert is_running_out(slope, -1.0, 0.0), "there is no room left"
    assert not is_running_out(Slope(per_s=0.0, low_per_s=0.0, high_per_s=0.0, window_s=60.0, rise=0.0), 0.0, 100.0)
    assert not is_running_out(None, 0.0, 100.0)
