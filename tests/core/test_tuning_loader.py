"""A loader's workers in a tune: when more of them can gain, and which batches are none of their own pace."""

from __future__ import annotations

import pytest

from supervisor.core.tuning.knob import Facts
from supervisor.core.tuning.loader import (
    average_turns,
    count_ahead,
    count_switch_steps,
    find_cold_steps,
    find_idle_loader,
    find_starved,
)
from supervisor.core.tuning.trial import Arm

FACTS = Facts(workers=4, prefetch=2, processors=8)


def idle(arm: Arm, wait: float, workers: int = 4, busy: float | None = None, facts: Facts = FACTS) -> str | None:
    return find_idle_loader(arm, wait, workers, facts, busy)


def test_batches_ahead_are_those_of_all_workers_by_what_is_set_or_the_owners() -> None:
    assert count_ahead({}, FACTS) == 8
    assert count_ahead({"workers": 6, "prefetch_factor": 4}, FACTS) == 24
    assert count_ahead({}, Facts(workers=3)) == 6, "torch draws two ahead"
    assert count_ahead({}, Facts()) == 0


def test_batches_of_the_old_loader_come_first_and_then_one_of_each_new_worker() -> None:
    assert count_switch_steps({}, {"workers": 6}, FACTS) == 8 + 6 + 1
    assert count_switch_steps({"workers": 6}, {"workers": 6, "tf32": True}, FACTS) == 0


@pytest.mark.parametrize(("workers", "why"), [(15, None), (16, "32 batches are drawn ahead already")])
def test_enough_batches_ahead_are_not_made_more(workers: int, why: str | None) -> None:
    assert idle(Arm(knob="prefetch_factor", value=4), 0.5, workers) == why


def test_where_little_is_waited_for_no_loader_gains() -> None:
    assert idle(Arm(knob="workers", value=6), 0.05) is None
    assert idle(Arm(knob="workers", value=6), 0.04) == "4.0% of a step waits for data: a faster loader gains nothing"


def test_more_workers_than_processors_are_tried_where_steps_wait_and_processors_are_free() -> None:
    more = Arm(knob="workers", value=16)
    assert idle(more, 0.3, 8, 6.7) is None
    assert idle(more, 0.3, 8, 6.8) == "8 workers keep 6.8 of 8 processors busy: more of them gain nothing"
    assert idle(more, 0.2, 8) == "20% of a step waits for data of 8 workers: more workers than processors gain nothing"
    assert idle(Arm(knob="workers", value=8), 0.2, 8) is None
    assert idle(more, 0.2, 7) is None


def test_where_most_of_a_step_waits_nothing_but_the_loader_is_tried() -> None:
    why = "30% of a step waits for data: what is faster waits longer"
    assert find_starved(0.3, 4, FACTS, None) == why
    assert find_starved(0.29, 4, FACTS, None) is None
    assert find_starved(0.3, 0, FACTS, None) is None, "the process fetches itself, and computes the sooner"


def test_a_model_that_computes_on_the_busy_processors_of_its_workers_is_tried_faster_all_the_same() -> None:
    on_cpu = Facts(device="cpu", workers=2, processors=2)
    assert find_starved(0.4, 2, on_cpu, 1.7) is None
    assert find_starved(0.4, 2, on_cpu, 1.69) is not None
    assert find_starved(0.4, 2, on_cpu, None) is not None, "it is not known whether they are busy"
    assert find_starved(0.4, 2, Facts(device="cuda", workers=2, processors=2), 2.0) is not None


def test_a_first_half_that_new_workers_made_while_they_began_is_left_out_in_whole_turns() -> None:
    assert find_cold_steps([1.2] * 6 + [1.0] * 6, workers=4) == 4
    assert find_cold_steps([1.05] * 6 + [1.0] * 6, workers=4) == 0
    assert find_cold_steps([9.0, 1.0], workers=0) == 0, "one step is no half"


def test_steps_of_several_workers_are_taken_by_their_turns_and_of_one_as_they_are() -> None:
    """Of two workers that begin together every second step takes no time."""
    assert average_turns([1.0, 3.0, 2.0, 4.0, 9.0], workers=2) == (2.0, 3.0)
    assert average_turns([1.0, 2.0, 6.0, 1.0], workers=3) == (3.0,)
    assert average_turns([1.0, 3.0], workers=1) == average_turns([1.0, 3.0], workers=0) == (1.0, 3.0)
    assert average_turns([1.0, 3.0], workers=3) == (1.0, 3.0), "less than one turn"
