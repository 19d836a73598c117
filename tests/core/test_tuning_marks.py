"""What a tune tries is not the owner's training: it teaches nothing, no rule acts on it; a real fault acts at once."""

from __future__ import annotations

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Phase
from supervisor.core.judge import HELD_WHILE_TUNING, judge
from supervisor.core.readings import Stage, StepRecord
from supervisor.core.rules import ACTING
from supervisor.core.rules.gpu_idle import GpuIdle
from supervisor.core.rules.loss_spike import LossSpike
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.throughput_drop import ThroughputDrop
from supervisor.core.rules.vram_high import VramHigh

from .stories import GB, JOB, NAN, Story, life, story

LENT = {"id": 1, "applied": {"workers": 4}, "lent": True}
OVER = {"applied": {}, "lent": False, "ended": "the order was withdrawn"}


def marked(timeline: Story, first: int, last: int, every_s: float, loss: float = 1.0) -> None:
    """Steps that carry the mark of a tune in the recorder itself, wherever the agent's log is read to."""
    for step in range(first, last + 1):
        timeline.now = timeline.now.plus(every_s)
        record = StepRecord(at=timeline.now, step=step, loss=loss, tuning=True)
        timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=timeline.attempt, records=(record,)))


def test_tuned_steps_are_no_part_of_the_pace_or_of_what_is_learned() -> None:
    timeline = story().training(2000, every_s=0.1)
    learned, usual = timeline.history.learned.plain(), timeline.history.pace.usual()
    marked(timeline, 2001, 2400, every_s=3.0, loss=50.0)
    assert timeline.history.learned.plain() == learned
    assert timeline.history.pace.usual() == usual
    assert timeline.history.losses.episode is None
    timeline.steps(2401, 3400, every_s=0.1)
    assert timeline.check(ThroughputDrop()) is None
    assert timeline.check(LossSpike()) is None


def test_a_loss_that_is_no_number_acts_within_a_tune_as_without_one() -> None:
    timeline = life([NonFiniteLoss()]).training(100).says(ev.AgentEvent.TUNING, **LENT)
    timeline.steps(101, 103, loss=NAN)
    assert isinstance(timeline.last, de.Stop)


def test_a_crash_within_a_tune_is_retried() -> None:
    timeline = life().training(100).says(ev.AgentEvent.TUNING, **LENT)
    timeline.steps(101, 110).exits(1)
    assert timeline.phase() is Phase.BACKOFF


def test_a_switch_may_take_as_long_as_a_kernel_search_and_no_longer() -> None:
    timeline = story().training(100).stage(Stage.STEP, stages_complete=True).says(ev.AgentEvent.TUNING, **LENT)
    assert timeline.silence(500).check(Stall()) is None
    assert timeline.silence(101).check(Stall()) is not None


def test_a_stall_after_the_first_steps_of_a_block_has_the_setting_s_limit() -> None:
    timeline = story().training(100).says(ev.AgentEvent.TUNING, **LENT).steps(101, 110)
    assert timeline.silence(61).check(Stall()) is not None


def test_no_learned_limit_holds_while_settings_are_tried() -> None:
    timeline = story().training(100).stage(Stage.STEP, stages_complete=True).steps(101, 3000, every_s=0.05)
    assert timeline.history.learned_limit_s(60.0) is not None
    timeline.says(ev.AgentEvent.TUNING, **LENT)
    assert timeline.history.learned_limit_s(60.0) is None
    timeline.says(ev.AgentEvent.TUNING, **OVER)
    assert timeline.history.learned_limit_s(60.0) is not None


def test_what_a_knob_can_bring_about_acts_only_once_the_owners_settings_are_back() -> None:
    """The first flag is in shadow, on which the tuner ends the tune; with the owner's settings it is the rule's own."""
    timeline = life([VramHigh()]).training(100).says(ev.AgentEvent.TUNING, **LENT)
    timeline.read_decisions()
    timeline.gpu(300, used=6 * GB - 1, every_s=5.0)
    assert timeline.phase() is Phase.RUNNING
    assert timeline.read_decisions() == ["Note"]
    assert {rule for rule, *_ in timeline.job.shadows} == {"vram_high"}
    timeline.says(ev.AgentEvent.TUNING, **OVER).gpu(10, used=6 * GB - 1)
    assert timeline.phase() is Phase.STOPPING


def test_a_gpu_that_idles_while_workers_start_stops_nothing() -> None:
    timeline = story().training(100).stage(Stage.STEP, stages_complete=True).says(ev.AgentEvent.TUNING, **LENT)
    timeline.gpu(60, busy=0.0)
    assert [flag.shadow for flag in judge([GpuIdle()], timeline.history)] == [True]


@pytest.mark.parametrize("name", sorted(HELD_WHILE_TUNING))
def test_what_is_held_names_acting_rules(name: str) -> None:
    assert name in {rule.name for rule in ACTING}


def test_an_attempt_that_follows_a_tune_is_under_none() -> None:
    before = story().training(100).says(ev.AgentEvent.TUNING, **LENT).history
    after = story().training(100).history
    assert (before.tuning, after.tuning) == (True, False)
