"""Decisions as stories: what happens to a job from its launch to its end."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.core.decide import decide
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import LAUNCH, UNKILLABLE, Job, Limits, Phase
from supervisor.core.judge import judge, worst
from supervisor.core.readings import KernelWait, Stage
from supervisor.core.remedies.budget import Budget
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.stall import Stall

from .stories import GPU, JOB, NAN, START, life

TWICE = Limits(budget=Budget(restarts=2, backoff_s=(0.0, 5.0)))
SAVE_GRACE_AND_SLACK_S = 20 + 30 + 10


# --- an ordinary life ---------------------------------------------------------------------------------------------


def test_a_job_is_launched_trains_and_finishes() -> None:
    told = life().training().exits(0)
    assert told.told() == ["Launch", "Finish"]
    assert told.phase() is Phase.FINISHED
    assert told.silence(9999).told() == []


def test_a_stall_is_stopped_retried_and_resumed_from_the_newest_proven_checkpoint() -> None:
    told = life().training(100).saves("epoch0.pt", 60).saves("epoch1.pt", 90).silence(60)
    assert told.told() == ["Launch", "Stop"]
    assert told.phase() is Phase.STOPPING
    assert told.job.incident is not None
    assert told.silence(1).exits(signal=15).told() == ["Retry"]
    assert told.phase() is Phase.BACKOFF
    assert told.silence(1).told() == []
    launch = told.looks().last
    assert isinstance(launch, de.Launch)
    assert (launch.attempt, launch.resume_from) == (2, told.saved[1])
    assert told.job.incident.outcome == "resumed"
    told.started().steps(91, 101)
    assert told.phase() is Phase.RUNNING
    assert told.job.incident.closed
    assert told.job.incident.lost_steps == 10
    assert told.job.ledger.in_a_row == 0


def test_a_stop_names_its_flag_and_saves_only_a_sound_state() -> None:
    stop = life().training().silence(60).last
    assert isinstance(stop, de.Stop)
    assert stop.flag is not None
    assert (stop.flag.rule, stop.save) == ("stall", False)
    stop = life().training().gpu(10, used=5_900_000_000, busy=99.0).last
    assert isinstance(stop, de.Stop)
    assert stop.flag is not None
    assert (stop.flag.rule, stop.save) == ("vram_high", True)


def test_a_warning_is_told_once_and_again_in_the_next_attempt() -> None:
    told = life().training().gpu(used=5_000_000_000)
    assert told.told() == ["Launch", "Warn"]
    assert told.silence(1).gpu(used=5_100_000_000).told() == []
    assert told.exits(1).told() == ["Retry"]
    assert told.looks().training().gpu(used=5_000_000_000).told() == ["Launch", "Warn"]


def test_a_rule_that_is_off_is_not_asked() -> None:
    told = life([Stall(enabled=False)]).training().silence(9999)
    assert told.told() == ["Launch"]


def test_a_rule_that_may_not_act_tells() -> None:
    told = life([Stall(act=False)]).training().silence(9999)
    assert told.told() == ["Launch", "Warn"]
    assert told.phase() is Phase.RUNNING


# --- ends -----------------------------------------------------------------------------------------------------------


def test_a_crash_is_retried() -> None:
    told = life().training().exits(signal=11)
    assert told.told() == ["Launch", "Retry"]
    assert told.job.incident is not None
    assert told.job.incident.flag.fault == "illegal_access"


def test_a_launch_that_failed_is_retried_and_is_no_finish() -> None:
    told = life().fails_to_launch()
    retry = told.last
    assert isinstance(retry, de.Retry)
    assert retry.flag is not None
    assert retry.flag.rule == LAUNCH
    assert "rocm-run@night.service not found" in retry.reason


def test_a_lost_host_is_resumed() -> None:
    told = life().training().saves("a.pt", 80).lost().looks()
    assert told.told() == ["Launch", "Retry", "Launch"]


def test_an_end_that_no_rule_may_act_on_is_given_up_and_told() -> None:
    for rules in ([Crash(act=False)], [Crash(enabled=False)]):
        told = life(rules).training().exits(1)
        assert told.phase() is Phase.FAILED
        assert told.job.reason == "its process ended with status 1, and no rule acts on this"
        assert told.told()[-1] == "GiveUp"


def test_a_crash_after_the_training_ended_is_told_and_finishes_the_job() -> None:
    told = life().training().says(ev.AgentEvent.TRAIN_END).stage(Stage.ENDED).exits(signal=11)
    assert told.told() == ["Launch", "Warn", "Finish"]
    assert told.job.reason == "the training had finished before its process was killed by SIGSEGV"


def test_torch_without_a_step_is_told_and_finishes_the_job() -> None:
    told = life().started().says(ev.AgentEvent.PATCHED, conv2d="unfold").exits(0)
    assert told.told() == ["Launch", "Warn", "Finish"]


def test_a_nan_that_comes_up_while_it_is_asked_to_end_spoils_what_is_saved_then() -> None:
    told = life().training(50).saves("clean.pt", 50).silence(1).asks(ev.Ask.RESTART)
    told.steps(51, 53, loss=NAN).saves("poisoned.pt", 53).exits(1)
    retry = told.last
    assert isinstance(retry, de.Retry)
    assert retry.flag is not None
    assert retry.flag.since_step == 51
    launch = told.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "clean.pt"


def test_what_a_nan_spoilt_is_spoilt_for_every_later_attempt() -> None:
    told = life().training(50).saves("clean.pt", 50).silence(1).steps(51, 53, loss=NAN).saves("poisoned.pt", 53)
    told.exits(signal=15).looks().started().steps(51, 52).silence(1).exits(signal=11).looks().silence(5)
    assert told.told() == ["Launch", "Warn", "Warn", "Stop", "Retry", "Launch", "Retry", "Launch"]
    start = told.present().resume_from
    assert start is not None
    assert start.path == "clean.pt"


# --- budget ---------------------------------------------------------------------------------------------------------


def test_the_budget_ends_retries_without_progress() -> None:
    told = life(limits=TWICE)
    for _ in range(2):
        told.started().exits(1).looks().silence(5)
    told.started().exits(1)
    assert told.told() == ["Launch", "Retry", "Launch", "Retry", "Launch", "GiveUp"]
    assert told.phase() is Phase.FAILED
    assert "2 restarts in a row without progress" in (told.job.reason or "")
    assert told.job.incident is not None
    assert told.job.incident.outcome == "gave_up"


def test_progress_in_between_clears_the_budget() -> None:
    told = life(limits=TWICE)
    for step in range(10, 100, 10):
        told.started().steps(step, step).exits(1).looks().silence(5)
    assert "GiveUp" not in told.told()


def test_the_second_restart_in_a_row_waits() -> None:
    told = life(limits=TWICE).started().exits(1).looks().started().exits(1).looks()
    assert told.told()[-1] == "Retry"
    assert told.silence(4).told() == []
    assert told.silence(1).told() == ["Launch"]


def test_a_search_that_takes_longer_than_the_wait_is_waited_for() -> None:
    told = life().training().exits(1).silence(600)
    assert told.told() == ["Launch", "Retry"]
    assert told.looks().told() == ["Launch"]


def test_where_no_checkpoint_is_proven_it_says_so_and_stops() -> None:
    told = life().training().saves("a.pt", 50, Verdict.REJECTED).saves("b.pt", 60, None).exits(1).looks()
    assert told.told() == ["Launch", "Retry", "GiveUp"]
    assert told.phase() is Phase.FAILED
    assert "a.pt: rejected" in (told.job.reason or "")
    assert "b.pt: not proven" in (told.job.reason or "")


# --- the user -------------------------------------------------------------------------------------------------------


def test_the_users_stop_saves_ends_and_rests() -> None:
    told = life().training().asks(ev.Ask.STOP)
    stop = told.last
    assert isinstance(stop, de.Stop)
    assert (stop.save, stop.flag) == (True, None)
    told.exits(signal=15)
    assert told.told() == ["Launch", "Stop", "Finish"]
    assert told.phase() is Phase.STOPPED
    assert told.job.incident is None
    assert told.silence(9999).told() == []


def test_the_users_stop_wins_over_a_crash_a_backoff_and_a_pending_start() -> None:
    told = life().training().silence(60).asks(ev.Ask.STOP).exits(signal=9)
    assert told.phase() is Phase.STOPPED
    told = life().training().exits(1).asks(ev.Ask.STOP)
    assert told.phase() is Phase.STOPPED
    job = replace(Job(name=JOB, since=START), desired_state=life().asks(ev.Ask.STOP).job.desired_state)
    assert isinstance(decide(job, (), START), de.Finish)


def test_start_after_stop_resumes() -> None:
    told = life().training().saves("a.pt", 90).asks(ev.Ask.STOP).exits(signal=15).silence(1000).asks(ev.Ask.START)
    assert told.phase() is Phase.BACKOFF
    launch = told.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == told.saved[0]


def test_start_after_a_stop_in_trouble_resumes_from_before_the_trouble() -> None:
    told = life([NonFiniteLoss(tolerated=0)]).training(50).saves("clean.pt", 50).steps(51, 51, loss=NAN)
    told.silence(1).saves("poisoned.pt", 51).asks(ev.Ask.STOP).exits(signal=15).asks(ev.Ask.START).looks()
    launch = told.last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "clean.pt"


def test_the_users_stop_saves_nothing_of_a_state_that_is_not_sound() -> None:
    told = life([NonFiniteLoss(tolerated=0)]).training(50)
    told.job = replace(told.job, desired_state=life().asks(ev.Ask.STOP).job.desired_state)
    told.steps(51, 51, loss=NAN)
    stop = told.last
    assert isinstance(stop, de.Stop)
    assert (stop.reason, stop.save) == ("stopped by its user", False)


def test_start_fresh_begins_anew_and_never_falls_back_on_the_old_training() -> None:
    told = life().training().saves("old.pt", 900).asks(ev.Ask.STOP).exits(signal=15).silence(10)
    told.asks(ev.Ask.START, fresh=True)
    launch = told.last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None
    launch = told.training().exits(1).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None
    launch = told.training(50).saves("new.pt", 50).exits(1).looks().silence(5).last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is not None
    assert launch.resume_from.path == "new.pt"


def test_start_of_a_finished_job_begins_anew() -> None:
    told = life().training().saves("old.pt", 100).exits(0).silence(10).asks(ev.Ask.START)
    assert told.told() == ["Launch", "Finish", "Launch"]
    assert told.training().exits(1).looks().told() == ["Retry", "Launch"]
    launch = life().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None


def test_start_of_a_failed_job_resumes_with_a_cleared_budget() -> None:
    told = life(limits=Limits(budget=Budget(restarts=0))).training().saves("a.pt", 90).exits(1)
    assert told.phase() is Phase.FAILED
    launch = told.asks(ev.Ask.START).looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == told.saved[0]
    assert told.job.ledger.in_a_row == 0


def test_start_of_a_waiting_job_ends_its_wait() -> None:
    told = life(limits=TWICE).started().exits(1).looks().started().exits(1).looks()
    assert told.phase() is Phase.BACKOFF
    assert told.asks(ev.Ask.START).told()[-1] == "Launch"
    assert told.job.ledger.in_a_row == 2


def test_start_of_a_running_job_changes_nothing() -> None:
    told = life().training()
    before = told.job
    assert told.asks(ev.Ask.START).job == before


def test_start_while_it_is_being_stopped_brings_it_back() -> None:
    told = life().training().saves("a.pt", 90).asks(ev.Ask.STOP).asks(ev.Ask.START).exits(signal=15)
    assert told.told() == ["Launch", "Stop", "Retry"]
    assert told.looks().told() == ["Launch"]


def test_restart_saves_resumes_and_spends_nothing() -> None:
    told = life().training().asks(ev.Ask.RESTART)
    stop = told.last
    assert isinstance(stop, de.Stop)
    assert stop.save
    told.saves("asked.pt", 100).exits(signal=15)
    retry = told.last
    assert isinstance(retry, de.Retry)
    assert not retry.counts
    launch = told.looks().last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == told.saved[0]
    assert told.job.ledger.total == 0
    assert not told.job.restart_asked
    assert told.silence(1).training().told() == ["Launch", "Stop", "Retry", "Launch"]


def test_restart_fresh_begins_anew() -> None:
    told = life().training().saves("a.pt", 90).asks(ev.Ask.RESTART, fresh=True).exits(signal=15)
    launch = told.last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None
    assert not told.job.fresh_asked


def test_restart_of_a_job_that_rests_starts_it() -> None:
    told = life().training().saves("a.pt", 90).asks(ev.Ask.STOP).exits(signal=15).asks(ev.Ask.RESTART).looks()
    assert told.told()[-1] == "Launch"
    assert not told.job.restart_asked


# --- the daemon's own end -------------------------------------------------------------------------------------------


def test_a_shutdown_ends_the_training_and_the_next_start_resumes_it() -> None:
    told = life().training().asks(ev.Ask.SHUT_DOWN)
    assert told.told() == ["Launch", "Stop"]
    told.saves("shutdown.pt", 100).exits(signal=15)
    assert told.told() == ["Retry"]
    assert told.looks().silence(9999).told() == []
    launch = told.asks(ev.Ask.START).last
    assert isinstance(launch, de.Launch)
    assert launch.resume_from == told.saved[0]
    assert told.job.ledger.total == 0


def test_a_machine_that_is_short_of_something_spends_no_restart_of_the_job() -> None:
    """The neighbour that holds every descriptor must not use up this job's budget; the wait grows all the same."""
    told, waits_s = life(), []
    for _ in range(40):
        before, ledger = told.now, told.job.ledger
        told.fails_to_launch("[Errno 24] Too many open files", "file descriptors for the daemon")
        retry = told.last
        assert isinstance(retry, de.Retry)
        assert "this machine has no file descriptors for the daemon left" in retry.reason
        waits_s.append(retry.not_before.seconds_since(before))
        assert (told.job.ledger.in_a_row, told.job.ledger.total) == (ledger.in_a_row, ledger.total)
        told.silence(max(1.0, waits_s[-1])).looks()
        assert told.phase() is Phase.STARTING
    assert waits_s[-1] > 500.0
    told.fails_to_launch()
    assert told.job.ledger.in_a_row == 1


def test_nothing_is_launched_where_launching_is_not_allowed() -> None:
    told = life().training().exits(1)
    told.launch_allowed = False
    told.looks().silence(100)
    assert told.told() == ["Launch", "Retry"]
    told.launch_allowed = True
    assert told.silence(1).told() == ["Launch"]


def test_what_forbids_a_launch_forbids_no_stop() -> None:
    told = life().training()
    told.launch_allowed = False
    assert told.silence(60).told() == ["Launch", "Stop"]


# --- processes that will not go ---------------------------------------------------------------------------------------


def test_a_stop_that_runs_out_of_time_becomes_a_kill() -> None:
    told = life().training().asks(ev.Ask.STOP).silence(SAVE_GRACE_AND_SLACK_S - 1)
    assert told.told() == ["Launch", "Stop"]
    assert told.silence(1).told() == ["Kill"]
    assert told.phase() is Phase.KILLING
    assert told.exits(signal=9).told() == ["Finish"]


def test_a_stop_without_saving_has_less_time() -> None:
    told = life().training().silence(60).silence(39)
    assert told.told() == ["Launch", "Stop"]
    assert told.silence(1).told() == ["Kill"]


def test_the_time_to_end_runs_from_the_first_signal() -> None:
    told = life().training().asks(ev.Ask.STOP).silence(5).signalled().silence(30).signalled().silence(19)
    assert told.told() == ["Launch", "Stop"]
    assert told.silence(1).told() == ["Kill"]


def test_a_process_that_sigkill_does_not_end_is_told_once_and_nothing_is_launched() -> None:
    told = life().training().silence(60).silence(40).silence(9)
    assert told.told() == ["Launch", "Stop", "Kill"]
    told.silence(1)
    warn = told.last
    assert isinstance(warn, de.Warn)
    assert (warn.flag.rule, warn.flag.severity) == (UNKILLABLE, Severity.CRITICAL)
    assert told.job.unkillable
    told.told()
    told.asks(ev.Ask.RESTART).silence(86400).kernel(FaultClass.GPU_RESET_FAILED)
    assert told.told() == []
    assert told.exits(signal=9).told() == ["Retry"]
    assert not told.job.unkillable


def test_who_waits_where_in_the_kernel_is_named_once_sigkill_did_not_help() -> None:
    driver = KernelWait(
        pid=4242, name="python", thread=4250, channel="kfd_wait_on_events", stack=("schedule", "kfd_ioctl")
    )
    told = life().training().tree(waits=(replace(driver, channel="io_schedule"),)).silence(60).silence(40)
    assert told.job.attempt is not None
    assert told.job.attempt.waits == ()
    warn = told.tree(2, waits=(driver,)).silence(10).last
    assert isinstance(warn, de.Warn)
    assert (
        "process 4242 (python), thread 4250, waits in kfd_wait_on_events (called by schedule, kfd_ioctl)"
    ) in warn.flag.message
    assert told.job.reason == warn.flag.message


def test_flags_that_come_up_while_stopping_change_no_order() -> None:
    told = life().training().silence(60).kernel(FaultClass.GPU_HANG).gpu(10, used=6_000_000_000)
    assert told.told() == ["Launch", "Stop"]


def test_a_fault_seen_while_stopping_still_spoils_what_was_saved_after_it() -> None:
    told = life().training().saves("before.pt", 90).gpu(10, used=5_900_000_000)
    assert told.told() == ["Launch", "Warn", "Stop"]
    told.silence(1).kernel(FaultClass.GPU_HANG).silence(1).saves("after.pt", 100).exits(signal=15)
    launch = told.looks().last
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
    told = life().training(10).steps(11, 15, loss=NAN).gpu(60, busy=0.0, used=5_000_000_000)
    names = [item.rule for item in judge(told.rules, told.history)]
    assert names == ["non_finite_loss", "stall", "gpu_idle", "vram_high"]


def test_the_worst_of_several_takes_over_the_earliest_trouble() -> None:
    item = worst(
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
    assert worst([flag("a", Severity.WARNING)]) is None


def test_asked_again_after_a_crash_of_the_daemon_it_answers_the_same() -> None:
    told = life().training().kernel(FaultClass.PAGE_FAULT, fatal=False, gpu=GPU)
    told.rules = ()
    told.silence(60)
    flags = judge([Stall()], told.history)
    assert decide(told.job, flags, told.now) == decide(told.job, flags, told.now)
