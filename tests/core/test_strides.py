"""Strides as columns are those that were put in, and a period finds among them all that share time with it."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.reports.strides import Stride, Strides

LENGTHS = st.lists(st.tuples(st.floats(0, 30), st.floats(0, 30)), max_size=20)


def stride(began: float, ended: float, step_last: int = 9) -> Stride:
    return Stride(first_unix_s=began, last_unix_s=ended, step_first=step_last - 9, step_last=step_last, data_wait_s=0.5)


def shares_time(item: Stride, began: float, ended: float) -> bool:
    return min(ended, item.last_unix_s) > max(began, item.first_unix_s)


@given(lengths=LENGTHS, began=st.floats(-10, 300), length=st.floats(0, 200), set_back_s=st.sampled_from([0.0, 100.0]))
def test_a_period_finds_every_stride_that_shares_time_with_it_also_where_the_clock_was_set_back(
    lengths: list[tuple[float, float]], began: float, length: float, set_back_s: float
) -> None:
    ends = list(accumulate((gap + took for gap, took in lengths), initial=0.0))[1:]
    half = len(ends) // 2
    made = [
        stride(ended - took - (set_back_s if index >= half else 0), ended - (set_back_s if index >= half else 0))
        for index, (ended, (_, took)) in enumerate(zip(ends, lengths, strict=True))
    ]
    found = [
        item
        for item in Strides(made).list_overlapping(began, began + length)
        if shares_time(item, began, began + length)
    ]
    assert found == [item for item in made if shares_time(item, began, began + length)]


def test_the_columns_give_back_what_was_put_in() -> None:
    made = [stride(0.25, 1.5, 9), stride(2.0, 3.0, 19), stride(2.5, 4.0, 12)]
    strides = Strides(made)
    assert list(strides) == made
    assert (strides[-1], list(strides[-1:]), len(strides)) == (made[2], made[2:], 3)
    assert list(Strides()[-1:]) == []


def test_the_first_stride_that_ends_beyond_a_step_is_found_though_steps_were_redone() -> None:
    strides = Strides([stride(0, 1, 9), stride(2, 3, 19), stride(4, 5, 12), stride(6, 7, 22)])
    assert strides.find_beyond(9) == strides[1]
    assert strides.find_beyond(20) == strides[3]
    assert strides.find_beyond(22) is None
    assert Strides().find_beyond(0) is None
