"""Progress: an end with its bounds, from steps and pauses as they were; the owner's criteria, each with its numbers."""

from __future__ import annotations

import pytest

from supervisor.core import events as ev
from supervisor.core.readings import Stage
from supervisor.core.reports.expectations import Criterion, Expectation, checklist
from supervisor.core.reports.progress import progress_of

from .long_stories import LongStory, long_story
from .stories import GB, NAN, START

EPOCHS, BATCHES = 50, 100


def planned() -> LongStory:
    """A plan of 50 epochs of 100 batches."""
    timeline = long_story()
    timeline.started().says(ev.AgentEvent.PLAN, epochs=EPOCHS, batches_per_epoch=BATCHES, start_epoch=0).stage(
        Stage.STEP
    )
    return timeline


def trained(epochs: int, every_s: float = 1.0, validation_s: float = 60.0, loss: float = 1.0) -> LongStory:
    """Whole epochs, each followed by a validation and a checkpoint, and the first step of the next one."""
    timeline = planned()
    for _ in range(epochs):
        timeline.pace(BATCHES * every_s, every_s, batches=BATCHES, loss=loss)
        timeline.stage(Stage.VALIDATE).silence(validation_s).stage(Stage.STEP)
        timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False)
    return timeline.pace(every_s, every_s, batches=BATCHES)


def test_a_training_s_own_loops_have_a_total_and_an_end() -> None:
    timeline = long_story().started().stage(Stage.STEP)
    timeline.says(ev.AgentEvent.LOOPS, epochs=3, total_steps=252, steps_per_epoch=84)
    timeline.pace(100)
    seen = progress_of(timeline.history)
    assert (seen.steps_total, seen.epochs, seen.batches_per_epoch, seen.epoch) == (252, 3, 84, 1)
    assert seen.left_s == pytest.approx(152, rel=0.05)


def test_an_epoch_takes_the_time_of_its_batches_where_no_pause_was_seen() -> None:
    timeline = long_story().started()
    timeline.says(ev.AgentEvent.PLAN, epochs=10, batches_per_epoch=1000)
    assert progress_of(timeline.pace(900, batches=1000).history).epoch_s == pytest.approx(1000.0)


def test_a_total_of_loops_that_was_passed_is_unknown() -> None:
    timeline = long_story().started().stage(Stage.STEP)
    timeline.says(ev.AgentEvent.LOOPS, epochs=3, total_steps=30, steps_per_epoch=10)
    seen = progress_of(timeline.pace(31).history)
    assert (seen.steps_total, seen.left_s, seen.epoch) == (None, None, None)


def test_a_framework_s_plan_wins_over_the_loops_that_it_runs() -> None:
    timeline = long_story().started().stage(Stage.STEP)
    timeline.says(ev.AgentEvent.LOOPS, total_steps=30)
    timeline.says(ev.AgentEvent.PLAN, framework="transformers", epochs=3, total_steps=250, steps_per_epoch=84)
    timeline.says(ev.AgentEvent.LOOPS, total_steps=30)
    assert progress_of(timeline.pace(10).history).steps_total == 250


def test_a_framework_that_counts_steps_of_the_optimizer_plans_them_itself() -> None:
    timeline = long_story().started().stage(Stage.STEP)
    timeline.says(ev.AgentEvent.PLAN, framework="transformers", epochs=3, total_steps=250, steps_per_epoch=84)
    seen = progress_of(timeline.pace(50, batches=84).history)
    assert (seen.steps_total, seen.epochs, seen.batches_per_epoch, seen.epoch) == (250, 3, 84, 0)
    assert seen.left_s == pytest.approx(200, rel=0.05)


def of(timeline: LongStory, expected: Expectation) -> Criterion:
    (found,) = checklist(expected, timeline.history, progress_of(timeline.history, expected.batches_per_s))
    return found


def test_validations_are_part_of_what_is_left() -> None:
    progress = progress_of(trained(10).history)
    assert (progress.steps, progress.steps_total, progress.epoch) == (1001, 5000, 10)
    assert progress.step_s == pytest.approx(1.0)
    assert progress.epoch_s == pytest.approx(160.0)
    assert progress.left_s == pytest.approx(3999 + 40 * 60.0)


def test_a_changing_pace_widens_the_bounds_and_the_end_lies_between() -> None:
    steady = progress_of(trained(10).history)
    timeline = planned()
    for every_s in (1.0, 1.5, 1.0, 0.5, 1.0, 1.5, 0.5, 1.0):
        timeline.pace(120, every_s)
    mixed = progress_of(timeline.history)
    assert steady.left_early_s is not None
    assert steady.left_s is not None
    assert steady.left_late_s is not None
    assert mixed.left_early_s is not None
    assert mixed.left_s is not None
    assert mixed.left_late_s is not None
    assert mixed.left_early_s < mixed.left_s < mixed.left_late_s
    assert mixed.left_late_s / mixed.left_early_s > 2 > steady.left_late_s / steady.left_early_s


def test_one_slow_stretch_moves_the_end_by_itself_only() -> None:
    timeline = trained(10).pace(60, 20.0, batches=BATCHES).pace(300, batches=BATCHES)
    assert progress_of(timeline.history).step_s == pytest.approx(1.0)


def test_the_first_steps_give_an_end_with_wide_bounds() -> None:
    progress = progress_of(planned().pace(10).history)
    assert progress.left_s == pytest.approx(4990)
    assert progress.left_early_s == pytest.approx(2495)
    assert progress.left_late_s == pytest.approx(9980)


def test_what_is_unknown_is_none() -> None:
    assert progress_of(planned().history).left_s is None
    assert progress_of(planned().pace(1).history).step_s is None
    without_plan = progress_of(long_story().pace(600).history)
    assert (without_plan.left_s, without_plan.steps_total) == (None, None)
    assert progress_of(planned().pace(600).history).steps_expected is None


def test_a_step_counter_that_goes_back_makes_no_negative_time() -> None:
    timeline = planned().pace(100)
    timeline.step(50).pace(100)
    progress = progress_of(timeline.history)
    assert progress.step_s is not None
    assert progress.step_s > 0


def test_expected_steps_follow_the_owners_pace_without_the_pauses() -> None:
    progress = progress_of(trained(10, validation_s=600.0).history, 2.0)
    assert progress.steps_expected == pytest.approx(2 * 990, abs=5)


def test_the_pace_met_and_not_met_and_unknown() -> None:
    wanted = Expectation(batches_per_s=15.0)
    slow = of(trained(10), wanted)
    assert slow.verdict == "not_met"
    assert slow.text.startswith("1/s, at least 15/s required; 1001 steps made, ")
    assert of(planned().pace(60, 0.05), wanted).verdict == "met"
    assert of(planned(), wanted).verdict == "unknown"


def test_a_checkpoint_each_epoch() -> None:
    wanted = Expectation(checkpoint_each_epoch=True)
    assert of(planned().pace(50, batches=BATCHES), wanted).verdict == "unknown"
    assert of(trained(3), wanted) == Criterion(
        name="checkpoint_each_epoch", verdict="met", text="3 checkpoints saved in 3 epochs"
    )
    assert of(planned().pace(250, batches=BATCHES), wanted).verdict == "not_met"


def test_losses_that_fall() -> None:
    wanted = Expectation(losses_fall=True)
    timeline = planned()
    for loss in (3.0, 2.0, 1.0):
        timeline.pace(100, batches=BATCHES, loss=loss)
    assert of(timeline, wanted).verdict == "met"
    assert of(trained(3), wanted).verdict == "not_met"
    assert of(trained(1), wanted).verdict == "unknown"
    timeline = planned()
    for loss in (3.0, NAN, 1.0):
        timeline.pace(100, batches=BATCHES, loss=loss)
    assert of(timeline, wanted).verdict == "not_met"


def test_a_map_that_rises() -> None:
    wanted = Expectation(map_rises=True)
    timeline = trained(2).epoch_ends(0, metrics={"metrics/mAP50-95(B)": 0.2})
    assert of(timeline, wanted).verdict == "unknown"
    assert of(timeline.epoch_ends(1, metrics={"metrics/mAP50-95(B)": 0.1}), wanted).verdict == "not_met"
    found = of(timeline.epoch_ends(2, metrics={"metrics/mAP50-95(B)": 0.3}), wanted)
    assert found == Criterion(name="map_rises", verdict="met", text="first 0.2, newest 0.3, best 0.3")


def test_heat_and_memory_of_the_gpus() -> None:
    hot, full = Expectation(max_temperature_c=90.0), Expectation(max_vram_bytes=5 * GB)
    timeline = trained(1)
    assert (of(timeline, hot).verdict, of(timeline, full).verdict) == ("unknown", "unknown")
    timeline.card(junction_c=95.0, vram_used_bytes=6 * GB)
    assert (of(timeline, hot).verdict, of(timeline, full).verdict) == ("not_met", "not_met")
    timeline.silence(601).card(junction_c=80.0, vram_used_bytes=4 * GB)
    assert (of(timeline, hot).verdict, of(timeline, full).verdict) == ("met", "met")


def test_the_date_is_compared_with_an_end_that_has_bounds_in_hours() -> None:
    timeline = planned().pace(9000, 900.0)
    end_unix_s = timeline.now.unix_s + 4990 * 900.0
    before, after = (of(timeline, Expectation(deadline_unix_s=end_unix_s + late_s)) for late_s in (9000.0, -9000.0))
    left = "1247.5 h left (1247.5 to 1247.5 h), expected to end"
    assert before == Criterion(name="deadline", verdict="met", text=f"{left} 2.5 h before the deadline")
    assert after == Criterion(name="deadline", verdict="not_met", text=f"{left} 2.5 h after the deadline")


def test_nan_and_the_date() -> None:
    timeline = trained(10)
    assert of(timeline, Expectation(no_nan=True)).verdict == "met"
    early, late = Expectation(deadline_unix_s=START.unix_s + 100.0), Expectation(deadline_unix_s=START.unix_s + 1e6)
    assert (of(timeline, early).verdict, of(timeline, late).verdict) == ("not_met", "met")
    assert of(planned(), early).verdict == "unknown"
    assert of(timeline.pace(1, loss=NAN), Expectation(no_nan=True)).verdict == "not_met"
    assert checklist(Expectation(), timeline.history, progress_of(timeline.history)) == ()
