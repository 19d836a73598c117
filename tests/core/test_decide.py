"""Decisions as stories: what happens to a job from its launch to its end."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.core.decide import decide, describe_waits
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import LAUNCH, UNKILLABLE, Job, Limits, Phase
from supervisor.core.judge import judge, merge_critical
from supervisor.core.readings import KernelWait, Stage
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.stall import Stall

from .stories import GPU, JOB, NAN, START, life

TWICE = Limits(budget=Budget(restarts=2, backoff_s=(0.0, 5.0)))
SAVE_GRACE_AND_SLACK_S = 20 + 30 + 10


# --- an ordinary life ---------------------------------------------------------------------------------------------


def test_a_job_is_launched_trains_and_finishes() -> None:
    timeline = life().training().exits(0)
    assert timeline.read_decisions() == ["Launch", "Finish"]
    assert timeline.phase() is Phase.FINISHED
    assert timeline.silence(9999).read_decisions() == []


def test_a_program_that_put_itself_in_the_background_is_over_with_what_to_do_about_it() -> None:
    finish = life().training().exits(0, in_background=1).last
    assert isinstance(finish, de.Finish)
    assert finish.reason == (
        "the training exited with status 0, and the program that it left in the background was ended; if that is the "
        "training, have the command stay in the foreground"
    )


def test_the_first_launch_notes_what_memory_was_in_use_before_it() -> None:
    used = (GpuMemory(gpu=GPU, used_bytes=7),)
    launch = decide(Job(name=JOB, since=START), [], START, context=RemedyContext(memory=used))
    assert isinstance(launch, de.Launch)
    assert (launch.memory, launch.attempt, launch.resume_from) == (used, 1, None)


def test_a_stall_is_stopped_retried_and_resumed_from_the_newest_proven_checkpoint() -> None:
    timeline = life().training(100).saves("epoch0.pt", 60).saves("epoch1.pt", 90).silence(60)
    assert timeline.read_decisions() == ["Launch", "Stop"]
    assert timeline.phase() is Phase.STOPPING
    assert timeline.job.incident is not None
    assert timeline.silence(1).exits(signal=15).read_decisions() == ["Retry"]
    assert timeline.phase() is Phase.BACKOFF
    assert timeline.silence(1).read_decisions() == []
    launch = timeline.looks().last
    assert isinstance(launch, de.Launch)
    assert (launch.attempt, launch.resume_from) == (2, timeline.saved[1])
    assert timeline.job.incident.outcome == "resumed"
    timeline.started().steps(91, 101)
    assert timeline.phase() is Phase.RUNNING
    assert timeline.job.incident.closed
    assert timeline.job.incident.lost_steps == 10
    assert timeline.job.ledger.in_a_row == 0


def test_a_stop_names_its_flag_and_saves_only_a_sound_state() -> None:
    stop = life().training().silence(60).last
    assert isinstance(stop, de.Stop)
    assert stop.flag is not None
    assert (stop.flag.rule, stop.save) == ("stall", False)
    stop = life().training().gpu(10, used=5_900_000_000, busy=99.0).last
    assert isinstance(stop, de.Stop)
    assert stop.flag is not None
    assert (stop.flag.rule, stop.save) == ("vram_high", True)


def test_a_warning_is_reported_once_and_again_in_the_next_attempt() -> None:
    timeline = life().training().gpu(used=5_000_000_000)
    assert timeline.read_decisions() == ["Launch", "Warn"]
    assert timeline.silence(1).gpu(used=5_100_000_000).read_decisions() == []
    assert timeline.exits(1).read_decisions() == ["Retry"]
    assert timeline.looks().training().gpu(used=5_000_000_000).read_decisions() == ["Launch", "Warn"]


def test_a_rule_that_is_off_is_not_asked() -> None:
    timeline = life([Stall(enabled=False)]).training().silence(9999)
    assert timeline.read_decisions() == ["Launch"]


def test_a_rule_that_may_not_act_reports() -> None:
    timeline = life([Stall(act=False)]).training().silence(9999)
    assert timeline.read_decisions() == ["Launch", "Warn"]
    assert timeline.phase() is Phase.RUNNING


# --- ends -----------------------------------------------------------------------------------------------------------


def test_a_crash_is_retried() -> None:
    timeline = life().training().exits(signal=11)
    assert timeline.read_decisions() == ["Launch", "Retry"]
    assert timeline.job.incident is not None
    assert timeline.job.incident.flag.fault == "illegal_access"


def test_a_launch_that_failed_is_retried_and_is_no_finish() -> None:
    timeline = life().fails_to_launch()
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert retry.flag is not None
    assert retry.flag.rule == LAUNCH
    assert "rocm-run@night.service not found" in retry.reason


def test_a_lost_host_is_resumed() -> None:
    timeline = life().training().saves("a.pt", 80).lost().looks()
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch"]


def test_an_end_that_no_rule_may_act_on_is_given_up_and_reported() -> None:
    for rules in ([Crash(act=False)], [Crash(enabled=False)]):
        timeline = life(rules).training().exits(1)
        assert timeline.phase() is Phase.FAILED
        assert timeline.job.reason == "its process ended with status 1, and no rule acts on this"
        given_up = timeline.last
        assert timeline.read_decisions()[-1] == "GiveUp"
        assert isinstance(given_up, de.GiveUp)
        assert (given_up.job, given_up.attempt) == (JOB, 1)


def test_a_crash_after_the_training_ended_is_reported_and_finishes_the_job() -> None:
    timeline = life().training().says(ev.AgentEvent.TRAIN_END).stage(Stage.ENDED).exits(signal=11)
    assert timeline.read_decisions() == ["Launch", "Warn", "Finish"]
    assert timeline.job.reason == "the training had finished before its process was killed by SIGSEGV"


def test_a_wrapper_that_fails_after_its_training_ended_is_reported_and_finishes_the_job() -> None:
    """As `gdb -batch -ex run --args python train.py`, a shell script whose last line fails, or `make`."""
    timeline = life().started(4242).training(40).says(ev.AgentEvent.TRAINS, of=77)
    timeline.says(ev.AgentEvent.TRAINS, of=77, ended=True, status=0).exits(1)
    assert timeline.read_decisions() == ["Launch", "Warn", "Finish"]
    assert timeline.job.reason == "the training had finished with status 0 before its wrapper ended with status 1"


def test_a_finished_training_whose_last_words_a_disk_refused_is_not_trained_again() -> None:
    """Neither its exit record nor its line in agent.jsonl was written: its recorder has the last stage."""
    timeline = life().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(100)
    timeline.stage(Stage.ENDED, stages_complete=True).lost("the shim ended without an exit record")
    assert timeline.job.phase is Phase.FINISHED
    decision = timeline.decisions[-1]
    assert isinstance(decision, de.Finish)
    assert decision.reason.startswith("the training had finished before its process")


@pytest.mark.parametrize(("steps", "complete"), [(99, True), (100, False)])
def test_what_may_not_have_finished_is_trained_again(steps: int, complete: bool) -> None:
    """A loop that ended may be one of several where not every stage is reported, and a save may have cut it short."""
    timeline = life().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=50).training(steps)
    timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, step=steps, requested=True)
    timeline.stage(Stage.ENDED, stages_complete=complete).lost("the shim ended without an exit record")
    assert timeline.job.phase is Phase.BACKOFF


def test_torch_without_a_step_is_reported_and_finishes_the_job() -> None:
    timeline = life().started().says(ev.AgentEvent.PATCHED, conv2d="unfold").exits(0)
    assert timeline.read_decisions() == ["Launch", "Warn", "Finish"]


def test_a_nan_that_comes_up_while_it_is_asked_to_end_spoils_what_is_saved_then() -> None:
    timeline = life().training(50).saves("clean.pt", 50).silence(1).asks(ev.Ask.RESTART)
    timeline.steps(51, 53, loss=NAN).saves("poisoned.pt", 53).exits(1)
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert retry.flag is not None
    assert retry.flag.since_step == 51
    launch = timeline.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "clean.pt"


def test_what_a_nan_spoilt_is_spoilt_for_every_later_attempt() -> None:
    timeline = life().training(50).saves("clean.pt", 50).silence(1).steps(51, 53, loss=NAN).saves("poisoned.pt", 53)
    timeline.exits(signal=15).looks().started().steps(51, 52).silence(1).exits(signal=11).looks().silence(5)
    assert timeline.read_decisions() == ["Launch", "Warn", "Warn", "Stop", "Retry", "Launch", "Retry", "Launch"]
    start = timeline.present().resume_from
    assert start is not None
    assert start.path == "clean.pt"


# --- budget ---------------------------------------------------------------------------------------------------------


def test_the_budget_ends_retries_without_progress() -> None:
    timeline = life(limits=TWICE)
    for _ in range(2):
        timeline.started().exits(1).looks().silence(5)
    timeline.started().exits(1)
    assert timeline.read_decisions() == ["Launch", "Retry", "Launch", "Retry", "Launch", "GiveUp"]
    assert timeline.phase() is Phase.FAILED
    assert "2 restarts in a row without progress" in (timeline.job.reason or "")
    assert timeline.job.incident is not None
    assert timeline.job.incident.outcome == "gave_up"


def test_progress_in_between_clears_the_budget() -> None:
    timeline = life(limits=TWICE)
    for step in range(10, 100, 10):
        timeline.started().steps(step, step).exits(1).looks().silence(5)
    assert "GiveUp" not in timeline.read_decisions()


def test_the_second_restart_in_a_row_waits() -> None:
    timeline = life(limits=TWICE).started().exits(1).looks().started().exits(1).looks()
    assert timeline.read_decisions()[-1] == "Retry"
    assert timeline.silence(4).read_decisions() == []
    assert timeline.silence(1).read_decisions() == ["Launch"]


def test_a_search_that_takes_longer_than_the_wait_is_waited_for() -> None:
    timeline = life().training().exits(1).silence(600)
    assert timeline.read_decisions() == ["Launch", "Retry"]
    assert timeline.looks().read_decisions() == ["Launch"]


def test_where_no_checkpoint_is_proven_it_says_so_and_stops() -> None:
    timeline = life().training().saves("a.pt", 50, Verdict.REJECTED).saves("b.pt", 60, None).exits(1).looks()
    assert timeline.read_decisions() == ["Launch", "Retry", "GiveUp"]
    assert timeline.phase() is Phase.FAILED
    assert "a.pt: rejected" in (timeline.job.reason or "")
    assert "b.pt: not proven" in (timeline.job.reason or "")


# --- the user -------------------------------------------------------------------------------------------------------


def test_the_users_stop_saves_ends_and_rests() -> None:
    timeline = life().training().asks(ev.Ask.STOP)
    stop = timeline.last
    assert isinstance(stop, de.Stop)
    assert (stop.save, stop.flag) == (True, None)
    timeline.exits(signal=15)
    assert timeline.read_decisions() == ["Launch", "Stop", "Finish"]
    assert timeline.phase() is Phase.STOPPED
    assert timeline.job.incident is None
    assert timeline.silence(9999).read_decisions() == []


def test_the_users_stop_wins_over_a_crash_a_backoff_and_a_pending_start() -> None:
    timeline = life().training().silence(60).asks(ev.Ask.STOP).exits(signal=9)
    assert timeline.phase() is Phase.STOPPED
    timeline = life().training().exits(1).asks(ev.Ask.STOP)
    assert timeline.phase() is Phase.STOPPED
    job = replace(Job(name=JOB, since=START), desired_state=life().asks(ev.Ask.STOP).job.desired_state)
    assert isinstance(decide(job, (), START), de.Finish)


def test_start_after_stop_resumes() -> None:
    timeline = life().training().saves("a.pt", 90).asks(ev.Ask.STOP).exits(signal=15).silence(1000).asks(ev.Ask.START)
    assert timeline.phase() is Phase.BACKOFF
    launch = timeline.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == timeline.saved[0]


def test_start_after_a_stop_in_trouble_resumes_from_before_the_trouble() -> None:
    timeline = life([NonFiniteLoss(tolerated=0)]).training(50).saves("clean.pt", 50).steps(51, 51, loss=NAN)
    timeline.silence(1).saves("poisoned.pt", 51).asks(ev.Ask.STOP).exits(signal=15).asks(ev.Ask.START).looks()
    launch = timeline.last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "clean.pt"


def test_the_users_stop_saves_nothing_of_a_state_that_is_not_sound() -> None:
    timeline = life([NonFiniteLoss(tolerated=0)]).training(50)
    timeline.job = replace(timeline.job, desired_state=life().asks(ev.Ask.STOP).job.desired_state)
    timeline.steps(51, 51, loss=NAN)
    stop = timeline.last
    assert isinstance(stop, de.Stop)
    assert (stop.reason, stop.save) == ("stopped by its user", False)


def test_start_fresh_begins_again_and_never_falls_back_on_the_old_training() -> None:
    timeline = life().training().saves("old.pt", 900).asks(ev.Ask.STOP).exits(signal=15).silence(10)
    timeline.asks(ev.Ask.START, fresh=True)
    launch = timeline.last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None
    launch = timeline.training().exits(1).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None
    launch = timeline.training(50).saves("new.pt", 50).exits(1).looks().silence(5).last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "new.pt"


def test_start_of_a_finished_job_begins_again() -> None:
    timeline = life().training().saves("old.pt", 100).exits(0).silence(10).asks(ev.Ask.START)
    assert timeline.read_decisions() == ["Launch", "Finish", "Launch"]
    assert timeline.training().exits(1).looks().read_decisions() == ["Retry", "Launch"]
    launch = life().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None


def test_start_of_a_failed_job_resumes_with_a_cleared_budget() -> None:
    timeline = life(limits=Limits(budget=Budget(restarts=0))).training().saves("a.pt", 90).exits(1)
    assert timeline.phase() is Phase.FAILED
    launch = timeline.asks(ev.Ask.START).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == timeline.saved[0]
    assert timeline.job.ledger.in_a_row == 0


def test_start_of_a_waiting_job_ends_its_wait() -> None:
    timeline = life(limits=TWICE).started().exits(1).looks().started().exits(1).looks()
    assert timeline.phase() is Phase.BACKOFF
    assert timeline.asks(ev.Ask.START).read_decisions()[-1] == "Launch"
    assert timeline.job.ledger.in_a_row == 2


def test_start_of_a_running_job_changes_nothing() -> None:
    timeline = life().training()
    before = timeline.job
    assert timeline.asks(ev.Ask.START).job == before


def test_start_while_it_is_being_stopped_brings_it_back() -> None:
    timeline = life().training().saves("a.pt", 90).asks(ev.Ask.STOP).asks(ev.Ask.START).exits(signal=15)
    assert timeline.read_decisions() == ["Launch", "Stop", "Retry"]
    assert timeline.looks().read_decisions() == ["Launch"]


def test_restart_saves_resumes_and_spends_nothing() -> None:
    timeline = life().training().asks(ev.Ask.RESTART)
    stop = timeline.last
    assert isinstance(stop, de.Stop)
    assert stop.save
    timeline.saves("asked.pt", 100).exits(signal=15)
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert not retry.counts
    launch = timeline.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == timeline.saved[0]
    assert timeline.job.ledger.total == 0
    assert not timeline.job.restart_asked
    assert timeline.silence(1).training().read_decisions() == ["Launch", "Stop", "Retry", "Launch"]


def test_a_stop_takes_back_an_order_to_begin_again() -> None:
    asked = life().training().asks(ev.Ask.RESTART, fresh=True).job
    stopped = life().training().asks(ev.Ask.RESTART, fresh=True).asks(ev.Ask.STOP).job
    assert (asked.fresh_asked, asked.restart_asked) == (True, True)
    assert (stopped.fresh_asked, stopped.restart_asked) == (False, False)


def test_restart_fresh_begins_again() -> None:
    timeline = life().training().saves("a.pt", 90).asks(ev.Ask.RESTART, fresh=True).exits(signal=15)
    launch = timeline.last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None
    assert not timeline.job.fresh_asked


def test_restart_of_a_job_that_rests_starts_it() -> None:
    timeline = life().training().saves("a.pt", 90).asks(ev.Ask.STOP).exits(signal=15).asks(ev.Ask.RESTART).looks()
    assert timeline.read_decisions()[-1] == "Launch"
    assert not timeline.job.restart_asked


# --- the daemon's own end -------------------------------------------------------------------------------------------


def test_a_shutdown_ends_the_training_and_the_next_start_resumes_it() -> None:
    timeline = life().training().asks(ev.Ask.SHUT_DOWN)
    assert timeline.read_decisions() == ["Launch", "Stop"]
    timeline.saves("shutdown.pt", 100).exits(signal=15)
    assert timeline.read_decisions() == ["Retry"]
    assert timeline.looks().silence(9999).read_decisions() == []
    launch = timeline.asks(ev.Ask.START).last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == timeline.saved[0]
    assert timeline.job.ledger.total == 0


def test_a_machine_that_is_short_of_something_spends_no_restart_of_the_job() -> None:
    """The neighbour that holds every descriptor uses up neither this job's budget nor the waits of its own failures."""
    timeline, waits_s = life(), []
    for _ in range(40):
        before, ledger = timeline.now, timeline.job.ledger
        timeline.fails_to_launch("[Errno 24] Too many open files", "file descriptors for the daemon")
        retry = timeline.last
        assert isinstance(retry, de.Retry)
        assert "this machine lacks file descriptors for the daemon" in retry.reason
        waits_s.append(retry.not_before.seconds_since(before))
        assert (timeline.job.ledger.in_a_row, timeline.job.ledger.total) == (ledger.in_a_row, ledger.total)
        timeline.silence(max(1.0, waits_s[-1])).looks()
        assert timeline.phase() is Phase.STARTING
    assert [math.ceil(wait_s) for wait_s in waits_s[:5]] == [0, 1, 5, 15, 30]
    assert 27.0 <= min(waits_s[5:]) <= max(waits_s) <= 30.0, (
        "half a minute after the machine has it again at the latest"
    )
    before = timeline.now
    retry = timeline.fails_to_launch().last
    assert isinstance(retry, de.Retry)
    assert retry.flag is not None
    assert retry.flag.at == timeline.now
    assert (timeline.job.ledger.in_a_row, retry.not_before.seconds_since(before)) == (1, 0.0)


def test_a_failed_restart_begins_the_waits_for_the_machine_from_their_first() -> None:
    timeline = life()
    for error, shortage in (("no space", "disk space"), ("no space", "disk space"), ("no unit", None)):
        timeline.fails_to_launch(error, shortage).silence(60).looks()
    before = timeline.now
    retry = timeline.fails_to_launch("no space", "disk space").last
    assert isinstance(retry, de.Retry)
    assert retry.not_before.seconds_since(before) == 0.0


def test_nothing_is_launched_where_launching_is_not_allowed() -> None:
    timeline = life().training().exits(1)
    timeline.launch_allowed = False
    timeline.looks().silence(100)
    assert timeline.read_decisions() == ["Launch", "Retry"]
    timeline.launch_allowed = True
    assert timeline.silence(1).read_decisions() == ["Launch"]


def test_what_forbids_a_launch_forbids_no_stop() -> None:
    timeline = life().training()
    timeline.launch_allowed = False
    assert timeline.silence(60).read_decisions() == ["Launch", "Stop"]


# --- processes that will not go ---------------------------------------------------------------------------------------


def test_a_stop_that_runs_out_of_time_becomes_a_kill() -> None:
    timeline = life().training().asks(ev.Ask.STOP).silence(SAVE_GRACE_AND_SLACK_S - 1)
    assert timeline.read_decisions() == ["Launch", "Stop"]
    assert timeline.silence(1).read_decisions() == ["Kill"]
    assert timeline.phase() is Phase.KILLING
    assert timeline.exits(signal=9).read_decisions() == ["Finish"]


def test_a_stop_without_saving_has_less_time() -> None:
    timeline = life().training().silence(60).silence(39)
    assert timeline.read_decisions() == ["Launch", "Stop"]
    assert timeline.silence(1).read_decisions() == ["Kill"]


def test_the_time_to_end_runs_from_the_first_signal() -> None:
    timeline = life().training().asks(ev.Ask.STOP).silence(5).signalled().silence(30).signalled().silence(19)
    assert timeline.read_decisions() == ["Launch", "Stop"]
    assert timeline.silence(1).read_decisions() == ["Kill"]


def test_a_process_that_sigkill_does_not_end_is_reported_once_and_nothing_is_launched() -> None:
    timeline = life().training().silence(60).silence(40).silence(9)
    assert timeline.read_decisions() == ["Launch", "Stop", "Kill"]
    timeline.silence(1)
    warn = timeline.last
    assert isinstance(warn, de.Warn)
    assert (warn.flag.rule, warn.flag.severity) == (UNKILLABLE, Severity.CRITICAL)
    assert timeline.job.unkillable
    timeline.read_decisions()
    timeline.asks(ev.Ask.RESTART).silence(86400).kernel(FaultClass.GPU_RESET_FAILED)
    assert timeline.read_decisions() == []
    assert timeline.exits(signal=9).read_decisions() == ["Retry"]
    assert not timeline.job.unkillable


def test_who_waits_where_in_the_kernel_is_named_once_sigkill_did_not_help() -> None:
    driver = KernelWait(
        pid=4242, name="python", thread=4250, channel="kfd_wait_on_events", stack=("schedule", "kfd_ioctl")
    )
    timeline = life().training().tree(waits=(replace(driver, channel="io_schedule"),)).silence(60).silence(40)
    assert timeline.job.attempt is not None
    assert timeline.job.attempt.waits == ()
    warn = timeline.tree(2, waits=(driver,)).silence(10).last
    assert isinstance(warn, de.Warn)
    assert (
        "process 4242 (python), thread 4250, waits in kfd_wait_on_events (called by schedule, kfd_ioctl)"
    ) in warn.flag.message
    assert timeline.job.reason == warn.flag.message


def test_flags_that_come_up_while_stopping_change_no_order() -> None:
    timeline = life().training().silence(60).kernel(FaultClass.GPU_HANG).gpu(10, used=6_000_000_000)
    assert timeline.read_decisions() == ["Launch", "Stop"]


def test_a_fault_seen_while_stopping_still_spoils_what_was_saved_after_it() -> None:
    timeline = life().training().saves("before.pt", 90).gpu(10, used=5_900_000_000)
    assert timeline.read_decisions() == ["Launch", "Warn", "Stop"]
    timeline.silence(1).kernel(FaultClass.GPU_HANG).silence(1).saves("after.pt", 100).exits(signal=15)
    launch = timeline.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "before.pt"


# --- the parts ------------------------------------------------------------------------------------------------------


def flag(rule: str, severity: Severity, since_s: float | None = None, *, can_save: bool = False) -> RedFlag:
    since = None if since_s is None else START.plus(since_s)
    step = None if since_s is None else int(since_s)
    return RedFlag(
        rule=rule, severity=severity, at=START, message=rule, since=since, since_step=step, can_save=can_save
    )


def test_the_worst_flags_come_first_and_equals_in_the_order_of_the_rules() -> None:
    timeline = life().training(10).steps(11, 15, loss=NAN).gpu(60, busy=0.0, used=5_000_000_000)
    names = [item.rule for item in judge(timeline.rules, timeline.history)]
    assert names == ["non_finite_loss", "stall", "gpu_idle", "vram_high"]


def test_the_worst_of_several_takes_over_the_earliest_trouble() -> None:
    item = merge_critical(
        [
            flag("a", Severity.WARNING, 1.0),
            flag("b", Severity.CRITICAL, can_save=True),
            None,
            flag("c", Severity.CRITICAL, 7.0, can_save=True),
            flag("d", Severity.CRITICAL, 5.0),
        ]
    )
    assert item is not None
    assert (item.rule, item.since, item.since_step, item.can_save) == ("b", START.plus(5.0), 5, False)
    assert merge_critical([flag("a", Severity.WARNING)]) is None


def test_asked_again_after_a_crash_of_the_daemon_it_answers_the_same() -> None:
    timeline = life().training().kernel(FaultClass.PAGE_FAULT, fatal=False, gpu=GPU)
    timeline.rules = ()
    timeline.silence(60)
    flags = judge([Stall()], timeline.history)
    assert decide(timeline.job, flags, timeline.now) == decide(timeline.job, flags, timeline.now)


@pytest.mark.parametrize(("threads", "more"), [(3, ""), (5, " and 2 more")])
def test_three_threads_that_wait_in_the_kernel_are_named_and_the_others_counted(threads: int, more: str) -> None:
    waits = [KernelWait(pid=1, name="python", thread=thread, channel="f") for thread in range(threads)]
    words = "; ".join(wait.words for wait in waits[:3])
    assert describe_waits(waits) == f"{words}{more}, which only what it waits for, or a reboot, ends"
