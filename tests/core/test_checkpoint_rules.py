"""Checkpoints that do not come, and checkpoints that are no good."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.checkpoints import Verdict
from supervisor.core.flags import Severity
from supervisor.core.rules.checkpoint_bad import CheckpointBad
from supervisor.core.rules.checkpoint_overdue import CheckpointOverdue

from .long_stories import LongStory, trained

RULE = CheckpointOverdue()
BAD = CheckpointBad(act=True)


def saving(every: int, times: int) -> LongStory:
    """A training that has saved each `every` steps."""
    told = trained(1)
    for number in range(times):
        told.steps(number * every + 1, (number + 1) * every).says(ev.Word.CHECKPOINT_SAVED, requested=False)
    return told


def test_twice_the_usual_steps_without_a_save_are_told() -> None:
    flag = saving(100, 4).steps(401, 621).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message.startswith("221 steps were made since the last checkpoint (usual: every 100)")


def test_a_step_less_is_not() -> None:
    assert saving(100, 4).steps(401, 620).check(RULE) is None


def test_a_save_interrupts_and_one_on_request_is_not_usual() -> None:
    told = saving(100, 4).steps(401, 600)
    assert told.says(ev.Word.CHECKPOINT_SAVED, requested=False).steps(601, 700).check(RULE) is None
    told = saving(100, 4).steps(401, 600).says(ev.Word.CHECKPOINT_SAVED, requested=True).steps(601, 650)
    assert told.check(RULE) is not None


def test_epochs_without_any_save_are_told_where_epochs_are_known() -> None:
    told = trained(1).says(ev.Word.PLAN, batches_per_epoch=100, epochs=10).steps(2, 221)
    flag = told.check(RULE)
    assert flag is not None
    assert "in this attempt and none was seen saved" in flag.message
    resumed = LongStory().says(ev.Word.PLAN, batches_per_epoch=100, epochs=10).steps(5001, 5200)
    assert resumed.check(RULE) is None


def test_a_new_daemon_that_reads_old_words_again_counts_from_the_steps_they_name() -> None:
    told = LongStory().says(ev.Word.PLAN, batches_per_epoch=100, epochs=10).steps(701, 950)
    for epoch in range(7):
        told.says(ev.Word.CHECKPOINT_SAVED, requested=False, step=(epoch + 1) * 100)
    flag = told.check(RULE)
    assert flag is not None
    assert flag.message.startswith("250 steps were made since the last checkpoint (usual: every 100)")


def test_where_nobody_tells_hours_count() -> None:
    flag = trained(2).silence(14400).check(RULE)
    assert flag is not None
    assert flag.message == "no checkpoint was seen for 4.0 h: a crash now costs all of it"
    assert trained(2).silence(14000).check(RULE) is None
    told = trained(2).silence(14000).seen("a.pt", None).silence(3600)
    assert told.check(RULE) is None


def test_before_the_first_step_nothing_is_overdue() -> None:
    assert LongStory().silence(100_000).check(RULE) is None


def test_one_bad_checkpoint_is_told() -> None:
    flag = trained().seen("last.pt", Verdict.REJECTED, "holds NaN", step=100).check(BAD)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "last.pt")
    assert flag.message == "last.pt: holds NaN, saved at step 100"


def test_two_in_a_row_that_hold_nan_act_and_go_back_before_the_first() -> None:
    told = trained().seen("last.pt", Verdict.PROVEN).silence(9).seen("last.pt", Verdict.REJECTED, "holds NaN", step=100)
    first = told.now
    flag = told.silence(10).seen("last.pt", Verdict.REJECTED, "holds NaN", step=200).silence(5).check(BAD)
    assert flag is not None
    assert (flag.severity, flag.since_step) == (Severity.CRITICAL, 100)
    assert flag.since is not None
    assert abs(flag.since.seconds_since(first)) < 1e-3
    assert flag.message == "last.pt: holds NaN; 2 in a row, saved at step 200"
    by_default = told.check(CheckpointBad())
    assert by_default is not None
    assert by_default.severity is Severity.WARNING


def test_two_that_were_cut_are_told_only() -> None:
    told = trained().seen("a.pt", Verdict.REJECTED, "is cut").silence(1).seen("a.pt", Verdict.REJECTED, "is cut")
    flag = told.check(BAD)
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_proven_one_interrupts_and_an_unproven_one_says_nothing() -> None:
    told = trained().seen("a.pt", Verdict.REJECTED, "holds NaN").silence(1).seen("a.pt", Verdict.PROVEN)
    assert told.check(BAD) is None
    assert trained().seen("a.pt", None).check(BAD) is None
    assert trained().check(BAD) is None
