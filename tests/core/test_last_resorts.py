"""The last resorts: named in full, taken only where allowed, and never twice in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.decide import decide
from supervisor.core.findings import FaultClass
from supervisor.core.job import Limits, Phase
from supervisor.core.readings import KernelWait
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.last_resorts import Resort

from .stories import JOB, Life, life

RESET = Resort(kind="reset_gpu", command=("amd-smi", "reset", "--gpureset", "--gpu", "0000:0a:00.0"))
REBOOT = Resort(kind="reboot", command=("systemctl", "reboot"))
OFF = RemedyContext(resorts=(RESET, REBOOT))
ON = RemedyContext(resorts=(replace(RESET, on=True), replace(REBOOT, on=True)))
PATIENT = Limits(budget=Budget(backoff_s=(0.0,), jitter_fraction=0.0))


def lost(timeline: Life) -> Life:
    """The card falls off the bus and the training ends of it."""
    return timeline.kernel(FaultClass.GPU_LOST).silence(1).exits(signal=9)


def training(context: RemedyContext) -> Life:
    timeline = life(limits=PATIENT)
    timeline.context = context
    return timeline.training()


def resorted(timeline: Life, *, done: bool, report: str = "") -> Life:
    kind = timeline.job.resorts[-1].kind
    timeline.put(
        ev.ResortEnded(at=timeline.now, job=JOB, attempt=timeline.attempt, kind=kind, done=done, output=report)
    )
    return timeline


def unkillable(context: RemedyContext) -> Life:
    timeline = life(limits=PATIENT)
    timeline.context = context
    return timeline.training().silence(60).silence(40).silence(10)


def test_what_is_off_is_named_with_its_exact_command_and_not_run() -> None:
    timeline = lost(lost(training(OFF)).looks().training())
    assert timeline.phase() is Phase.FAILED
    assert (
        "what would help: `amd-smi reset --gpureset --gpu 0000:0a:00.0` (last_resorts.reset_gpu is off), "
        "else `systemctl reboot` (last_resorts.reboot is off)"
    ) in (timeline.job.reason or "")


def test_a_lost_gpu_is_reset_before_the_next_attempt_and_then_rebooted_but_each_only_once() -> None:
    timeline = lost(training(ON))
    assert timeline.read_decisions() == ["Launch", "Stop", "Retry", "LastResort"]
    assert timeline.job.resorts[0].command == RESET.command
    assert timeline.looks().read_decisions() == []
    resorted(timeline, done=True)
    assert timeline.read_decisions() == ["Launch"]
    lost(timeline.training())
    assert [type(decision).__name__ for decision in timeline.decisions[-2:]] == ["Retry", "LastResort"]
    assert timeline.job.resorts[-1].kind == "reboot"
    resorted(timeline, done=True).looks().read_decisions()
    assert timeline.silence(100).read_decisions() == []
    assert timeline.silence(20).read_decisions() == ["Launch"]
    lost(timeline.training())
    assert timeline.phase() is Phase.FAILED
    assert "`systemctl reboot` (already done)" in (timeline.job.reason or "")


def test_a_reset_that_was_planned_and_is_switched_off_before_it_begins_is_not_done() -> None:
    timeline = lost(training(ON))
    planned = replace(timeline.job, resorts=())
    assert isinstance(decide(planned, [], timeline.now, context=ON), de.LastResort)
    assert decide(planned, [], timeline.now, context=OFF) is None, "it waits for what to resume from"
    assert isinstance(
        decide(replace(planned, retry=timeline.looks().job.retry), [], timeline.now, context=OFF), de.Launch
    )


def test_progress_allows_a_reset_once_more() -> None:
    timeline = resorted(lost(training(ON)).looks(), done=True)
    timeline.training(400)
    assert timeline.job.resorts == ()
    assert [resort.kind for resort in lost(timeline).job.resorts] == ["reset_gpu"]


def test_a_reset_that_failed_is_kept_with_what_it_reported_and_does_not_hold_the_job_up() -> None:
    timeline = resorted(lost(training(ON)).looks(), done=False, report="status 1 Permission denied")
    assert timeline.read_decisions()[-1] == "Launch"
    assert (timeline.job.resorts[0].done, timeline.job.resorts[0].output) == (False, "status 1 Permission denied")


def test_a_reset_of_which_no_word_comes_does_not_hold_the_job_up_for_ever() -> None:
    timeline = lost(training(ON)).looks()
    timeline.read_decisions()
    assert timeline.silence(89).read_decisions() == []
    assert timeline.silence(1).read_decisions() == ["Launch"]


def test_a_process_that_sigkill_does_not_end_has_its_gpu_reset_and_then_the_machine_rebooted() -> None:
    timeline = unkillable(ON)
    assert timeline.read_decisions() == ["Launch", "Stop", "Kill", "Warn", "LastResort"]
    resorted(timeline, done=True)
    assert timeline.silence(29).read_decisions() == []
    timeline.silence(1)
    last = timeline.last
    assert isinstance(last, de.LastResort)
    assert last.command == REBOOT.command
    timeline.read_decisions()
    resorted(timeline, done=True)
    assert timeline.silence(86400).read_decisions() == []


def test_a_reset_that_ends_the_process_is_followed_by_an_ordinary_retry() -> None:
    timeline = resorted(unkillable(ON), done=True)
    timeline.read_decisions()
    assert timeline.exits(signal=9).looks().read_decisions() == ["Retry", "Launch"]


def test_a_reboot_waits_until_no_other_job_runs() -> None:
    refused = replace(REBOOT, on=True, refused="refused while day runs")
    timeline = unkillable(RemedyContext(resorts=(refused,)))
    assert timeline.read_decisions()[-1] == "Warn"
    assert "`systemctl reboot` (refused while day runs)" in (timeline.job.reason or "")
    assert timeline.silence(3600).read_decisions() == []
    timeline.context = RemedyContext(resorts=(replace(REBOOT, on=True),))
    assert timeline.silence(1).read_decisions() == ["LastResort"]


def test_nothing_is_reset_for_a_job_that_its_user_stops() -> None:
    timeline = life(limits=PATIENT).training()
    timeline.asks(ev.Ask.STOP)
    timeline.context = ON
    timeline.silence(60).silence(10).silence(3600)
    assert "LastResort" not in timeline.read_decisions()


def test_nothing_is_reset_for_a_process_that_is_frozen() -> None:
    """SIGKILL ends it once it is thawed, where the freezer is that of version 1."""
    timeline = life(limits=PATIENT)
    timeline.context = ON
    wait = KernelWait(pid=7, name="python", thread=7, channel="do_wait", is_frozen=True)
    timeline.training().silence(60).silence(40).tree(2, waits=(wait,)).silence(10).silence(3600)
    warned = [decision.flag.message for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert "it is frozen with its control group, and ends once that is thawed" in warned[-1]
    assert timeline.job.resorts == ()


@pytest.mark.parametrize(
    ("channel", "stack", "message", "taken"),
    [
        ("request_wait_answer", (), "no GPU reset does; what would help: `systemctl reboot`", "reboot"),
        ("rpc_wait_bit_killable", ("__schedule", "nfs4_proc_getattr"), "no GPU reset does", "reboot"),
        ("nvme_wait_freeze", (), "no GPU reset does", "reboot"),
        ("dma_fence_default_wait", (), "which only a GPU reset or a reboot ends; what would help: `amd", "reset_gpu"),
        ("io_schedule", ("folio_wait_bit", "amdgpu_vm_fault"), "only a GPU reset or a reboot", "reset_gpu"),
        ("rwsem_down_write_slowpath", (), "which only what it waits for, or a reboot, ends; what would", "reset_gpu"),
        (None, (), "which only what it waits for, or a reboot, ends", "reset_gpu"),
    ],
)
def test_no_gpu_is_reset_for_a_process_that_waits_for_a_disk(
    channel: str | None, stack: tuple[str, ...], message: str, taken: str
) -> None:
    timeline = life(limits=PATIENT)
    timeline.context = ON
    wait = KernelWait(pid=7, name="python", thread=7, channel=channel, stack=stack)
    timeline.training().silence(60).silence(40).tree(2, waits=(wait,)).silence(10)
    warned = [decision.flag.message for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert message in warned[-1]
    assert timeline.job.resorts[0].kind == taken
