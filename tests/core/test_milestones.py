"""Milestones, best metrics and deadlines: news for whoever waits."""

from __future__ import annotations

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.advisory.best_metric import BestMetric
from supervisor.core.rules.advisory.deadline import Deadline
from supervisor.core.rules.advisory.milestone import Milestone

from .long_stories import LongStory, long_story, trained
from .stories import START, life


def planned(epochs: int = 20, batches: int = 100, start_epoch: int = 0) -> LongStory:
    """A training that told its plan."""
    timeline = long_story()
    timeline.started().says(ev.AgentEvent.PLAN, epochs=epochs, batches_per_epoch=batches, start_epoch=start_epoch)
    return timeline


def test_each_milestone_is_reported_once_in_its_order() -> None:
    timeline = life([Milestone()]).started().says(ev.AgentEvent.PLAN, epochs=20, batches_per_epoch=100, start_epoch=0)
    timeline.stage(Stage.STEP).steps(1, 2000)
    flags = [decision.flag for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert [flag.message for flag in flags] == [
        "the first epoch is over: step 100 of 2000",
        "a tenth is done: step 200 of 2000",
        "half is done: step 1000 of 2000",
        "all steps are done: step 2000 of 2000",
    ]
    assert {flag.severity for flag in flags} == {Severity.INFO}


@pytest.mark.parametrize(
    ("plan", "first"),
    [({"epochs": 20, "steps_per_epoch": 100, "total_steps": 2000}, "step 100 of 2000"), ({"total_steps": 2000}, None)],
    ids=["Lightning", "a plan of steps alone"],
)
def test_the_first_epoch_is_that_of_the_plan_also_where_the_plan_counts_steps(
    plan: dict[str, int], first: str | None
) -> None:
    timeline = life([Milestone()]).started().says(ev.AgentEvent.PLAN, **plan).stage(Stage.STEP).steps(1, 2000)
    reported = [decision.flag.message for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert reported == [
        *([f"the first epoch is over: {first}"] if first else []),
        "a tenth is done: step 200 of 2000",
        "half is done: step 1000 of 2000",
        "all steps are done: step 2000 of 2000",
    ]


def test_a_step_short_is_none() -> None:
    assert planned().steps(1, 99).check(Milestone()) is None


def test_a_resumed_attempt_does_not_report_old_news() -> None:
    assert planned(start_epoch=12).steps(1201, 1300).check(Milestone()) is None
    assert long_story().steps(1201, 1300).check(Milestone()) is None


def test_an_attempt_that_begins_at_a_milestone_does_not_report_it() -> None:
    assert planned(start_epoch=1).steps(101, 150).check(Milestone()) is None
    flag = planned(start_epoch=1).steps(101, 200).check(Milestone())
    assert flag is not None
    assert flag.message == "a tenth is done: step 200 of 2000"


def test_a_share_of_the_steps_is_reached_by_the_first_whole_step_beyond_it() -> None:
    assert planned(epochs=5, batches=3, start_epoch=1).steps(4, 7).check(Milestone()) is None
    flag = planned(epochs=5, batches=3, start_epoch=1).steps(4, 8).check(Milestone())
    assert flag is not None
    assert flag.message == "half is done: step 8 of 15"
    flag = planned(epochs=15, batches=1, start_epoch=1).steps(2, 2).check(Milestone())
    assert flag is not None
    assert flag.message == "a tenth is done: step 2 of 15"


@pytest.mark.parametrize("facts", [{"steps_per_epoch": 100, "total_steps": 2000}, {"total_steps": 2000}])
def test_the_first_epoch_of_a_framework_that_counts_its_optimizers_steps_is_not_the_whole_training(
    facts: dict[str, int],
) -> None:
    timeline = life([Milestone()]).started().says(ev.AgentEvent.PLAN, epochs=20, **facts).stage(Stage.STEP)
    timeline.steps(1, 2000)
    flags = [decision.flag for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert [flag.message for flag in flags][:2] == [
        "the first epoch is over: step 100 of 2000",
        "a tenth is done: step 200 of 2000",
    ]
    resumed = life([Milestone()]).started().says(ev.AgentEvent.PLAN, epochs=20, **facts).stage(Stage.STEP)
    resumed.steps(1501, 2000)
    assert [decision.flag.subject for decision in resumed.decisions if isinstance(decision, de.Warn)] == [
        "all steps are done"
    ]


@pytest.mark.parametrize("facts", [{}, {"epochs": 3}])
def test_an_epoch_of_unknown_length_is_no_milestone(facts: dict[str, int]) -> None:
    timeline = life([Milestone()]).started().says(ev.AgentEvent.PLAN, total_steps=2000, **facts).stage(Stage.STEP)
    timeline.steps(1, 2000)
    subjects = [decision.flag.subject for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert subjects == ["a tenth is done", "half is done", "all steps are done"]


def test_where_no_first_epoch_is_reported_an_attempt_began_before_its_first_step() -> None:
    timeline = long_story()
    timeline.started().says(ev.AgentEvent.PLAN, epochs=20, batches_per_epoch=100)
    flag = timeline.steps(100, 100).check(Milestone())
    assert flag is not None
    assert flag.message == "the first epoch is over: step 100 of 2000"


def test_a_new_daemon_that_knows_the_newest_steps_only_reports_the_same_as_the_old_one() -> None:
    flag = planned().steps(900, 1100).check(Milestone())
    assert flag is not None
    assert flag.subject == "half is done"


def collect_milestones(steps: int, **loops: int) -> list[str]:
    """Return what is reported of a training whose total is known from its own loops."""
    timeline = life([Milestone()]).started().says(ev.AgentEvent.LOOPS, **loops)
    timeline.stage(Stage.STEP).steps(1, steps)
    return [decision.flag.message for decision in timeline.decisions if isinstance(decision, de.Warn)]


def test_a_loop_of_steps_alone_has_no_first_epoch() -> None:
    assert collect_milestones(1500, total_steps=1500) == [
        "a tenth is done: step 150 of 1500",
        "half is done: step 750 of 1500",
        "all steps are done: step 1500 of 1500",
    ]


def test_the_first_of_several_epochs_of_loops_is_a_milestone() -> None:
    assert collect_milestones(100, epochs=20, steps_per_epoch=100, total_steps=2000) == [
        "the first epoch is over: step 100 of 2000"
    ]


def test_the_only_epoch_is_all_of_the_training() -> None:
    assert (
        collect_milestones(10, epochs=1, steps_per_epoch=10, total_steps=10)[-1] == "all steps are done: step 10 of 10"
    )


def test_without_a_plan_there_are_no_milestones() -> None:
    assert trained(500).check(Milestone()) is None


def test_a_better_validation_is_reported_by_its_map() -> None:
    timeline = trained().epoch_ends(0, metrics={"metrics/mAP50-95(B)": 0.30}, fitness=0.9)
    assert timeline.check(BestMetric()) is None
    flag = timeline.epoch_ends(1, metrics={"metrics/mAP50-95(B)": 0.31}, fitness=0.1).check(BestMetric())
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.INFO, "epoch 2")
    assert flag.message == "epoch 2 is the best so far: 0.31, 0.3 before"


def test_a_validation_hardly_better_worse_or_unknown_is_not() -> None:
    first = {"metrics/mAP50-95(B)": 0.30}
    for second in ({"metrics/mAP50-95(B)": 0.302}, {"metrics/mAP50-95(B)": 0.1}, {}):
        assert trained().epoch_ends(0, metrics=first).epoch_ends(1, metrics=second).check(BestMetric()) is None
    assert trained().epoch_ends(0, fitness=0.5).epoch_ends(1, fitness=None).check(BestMetric()) is None


def test_an_end_after_the_date_is_reported_with_what_still_fits() -> None:
    rule = Deadline(at_unix_s=START.unix_s + 10 * 3600)
    timeline = planned(epochs=1000, batches=100).stage(Stage.STEP)
    flag = timeline.pace(1200, batches=100).check(rule)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message == "27.4 h of training are left, 9.7 h before the deadline: done 17.8 h too late"
    assert flag.diagnosis is not None
    assert "more epochs of 2 min fit before it" in flag.diagnosis.advice[0]


@pytest.mark.parametrize(
    ("left_s", "left"),
    [(0.5, "0.0 h before the deadline"), (0.0, "the deadline has passed"), (-7200.0, "the deadline has passed")],
)
def test_a_deadline_has_passed_from_its_moment_on(left_s: float, left: str) -> None:
    timeline = planned(epochs=1000, batches=100).stage(Stage.STEP).pace(1200, batches=100)
    flag = timeline.check(Deadline(at_unix_s=timeline.now.unix_s + left_s))
    assert flag is not None
    assert flag.message == f"27.4 h of training are left, {left}: done {27.4 - left_s / 3600:.1f} h too late"


def test_an_end_before_the_date_or_an_unknown_one_is_not() -> None:
    timeline = planned(epochs=1000, batches=100).stage(Stage.STEP).pace(1200, batches=100)
    assert timeline.check(Deadline(at_unix_s=START.unix_s + 40 * 3600)) is None
    assert timeline.check(Deadline()) is None
    assert trained(5).pace(1200).check(Deadline(at_unix_s=START.unix_s)) is None


def test_the_first_minutes_alarm_nobody() -> None:
    timeline = planned(epochs=1000, batches=100).stage(Stage.STEP).pace(300, batches=100)
    assert timeline.check(Deadline(at_unix_s=START.unix_s + 3600)) is None


def test_a_pace_that_rises_interrupts() -> None:
    rule = Deadline(at_unix_s=START.unix_s + 20 * 3600)
    timeline = planned(epochs=1000, batches=100).stage(Stage.STEP).pace(1200, batches=100)
    assert timeline.check(rule) is not None
    assert timeline.pace(6000, 0.2, batches=100).check(rule) is None
