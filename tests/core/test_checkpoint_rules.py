"""Checkpoints that do not come, and checkpoints that are no good."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import AFTER_FAULT, NO_TENSORS, OTHER_FORMATS, Verdict
from supervisor.core.flags import Severity
from supervisor.core.rules.advisory.snapshot_overdue import SnapshotOverdue
from supervisor.core.rules.checkpoint_bad import CheckpointBad
from supervisor.core.rules.checkpoint_overdue import CheckpointOverdue

from .long_stories import LongStory, trained
from .stories import TRAINER

RULE = CheckpointOverdue()
BAD = CheckpointBad(act=True)


def saving(every: int, times: int) -> LongStory:
    """A training that has saved each `every` steps."""
    timeline = trained(1)
    for number in range(times):
        timeline.steps(number * every + 1, (number + 1) * every).says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False)
    return timeline


def test_twice_the_usual_steps_without_a_save_are_reported() -> None:
    flag = saving(100, 4).steps(401, 621).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message.startswith("221 steps were made since the last checkpoint (usual: every 100)")


def test_a_step_less_is_not() -> None:
    assert saving(100, 4).steps(401, 620).check(RULE) is None


def test_a_save_interrupts_and_one_on_request_is_not_usual() -> None:
    timeline = saving(100, 4).steps(401, 600)
    assert timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False).steps(601, 700).check(RULE) is None
    timeline = saving(100, 4).steps(401, 600).says(ev.AgentEvent.CHECKPOINT_SAVED, requested=True).steps(601, 650)
    assert timeline.check(RULE) is not None


def test_epochs_without_any_save_are_reported_where_epochs_are_known() -> None:
    timeline = trained(1).says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=100, epochs=10).steps(2, 221)
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.message.startswith("221 steps were made in this attempt and none was seen saved")
    resumed = LongStory().says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=100, epochs=10).steps(5001, 5200)
    assert resumed.check(RULE) is None


def test_a_new_daemon_that_reads_old_words_again_counts_from_the_steps_they_name() -> None:
    timeline = LongStory().says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=100, epochs=10).steps(701, 950)
    for epoch in range(7):
        timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False, step=(epoch + 1) * 100)
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.message.startswith("250 steps were made since the last checkpoint (usual: every 100)")


def test_where_nobody_reports_hours_count() -> None:
    flag = trained(2).silence(14400).check(RULE)
    assert flag is not None
    assert flag.message == "no checkpoint was seen for 4.0 h: a crash now costs all of it"
    assert trained(2).silence(14000).check(RULE) is None
    timeline = trained(2).silence(14000).seen("a.pt", None).silence(3600)
    assert timeline.check(RULE) is None


def test_before_the_first_step_nothing_is_overdue() -> None:
    assert LongStory().silence(100_000).check(RULE) is None


def by_clock(*steps: int) -> LongStory:
    """A training that saves every 300 s, however many steps it has made by then."""
    timeline = trained(1)
    for step in steps:
        timeline.silence(300.0).step(step).says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False)
    return timeline


def test_saves_that_go_by_the_clock_are_overdue_by_the_clock() -> None:
    timeline = by_clock(100, 900, 1000, 4000)
    assert timeline.silence(600).step(40_000).check(RULE) is None, "many steps in little time are no reason"
    flag = timeline.silence(100).step(40_100).check(RULE)
    assert flag is not None
    assert flag.message.startswith("no checkpoint was saved for 700 s (usual: every 300 s)")


def test_saves_that_go_by_a_metric_are_overdue_by_the_longest_gap_seen() -> None:
    timeline = trained(1)
    for step in (100, 110, 120, 130, 2000):
        timeline.step(step).silence(float(step)).says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False)
    assert timeline.step(2100).check(RULE) is None


def test_snapshots_hold_work_and_set_no_pace_of_saves() -> None:
    timeline = trained(1)
    for step in range(2, 40, 2):
        timeline.step(step).silence(1.0).says(
            ev.AgentEvent.CHECKPOINT_SAVED, requested=False, kind="snapshot", step=step
        )
    assert timeline.step(500).silence(60).check(RULE) is None
    assert timeline.history.saves.saved == type(timeline.history.saves.saved)(maxlen=200)
    timeline = (
        saving(100, 4).steps(401, 600).says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False, kind="snapshot", step=600)
    )
    assert timeline.steps(601, 700).check(RULE) is None


def test_only_a_framework_that_saves_each_epoch_is_expected_to() -> None:
    timeline = (
        trained(1).says(ev.AgentEvent.PLAN, framework="transformers", batches_per_epoch=100, epochs=10).steps(2, 900)
    )
    assert timeline.check(RULE) is None


def failing(error: str = "NotFinite: callbacks.kth_value is not finite") -> LongStory:
    """A training that takes snapshots every 60 s, of which none is saved."""
    timeline = trained(10).says(ev.AgentEvent.SNAPSHOTS, every_s=60.0)
    return timeline.says(ev.AgentEvent.SAVE_FAILED, kind="snapshot", error=error, step=10, every_s=60.0)


def test_snapshots_that_fail_for_longer_than_their_interval_are_warned_of() -> None:
    timeline = failing()
    assert timeline.silence(30).check(SnapshotOverdue()) is None
    flag = timeline.silence(40).check(SnapshotOverdue())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert "(interval 60 s): NotFinite: callbacks.kth_value is not finite" in flag.message


def test_a_snapshot_that_is_saved_ends_the_problem() -> None:
    timeline = (
        failing()
        .silence(100)
        .says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False, kind="snapshot", step=20, every_s=60.0)
    )
    assert timeline.silence(100).check(SnapshotOverdue()) is None


def test_snapshots_that_do_not_come_and_do_not_fail_are_warned_of_after_three_intervals() -> None:
    timeline = trained(10).says(ev.AgentEvent.SNAPSHOTS, every_s=60.0)
    assert timeline.pace(170).check(SnapshotOverdue()) is None
    assert timeline.silence(3000).check(SnapshotOverdue()) is None, "a validation is no time of steps"
    flag = timeline.pace(20).check(SnapshotOverdue())
    assert flag is not None
    assert "and no failure was reported" in flag.message


def test_where_no_snapshots_are_taken_none_is_overdue() -> None:
    assert trained(10).pace(1000).check(SnapshotOverdue()) is None


def test_a_save_that_was_asked_for_and_failed_is_warned_of_until_one_succeeds() -> None:
    timeline = trained(10).says(ev.AgentEvent.SAVE_FAILED, error="OSError: no room")
    flag = timeline.check(SnapshotOverdue())
    assert flag is not None
    assert (flag.subject, flag.message) == ("asked", "the save that was asked for failed: OSError: no room")
    assert timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, requested=True, step=10).check(SnapshotOverdue()) is None


def test_one_bad_checkpoint_is_reported() -> None:
    flag = trained().seen("last.pt", Verdict.REJECTED, "holds NaN", step=100).check(BAD)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "last.pt")
    assert flag.message == "last.pt: holds NaN, saved at step 100"


def test_a_file_of_another_format_is_reported_as_such_and_not_as_a_damaged_one() -> None:
    for reason in OTHER_FORMATS:
        flag = trained().seen("output/3.pdparams", Verdict.REJECTED, reason).check(BAD)
        assert flag is not None
        assert flag.diagnosis is not None
        assert flag.diagnosis.ruled_out == ("no sign of damage: only the format is unknown",)
    flag = trained().seen("last.pt", Verdict.REJECTED, "holds NaN").check(BAD)
    assert flag is not None
    assert flag.diagnosis is not None
    assert "not finite" in flag.diagnosis.causes[0]


def test_two_in_a_row_that_hold_nan_act_and_go_back_before_the_first() -> None:
    timeline = (
        trained().seen("last.pt", Verdict.PROVEN).silence(9).seen("last.pt", Verdict.REJECTED, "holds NaN", step=100)
    )
    first = timeline.now
    flag = timeline.silence(10).seen("last.pt", Verdict.REJECTED, "holds NaN", step=200).silence(5).check(BAD)
    assert flag is not None
    assert (flag.severity, flag.since_step) == (Severity.CRITICAL, 100)
    assert flag.since is not None
    assert abs(flag.since.seconds_since(first)) < 1e-3
    assert flag.message == "last.pt: holds NaN; 2 in a row, saved at step 200"
    by_default = timeline.check(CheckpointBad())
    assert by_default is not None
    assert by_default.severity is Severity.WARNING


def test_two_that_were_cut_are_reported_only() -> None:
    timeline = trained().seen("a.pt", Verdict.REJECTED, "is cut").silence(1).seen("a.pt", Verdict.REJECTED, "is cut")
    flag = timeline.check(BAD)
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_proven_one_interrupts_and_an_unproven_one_says_nothing() -> None:
    timeline = trained().seen("a.pt", Verdict.REJECTED, "holds NaN").silence(1).seen("a.pt", Verdict.PROVEN)
    assert timeline.check(BAD) is None
    assert trained().seen("a.pt", None).check(BAD) is None
    assert trained().seen("a.pt", Verdict.REJECTED, AFTER_FAULT).check(BAD) is None, "what was in it is not known"
    assert trained().check(BAD) is None


def test_of_several_paths_the_one_with_most_bad_checkpoints_in_a_row_is_named() -> None:
    timeline = trained().seen("last.pt", Verdict.REJECTED, "holds NaN", step=100).silence(10)
    timeline.seen("last.pt", Verdict.REJECTED, "holds NaN", step=200).seen("other.pt", Verdict.REJECTED, "cut short")
    flag = timeline.seen("best.pt", Verdict.PROVEN).check(BAD)
    assert flag is not None
    assert flag.message.startswith("last.pt: holds NaN; 2 in a row")


def test_generations_of_one_file_are_in_a_row_and_a_later_proven_one_ends_it() -> None:
    timeline = trained()
    for number in (1, 2):
        timeline.silence(9).seen(
            f"g/{number}/last.pt", Verdict.REJECTED, "holds NaN", step=number, source="out/last.pt"
        )
    flag = timeline.check(BAD)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.CRITICAL, "last.pt")
    assert flag.message == "out/last.pt (generation 2): holds NaN; 2 in a row, saved at step 2"
    assert timeline.silence(9).seen("g/3/last.pt", Verdict.PROVEN, source="out/last.pt").check(BAD) is None
    assert timeline.seen("g/0/last.pt", Verdict.REJECTED, "is cut", source="out/last.pt", ago_s=30).check(BAD) is None


def test_names_that_differ_in_a_number_are_in_a_row() -> None:
    timeline = trained().seen("epoch-1.pt", Verdict.REJECTED, "is cut").silence(9)
    assert timeline.seen("epoch-2.pt", Verdict.PROVEN).check(BAD) is None


def test_a_file_without_weights_next_to_weights_is_not_bad() -> None:
    timeline = trained().seen("out/scheduler.pt", Verdict.REJECTED, NO_TENSORS)
    assert timeline.check(BAD) is None, "the others of this save may be proven yet"
    assert timeline.seen("out/model.pt", Verdict.PROVEN).silence(9).check(BAD) is None
    assert timeline.seen("out/scheduler.pt", Verdict.REJECTED, NO_TENSORS).check(BAD) is None
    alone = trained().seen("a.pt", Verdict.REJECTED, NO_TENSORS).silence(9).seen("a.pt", Verdict.REJECTED, NO_TENSORS)
    flag = alone.check(BAD)
    assert flag is not None
    assert flag.severity is Severity.WARNING
