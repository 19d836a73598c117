"""Which steps after a switch of a tune's settings do not count, and how many a block will take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.tuning.compare import BLOCK_STEPS, DROPPED_STEPS
from supervisor.core.tuning.knob import Facts
from supervisor.core.tuning.stock import StockSample
from supervisor.core.tuning.switches import Settings, Shown, Switches

YOLO = Facts(workers=1, prefetch=4, processors=16)
OWNERS: Settings = {}
BASE: Settings = {"workers": 16}
ARM: Settings = {"workers": 16, "tf32": True}


def after(switches: Switches, settings: Settings, **shown: object) -> Switches:
    """Return what is known after a block whose steps took 0.07 s."""
    return switches.after_block(settings, Shown(pace_s=0.07, **shown))  # type: ignore[arg-type] # by name


STARVED = after(Switches(facts=YOLO), OWNERS, wait=0.8)
SETTLED = after(STARVED, BASE, wait=0.005, busy=6.0)


def test_after_an_exchange_the_old_batches_and_all_that_the_new_workers_drew_ahead_are_left_out_and_no_more() -> None:
    """Of the 64 that sixteen workers begin at once the first 17 are dropped with the old ones: 47 are left."""
    switch = STARVED.plan(OWNERS, BASE, proves=False)
    assert (switch.drop, switch.ahead) == (4 + 16 + 1, 64 - 17)
    back = SETTLED.plan(BASE, OWNERS, proves=False)
    assert (back.drop, back.ahead) == (64 + 1 + 1, 4 - 2)


def test_after_a_switch_without_an_exchange_those_that_lie_ready_are_left_out_with_the_first_steps_among_them() -> None:
    switch = SETTLED.plan(BASE, ARM, proves=False)
    assert (switch.drop, switch.ahead, switch.is_exchange) == (6, 64 - 6, False)
    proven = after(SETTLED, ARM, wait=0.0)
    switch = proven.plan(BASE, ARM, proves=True)
    assert (switch.drop, switch.ahead) == (DROPPED_STEPS, 0), "more of them ready makes no step faster"
    waiting = after(SETTLED, ARM, wait=0.2)
    assert waiting.plan(BASE, ARM, proves=False).ahead == 64 - DROPPED_STEPS


def test_the_last_comparison_uses_up_what_lay_ready_where_no_block_has() -> None:
    put_off = after(SETTLED, ARM, wait=0.0, is_run_out=False)
    assert put_off.plan(BASE, ARM, proves=False).ahead == 0
    assert put_off.plan(BASE, ARM, proves=True).ahead == 64 - DROPPED_STEPS
    assert put_off.plan(ARM, ARM, proves=True).ahead == 64 - DROPPED_STEPS, "also where they hold already"
    run_out = after(put_off, ARM, wait=0.0)
    assert run_out.plan(ARM, ARM, proves=True).ahead == 0
    assert after(run_out, ARM, wait=0.0, is_run_out=False).is_run_out(ARM), "once is enough"


def test_no_step_is_taken_for_faster_than_its_workers_make_batches() -> None:
    """A stock of 64 batches lasts for 360 steps of 51 ms where one is made in 62 ms: no block shows its end."""
    known = after(after(Switches(facts=YOLO), OWNERS, wait=0.9, batch_s=1.1), OWNERS, wait=0.9, batch_s=0.9)
    assert known.find_slowdown(BASE, 0.05) == pytest.approx(1.25)
    assert known.find_slowdown(BASE, 0.07) == 1.0
    assert known.find_slowdown({"workers": 32}, 0.05) == pytest.approx(1.25), "there are 16 processors"
    assert known.find_slowdown({"workers": 0}, 0.05) == 1.0
    assert after(known, BASE, wait=0.1, batch_s=9.0).batches_s == known.batches_s, "a stock may have been made in it"
    assert SETTLED.find_slowdown(BASE, 0.001) == 1.0, "what a batch takes is not known"
    assert after(Switches(facts=Facts(workers=4)), {}, wait=0.9, batch_s=1.0).find_slowdown({}, 0.1) == 1.0


def made(switches: Switches, workers: int, batches: int) -> Switches:
    """Return what is known after so many workers have made so many batches in ten steps of a second."""
    for turn in range(1, 9):
        counts = {"delivered": 10 * turn, "ready": 40 + (batches - 10) * turn, "begun": 60 + workers + batches * turn}
        sample = StockSample(at_s=turn, step=10 * turn, iterator=1, workers=workers, ahead=4 * workers, **counts)
        switches = switches.after_sample(sample)
    return switches


def test_what_workers_were_counted_to_make_outweighs_the_processor_time_that_another_number_of_them_took() -> None:
    """Sixteen workers of sixteen processors take 3.3 times as long for a batch as one that has them to itself."""
    known = made(after(SETTLED, OWNERS, wait=0.9, batch_s=1.0), 16, 7)
    assert known.find_slowdown(BASE, 0.1) == pytest.approx(1 / 0.7)
    assert known.find_slowdown({"workers": 8}, 0.1) == pytest.approx(1.25), "of eight none were counted"
    assert known.find_slowdown(BASE, 0.2) == 1.0


def test_steps_that_will_wait_once_nothing_lies_ready_are_known_to_before_they_do() -> None:
    known = made(SETTLED, 16, 7)
    shown = known.find(BASE)
    assert shown is not None
    assert shown.wait == pytest.approx(1 - 0.7 * 0.7)
    assert not shown.waits_for_none
    assert known.find(OWNERS) == SETTLED.find(OWNERS), "its own worker was not counted"
    quick = made(SETTLED, 16, 15)
    assert quick.find(BASE) == SETTLED.find(BASE), "they keep up"


def test_workers_that_were_counted_keep_up_and_others_are_not_known_to() -> None:
    idle = StockSample(at_s=1.0, step=60, iterator=1, workers=16, ahead=64, delivered=60, ready=60, begun=124)
    assert SETTLED.after_sample(idle).keeps_up(BASE, 52)
    assert not SETTLED.after_sample(idle).keeps_up(BASE, 53)
    assert not SETTLED.after_sample(idle).keeps_up(OWNERS, 0)
    assert not SETTLED.keeps_up(BASE, 0)


def test_new_workers_are_being_counted_while_all_are_at_work_and_until_their_pace_is_known() -> None:
    begun = StockSample(at_s=1.0, step=1, iterator=1, workers=16, ahead=64, delivered=1, ready=0, begun=65)
    assert not SETTLED.is_being_counted(BASE)
    assert SETTLED.after_sample(begun).is_being_counted(BASE)
    assert not SETTLED.after_sample(replace(begun, ready=49)).is_being_counted(BASE), "fifteen have one to make"
    assert not made(SETTLED, 16, 7).is_being_counted(BASE)


def test_workers_have_spare_processors_where_few_are_busy_and_it_is_known() -> None:
    assert SETTLED.has_spare(BASE, 0.7 * 16)
    assert not SETTLED.has_spare(BASE, 0.7 * 16 + 0.1)
    assert not SETTLED.has_spare(BASE, None)
    assert not SETTLED.has_spare({"workers": 4}, 3.0), "of four workers no more than four can be busy"
    assert not Switches(facts=Facts(workers=4)).has_spare({}, 1.0), "how many processors there are is not known"


def test_steps_are_kept_for_what_the_last_comparison_has_to_use_up() -> None:
    assert SETTLED.count_reserve(BASE, ARM) == 64, "there are processors to spare: the arm need not use them up"
    assert after(SETTLED, ARM, wait=0.0, busy=8.0, is_run_out=False).count_reserve(BASE, ARM) == 64
    assert after(SETTLED, ARM, wait=0.0, busy=8.0).count_reserve(BASE, ARM) == 0
    assert after(STARVED, BASE, wait=0.005, busy=15.0).count_reserve(BASE, ARM) == 0
    assert STARVED.count_reserve(OWNERS, BASE) == 0


def test_steps_are_kept_for_either_end_of_an_arm() -> None:
    """A YOLO's tune with 188 steps left ended without TF32: channels_last, which had none to use up, was refused."""
    put_off = after(after(STARVED, BASE, wait=0.005, busy=6.0, is_run_out=False), ARM, wait=0.0, busy=6.0)
    assert put_off.count_reserve(BASE, ARM) == 64, "of the settings before, where the arm is refused"


def test_workers_that_are_idle_are_soon_known_to_follow_and_no_more_steps_are_kept_for_it() -> None:
    counted = StockSample(at_s=1.0, step=50, iterator=1, workers=16, ahead=64, delivered=50, ready=54, begun=114)
    assert SETTLED.after_sample(counted).count_reserve(BASE, ARM) == 2 * 10 + 8
    busy = replace(counted, ready=50)
    assert SETTLED.after_sample(busy).count_reserve(BASE, ARM) == 64, "fourteen of sixteen have a batch to make"


def test_a_block_is_reckoned_by_what_the_newest_of_its_kind_took() -> None:
    """A YOLO's first block with TF32 took 88 steps, the next ones 14 to 24: channels_last was given up at 220 left."""
    switches = SETTLED.after_switch(SETTLED.kind_of(BASE, ARM), 88)
    both = {**ARM, "channels_last": True}
    assert switches.count_steps(BASE, both) == 88
    switches = after(switches, ARM, wait=0.0)
    assert switches.count_steps(BASE, ARM) == 16 + DROPPED_STEPS
    assert switches.count_steps(ARM, BASE) == 16 + DROPPED_STEPS
    assert switches.count_steps(ARM, ARM) == 16


def test_a_block_that_used_up_what_lay_ready_says_nothing_of_those_after_it() -> None:
    """The first block of a last comparison took 64 steps for that, and as many were kept for each that followed."""
    put_off = after(SETTLED, ARM, wait=0.0, busy=8.0, is_run_out=False)
    switches = put_off.after_switch(put_off.kind_of(ARM, ARM, proves=True), 80)
    switches = after(switches, ARM, wait=0.0, busy=8.0)
    assert switches.count_steps(ARM, ARM) == 16
    assert switches.count_steps(BASE, BASE) == 16


def test_an_exchange_of_workers_is_known_from_other_switches_and_from_none() -> None:
    assert [SETTLED.plan(held, wanted, proves=False).is_exchange for held, wanted in (
        (OWNERS, BASE), (BASE, ARM), (BASE, BASE),
    )] == [True, False, False]  # fmt: skip
    assert SETTLED.plan(BASE, BASE, proves=False).is_known
    assert not STARVED.plan(OWNERS, OWNERS, proves=False).is_known, "its steps wait"


def test_a_block_of_many_workers_has_a_step_of_each() -> None:
    assert SETTLED.count_steps(OWNERS, BASE) == 16 + SETTLED.plan(OWNERS, BASE, proves=False).drop + 47
    assert STARVED.count_steps(OWNERS, OWNERS) == BLOCK_STEPS


@pytest.mark.parametrize(
    ("wait", "shown", "expected"),
    [
        (0.8, {"wait": 0.01}, True),
        (0.8, {"wait": 0.4}, True),  # a fast training takes a while to receive its batches
        (0.8, {"wait": 0.41}, False),
        (0.49, {"wait": 0.01}, False),  # most of a step was none
        (None, {"wait": 0.01}, False),
        (0.8, {}, False),
        (0.8, {"wait": 0.01, "is_run_out": False}, False),  # batches may lie ready yet
    ],
)
def test_a_wait_has_ended_where_most_of_a_step_was_one_and_less_than_half_as_long_is(
    wait: float | None, shown: dict[str, object], expected: bool
) -> None:
    known = after(after(Switches(facts=YOLO), OWNERS, wait=wait), BASE, **shown)
    assert known.has_ended_wait(OWNERS, BASE) is expected
    assert not Switches(facts=YOLO).has_ended_wait(OWNERS, BASE)
