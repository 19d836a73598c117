"""The last resorts: named in full, taken only where allowed, and never twice in vain."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.job import Limits, Phase
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.last_resorts import Resort

from .stories import JOB, Life, life

RESET = Resort(kind="reset_gpu", command=("amd-smi", "reset", "--gpureset", "--gpu", "0000:0a:00.0"))
REBOOT = Resort(kind="reboot", command=("systemctl", "reboot"))
OFF = RemedyContext(resorts=(RESET, REBOOT))
ON = RemedyContext(resorts=(replace(RESET, on=True), replace(REBOOT, on=True)))
PATIENT = Limits(budget=Budget(backoff_s=(0.0,), jitter_fraction=0.0))


def lost(told: Life) -> Life:
    """The card falls off the bus and the training ends of it."""
    return told.kernel(FaultClass.GPU_LOST).silence(1).exits(signal=9)


def training(context: RemedyContext) -> Life:
    told = life(limits=PATIENT)
    told.context = context
    return told.training()


def resorted(told: Life, *, done: bool, said: str = "") -> Life:
    kind = told.job.resorts[-1].kind
    told.put(ev.ResortEnded(at=told.now, job=JOB, attempt=told.attempt, kind=kind, done=done, output=said))
    return told


def unkillable(context: RemedyContext) -> Life:
    told = life(limits=PATIENT)
    told.context = context
    return told.training().silence(60).silence(40).silence(10)


def test_what_is_off_is_named_with_its_exact_command_and_not_run() -> None:
    told = lost(lost(training(OFF)).looks().training())
    assert told.phase() is Phase.FAILED
    assert (
        "what would help: `amd-smi reset --gpureset --gpu 0000:0a:00.0` (last_resorts.reset_gpu is off), "
        "else `systemctl reboot` (last_resorts.reboot is off)"
    ) in (told.job.reason or "")


def test_a_lost_card_is_reset_before_the_next_attempt_and_then_rebooted_but_each_only_once() -> None:
    told = lost(training(ON))
    assert told.told() == ["Launch", "Stop", "Retry", "LastResort"]
    assert told.job.resorts[0].command == RESET.command
    assert told.looks().told() == []
    resorted(told, done=True)
    assert told.told() == ["Launch"]
    lost(told.training())
    assert [type(decision).__name__ for decision in told.decisions[-2:]] == ["Retry", "LastResort"]
    assert told.job.resorts[-1].kind == "reboot"
    resorted(told, done=True).looks().told()
    assert told.silence(100).told() == []
    assert told.silence(20).told() == ["Launch"]
    lost(told.training())
    assert told.phase() is Phase.FAILED
    assert "`systemctl reboot` (already done)" in (told.job.reason or "")


def test_progress_allows_a_reset_once_more() -> None:
    told = resorted(lost(training(ON)).looks(), done=True)
    told.training(400)
    assert told.job.resorts == ()
    assert [resort.kind for resort in lost(told).job.resorts] == ["reset_gpu"]


def test_a_reset_that_failed_is_kept_with_what_it_said_and_does_not_hold_the_job_up() -> None:
    told = resorted(lost(training(ON)).looks(), done=False, said="status 1 Permission denied")
    assert told.told()[-1] == "Launch"
    assert (told.job.resorts[0].done, told.job.resorts[0].output) == (False, "status 1 Permission denied")


def test_a_reset_of_which_no_word_comes_does_not_hold_the_job_up_for_ever() -> None:
    told = lost(training(ON)).looks()
    told.told()
    assert told.silence(89).told() == []
    assert told.silence(1).told() == ["Launch"]


def test_a_process_that_sigkill_does_not_end_has_its_card_reset_and_then_the_machine_rebooted() -> None:
    told = unkillable(ON)
    assert told.told() == ["Launch", "Stop", "Kill", "Warn", "LastResort"]
    resorted(told, done=True)
    assert told.silence(29).told() == []
    told.silence(1)
    last = told.last
    assert isinstance(last, de.LastResort)
    assert last.command == REBOOT.command
    told.told()
    resorted(told, done=True)
    assert told.silence(86400).told() == []


def test_a_reset_that_ends_the_process_is_followed_by_an_ordinary_retry() -> None:
    told = resorted(unkillable(ON), done=True)
    told.told()
    assert told.exits(signal=9).looks().told() == ["Retry", "Launch"]


def test_a_reboot_waits_until_no_other_job_runs() -> None:
    refused = replace(REBOOT, on=True, refused="refused while day runs")
    told = unkillable(RemedyContext(resorts=(refused,)))
    assert told.told()[-1] == "Warn"
    assert "`systemctl reboot` (refused while day runs)" in (told.job.reason or "")
    assert told.silence(3600).told() == []
    told.context = RemedyContext(resorts=(replace(REBOOT, on=True),))
    assert told.silence(1).told() == ["LastResort"]


def test_nothing_is_reset_for_a_job_that_its_user_stops() -> None:
    told = life(limits=PATIENT).training()
    told.asks(ev.Ask.STOP)
    told.context = ON
    told.silence(60).silence(10).silence(3600)
    assert "LastResort" not in told.told()
