"""The window of facts: what it keeps, and what follows directly from it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.history import READINGS_KEPT, STEPS_KEPT
from supervisor.core.readings import Stage, StepRecord

from .stories import GPU, JOB, NAN, OTHER_GPU, START, story
from .test_storage_wait import wait_of


def test_now_never_goes_back() -> None:
    timeline = story().silence(10)
    timeline.history.add(ev.Tick(at=START))
    assert timeline.history.now == START.plus(10)


def test_it_is_bounded() -> None:
    timeline = story().steps(1, STEPS_KEPT + 10, loss=NAN).gpu(READINGS_KEPT + 10, busy=1.0)
    for _ in range(500):
        timeline.prints("oom", FaultClass.OOM_GPU).kernel(FaultClass.XID)
    history = timeline.history
    assert len(history.steps) == len(history.non_finite) == STEPS_KEPT
    assert len(history.gpus[GPU]) == READINGS_KEPT
    assert len(history.output) == len(history.kernel.findings) == 200


def test_steps_of_other_ranks_are_not_counted_twice() -> None:
    timeline = story()
    record = StepRecord(at=timeline.now, step=1)
    timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(record,), rank=1))
    assert not timeline.history.steps
    assert not timeline.history.claimed


def test_a_step_claims_and_so_do_words_and_stages() -> None:
    assert not story().started().says(ev.AgentEvent.ALIVE).says(ev.AgentEvent.PATCHED).history.hooked
    assert story().steps(1, 1).history.hooked
    assert story().says(ev.AgentEvent.CLAIMED).history.hooked
    assert story().says(ev.AgentEvent.PLAN).history.hooked
    assert story().stage(Stage.SETUP).history.hooked


def test_a_failed_hook_is_made_good_by_the_next_step() -> None:
    timeline = story().steps(1, 1).silence(1).says(ev.AgentEvent.HOOK_FAILED, where="x")
    assert not timeline.history.hooked
    assert timeline.steps(2, 2).history.hooked


def test_it_is_starting_until_the_first_step_and_again_with_a_new_setup() -> None:
    timeline = story().stage(Stage.WARMUP).silence(1)
    assert timeline.history.starting
    assert not timeline.steps(1, 1).history.starting
    assert not timeline.silence(1).stage(Stage.VALIDATE).history.starting
    assert timeline.silence(1).stage(Stage.WARMUP).history.starting
    assert not timeline.steps(1, 1).history.starting


def test_on_a_node_without_rank_0_a_wait_is_a_pause_of_its_ranks_and_ends_with_their_next_steps() -> None:
    waits: dict[str, Any] = {"stuck": (4242,), "storage": (wait_of(4242),)}
    timeline = story().started().claims(2, 4242).rank_steps(2, 1, 10, 1.0)
    timeline.tree(40, **waits).tree().rank_steps(2, 11, 20, 1.0)
    pace = timeline.history.ranks[2]
    assert pace.steps == 19
    assert pace.idle_s == pytest.approx(41.0)
    timeline.tree(40, **waits).tree().rank_steps(2, 21, 30, 1.0)
    assert pace.steps == 29
    assert pace.idle_s == pytest.approx(82.0)


def test_a_pause_is_one_of_each_rank_whichever_of_them_steps_first_after_it() -> None:
    timeline = story().started().claimed(4242, 4243)
    for rank in (0, 1):
        record = StepRecord(at=timeline.now.plus(rank), step=1)
        timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(record,), rank=rank))
    timeline.silence(2).stage(Stage.VALIDATE).silence(60).stage(Stage.STEP).steps(2, 2, 1.0).rank_steps(1, 2, 2)
    assert timeline.history.pace.idle_s == pytest.approx(63.0)
    assert timeline.history.ranks[1].idle_s == pytest.approx(62.05)


def test_steps_that_were_made_while_the_daemon_was_away_are_at_their_pace_but_for_that_during_which_it_went() -> None:
    timeline = story().training(10, 1.0).silence(0.5)
    made = tuple(StepRecord(at=timeline.now.plus(0.5 + number), step=11 + number) for number in range(20))
    timeline.away(20)
    timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=made))
    assert timeline.history.pace.idle_s == pytest.approx(1.0)


def test_a_plan_of_nonsense_is_an_unknown_plan() -> None:
    history = story().says(ev.AgentEvent.PLAN, epochs="three", batches_per_epoch=True, device=0).history
    plan = history.plan
    assert (plan.planned, plan.epochs, plan.batches_per_epoch, history.device) == (True, None, None, None)


def test_the_end_of_one_training_is_not_the_end_of_the_next() -> None:
    assert story().says(ev.AgentEvent.TRAIN_END).history.train_ended
    assert not story().says(ev.AgentEvent.TRAIN_END).says(ev.AgentEvent.PLAN).history.train_ended
    assert not story().says(ev.AgentEvent.TRAIN_END).stage(Stage.SETUP).history.train_ended
    assert story().says(ev.AgentEvent.TRAIN_END).stage(Stage.ENDED).history.train_ended


def test_a_line_is_remembered_until_the_next() -> None:
    assert story().prints("first").prints("").history.last_line == "first"


def test_gpus_of_others_are_kept_and_not_shown() -> None:
    timeline = story().gpu(busy=1.0).gpu(busy=1.0, gpu=OTHER_GPU)
    assert set(timeline.history.gpus) == {GPU, OTHER_GPU}
    assert set(timeline.history.readings_by_gpu()) == {GPU}


def test_it_is_over_however_it_ended() -> None:
    assert not story().training().history.over
    assert story().exits(0).history.over
    assert story().lost().history.over
    timeline = story()
    timeline.put(ev.LaunchFailed(at=timeline.now, job=JOB, attempt=1, error="no shim"))
    assert timeline.history.over


def test_a_file_that_can_be_read_again_may_never_have_been_unreadable() -> None:
    timeline = story().training()
    place = ev.reading_place("output.log")
    timeline.put(ev.SupervisionChanged(at=timeline.now, job=JOB, attempt=1, place=place, error="", recovered=True))
    assert not timeline.history.files_read.unread_since
