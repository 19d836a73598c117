"""How fast the workers of a loader make batches, by what they have made and begun from step to step."""

from __future__ import annotations

import pytest

from supervisor.core.tuning.stock import Stock, StockSample, read_sample

REPORTED: dict[str, object] = {
    "step": 8, "iterator": 1, "workers": 4, "ahead": 8, "begun": 16, "ready": 4, "delivered": 8,
}  # fmt: skip


def sample(
    step: int, made: int, at_s: float, *, iterator: int = 1, under_way: int = 4, per_step: int = 1
) -> StockSample:
    """Return what four workers have made by a step that takes so many batches."""
    delivered = per_step * step
    counts = {"delivered": delivered, "ready": made - delivered, "begun": made + under_way}
    return StockSample(at_s=at_s, step=step, iterator=iterator, workers=4, ahead=8, **counts)


def after(*samples: StockSample) -> Stock:
    """Return what is known after all of them."""
    stock = Stock()
    for each in samples:
        stock = stock.after(each)
    return stock


def test_what_workers_make_is_less_than_what_is_taken_from_their_stock() -> None:
    """Ten steps a second took ten batches, while seven were made."""
    assert after(sample(10, 18, 1.0), sample(20, 25, 2.0), sample(30, 32, 3.0)).step_s == pytest.approx(1 / 7)


def test_it_is_known_once_each_worker_has_made_two() -> None:
    assert after(sample(10, 18, 1.0), sample(20, 25, 2.0)).step_s is None
    assert after(sample(10, 18, 1.0), sample(20, 26, 2.0)).step_s == pytest.approx(1 / 8)


def test_workers_without_a_batch_to_make_show_nothing() -> None:
    idle = (sample(10, 18, 1.0), sample(20, 28, 2.0, under_way=3), sample(30, 38, 3.0))
    assert after(*idle).made == 0
    assert after(*idle, sample(40, 48, 4.0)).step_s == pytest.approx(1 / 10), "from then on all of them had"


def test_of_a_step_that_takes_several_batches_all_are_made() -> None:
    assert after(sample(10, 25, 1.0, per_step=2), sample(20, 41, 2.0, per_step=2)).step_s == pytest.approx(2 / 16)


def test_nothing_is_counted_from_one_iterator_to_another_nor_of_steps_that_are_made_again() -> None:
    first = after(sample(10, 18, 1.0), sample(20, 28, 2.0))
    assert first.after(sample(30, 900, 3.0, iterator=2)).step_s == first.step_s
    assert first.after(sample(20, 900, 3.0)).step_s == first.step_s


def test_the_newest_batches_count_most() -> None:
    """Half of the processors are taken from the workers."""
    quick = [sample(10 * turn, 8 + 10 * turn, float(turn)) for turn in range(1, 7)]
    slow = [sample(60 + 5 * turn, 68 + 5 * turn, 6.0 + turn) for turn in range(1, 21)]
    assert after(*quick).step_s == pytest.approx(1 / 10)
    assert after(*quick, *slow).step_s == pytest.approx(1 / 5, rel=0.1)


def test_workers_that_have_none_to_make_after_some_batches_follow_the_steps() -> None:
    """Two are under way: each takes two steps, and four steps later as many are under way as this pace asks for."""
    idle = sample(30, 38, 3.0, under_way=2)
    assert after(idle).keeps_up(26)
    assert not after(idle).keeps_up(27), "these steps may be quicker than those before"
    assert not after(sample(30, 38, 3.0, under_way=4)).keeps_up(0), "each has one to make"
    assert after(sample(30, 38, 3.0, under_way=0)).keeps_up(28)
    assert not Stock().keeps_up(0)


def test_a_report_that_is_none_is_left_out() -> None:
    assert read_sample(REPORTED, 3.0) == sample(8, 12, 3.0)
    for name, value in (("step", -1), ("workers", 0), ("ahead", None), ("begun", "16"), ("ready", True)):
        assert read_sample({**REPORTED, name: value}, 3.0) is None
    assert read_sample({}, 3.0) is None
