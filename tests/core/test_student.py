"""Student's t distribution against printed tables, and the limit of a deviation that few values estimate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.stats.student import get_likely_least, get_upper_quantile, get_upper_tail


@pytest.mark.parametrize(
    ("share", "degrees", "printed"),
    [
        (0.05, 1, 6.314),
        (0.001, 1, 318.309),
        (0.005, 2, 9.925),
        (0.001, 2, 22.327),
        (0.005, 3, 5.841),
        (0.001, 4, 7.173),
        (0.001, 10, 4.144),
        (0.0005, 15, 4.073),
        (0.025, 60, 2.000),
    ],
)
def test_quantiles_are_those_of_printed_tables(share: float, degrees: int, printed: float) -> None:
    assert get_upper_quantile(share, degrees) == pytest.approx(printed, abs=0.0006)


def test_half_of_a_distribution_lies_above_nothing() -> None:
    for degrees in range(1, 30):
        assert get_upper_tail(0.0, degrees) == 0.5
        assert get_upper_quantile(0.5, degrees) == pytest.approx(0.0, abs=1e-9)


@given(st.floats(1e-6, 0.49), st.integers(1, 100))
def test_a_quantile_has_its_share_above_it_and_is_the_lower_the_more_is_known(share: float, degrees: int) -> None:
    limit = get_upper_quantile(share, degrees)
    assert get_upper_tail(limit, degrees) == pytest.approx(share, rel=1e-6)
    assert get_upper_quantile(share, degrees + 1) < limit


def test_one_and_two_degrees_have_their_closed_forms() -> None:
    for value in (0.1, 1.0, 3.0, 50.0):
        assert get_upper_tail(value, 1) == pytest.approx(0.5 - math.atan(value) / math.pi)
        assert get_upper_tail(value, 2) == pytest.approx((1 - value / math.sqrt(2 + value * value)) / 2)


def test_what_a_deviation_is_no_less_than_is_that_of_nine_tenths_of_chi_square() -> None:
    for degrees, printed in ((2, 4.605), (4, 7.779), (10, 15.987), (30, 40.256)):
        assert get_likely_least(1.0, degrees) == pytest.approx(math.sqrt(degrees / printed), rel=0.01)
