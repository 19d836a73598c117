"""GPU fault: the kernel's words about the job's own cards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import events as ev
from supervisor.core.findings import About, FaultClass, FaultSeverity
from supervisor.core.flags import Severity
from supervisor.core.readings import ProcessReading, ProcessUse
from supervisor.core.rules.gpu_fault import GpuFault

from .stories import GPU, JOB, OTHER_GPU, Story, story


def test_a_fatal_fault_of_a_gpu_in_use_acts_and_nothing_is_saved() -> None:
    timeline = story().training()
    at = timeline.now
    flag = timeline.kernel(FaultClass.GPU_HANG, "ring gfx timeout").silence(1).check(GpuFault())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert not flag.can_save
    assert flag.since == at
    assert flag.fault == "gpu_hang"
    assert flag.subject == GPU
    assert flag.message == f"{GPU}: gpu_hang: ring gfx timeout"


def test_a_fault_of_another_gpu_is_not_ours() -> None:
    assert story().training().kernel(FaultClass.GPU_HANG, gpu=OTHER_GPU).silence(1).check(GpuFault()) is None


def test_a_line_that_names_no_gpu_concerns_every_job() -> None:
    assert story().training().kernel(FaultClass.GPU_RESET_FAILED, gpu=None).check(GpuFault()) is not None


def test_where_no_gpus_are_named_any_gpu_may_be_the_jobs() -> None:
    assert (
        story(gpus_used=()).training().kernel(FaultClass.GPU_HANG, gpu=OTHER_GPU).silence(1).check(GpuFault())
        is not None
    )


def test_a_line_from_before_the_launch_is_not_ours() -> None:
    assert story().started().kernel(FaultClass.GPU_HANG, ago_s=1).silence(1).check(GpuFault()) is None


def test_a_fault_that_is_not_fatal_is_reported() -> None:
    flag = story().training().kernel(FaultClass.PAGE_FAULT, fatal=False).check(GpuFault())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.since is None


def test_each_class_that_is_not_fatal_is_reported_for_itself() -> None:
    timeline = story().training().kernel(FaultClass.PAGE_FAULT, fatal=False)
    first = timeline.check(GpuFault())
    second = timeline.kernel(FaultClass.QUEUE_EVICTION, fatal=False).check(GpuFault())
    assert first is not None
    assert second is not None
    assert first.key != second.key


def test_a_fatal_line_outranks_a_later_one_that_is_not() -> None:
    timeline = story().training().kernel(FaultClass.GPU_HANG).silence(1).kernel(FaultClass.GPU_RESET, fatal=False)
    flag = timeline.check(GpuFault())
    assert flag is not None
    assert flag.fault == "gpu_hang"


def test_an_oom_kill_is_no_fault_of_a_gpu() -> None:
    assert story().training().kernel(FaultClass.OOM_KILL, gpu=None).check(GpuFault()) is None


@pytest.mark.parametrize("device", ["cpu"])
def test_a_training_on_the_cpu_is_not_concerned(device: str) -> None:
    timeline = story().training().says(ev.AgentEvent.PLAN, device=device).kernel(FaultClass.GPU_HANG).silence(1)
    assert timeline.check(GpuFault()) is None


def test_a_fatal_fault_still_spoils_what_was_saved_when_the_process_is_gone() -> None:
    flag = story().training().kernel(FaultClass.GPU_HANG).silence(1).exits(signal=6).check(GpuFault())
    assert flag is not None
    assert flag.since is not None


def test_the_line_is_bounded() -> None:
    flag = story().training().kernel(FaultClass.GPU_HANG, "x" * 10_000).silence(1).check(GpuFault())
    assert flag is not None
    assert len(flag.message) < 400


def test_act_off_reports_only() -> None:
    flag = story().training().kernel(FaultClass.GPU_HANG).silence(1).check(GpuFault(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_the_remedy_is_in_the_message_and_in_the_advice() -> None:
    flag = story().training().kernel(FaultClass.GPU_RESET_FAILED, "GPU reset(1) failed", remedy="reboot")
    timeline = flag.check(GpuFault())
    assert timeline is not None
    assert timeline.message == f"{GPU}: gpu_reset_failed: GPU reset(1) failed (remedy: reboot)"
    assert timeline.diagnosis is not None
    assert timeline.diagnosis.advice == ("reboot",)


def test_an_error_of_the_bus_counts_only_where_its_device_is_a_gpu_of_the_job() -> None:
    other, own = "0000:01:00.0", GPU
    for known, gpu, flagged in (((), other, False), ((GPU,), other, False), ((GPU,), own, True), ((), own, False)):
        timeline = story(gpus_used=known).training().kernel(FaultClass.PCIE, gpu=gpu, about="pci")
        assert (timeline.check(GpuFault()) is not None) is flagged
    seen = story(gpus_used=()).training().gpu(1).kernel(FaultClass.PCIE, gpu=GPU, about="pci")
    assert seen.check(GpuFault()) is not None


@pytest.mark.parametrize("about", ["disk", "host"])
def test_what_is_wrong_with_a_disk_or_the_machine_is_no_fault_of_a_gpu(about: About) -> None:
    assert story().training().kernel(FaultClass.IO_ERROR, gpu=None, about=about).check(GpuFault()) is None


def recovered(timeline: Story) -> Story:
    """The driver says of the newest hang that its reset of the ring succeeded."""
    hang = timeline.history.kernel.findings[-1]
    over = replace(hang, fault=FaultClass.GPU_RESET, severity=FaultSeverity.WARN, fatal_at=None)
    timeline.put(ev.KernelReported(at=timeline.now, findings=(over,), sequence=hang.sequence + 1))
    return timeline


def test_a_hang_is_held_for_a_second_and_then_acts() -> None:
    timeline = story().training().kernel(FaultClass.GPU_HANG)
    assert timeline.silence(0.9).check(GpuFault()) is None
    flag = timeline.silence(0.1).check(GpuFault())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_ring_that_was_reset_in_time_is_reported_and_the_training_goes_on() -> None:
    timeline = recovered(story().training().kernel(FaultClass.GPU_HANG).silence(0.2))
    for _ in range(3):
        flag = timeline.silence(5).check(GpuFault())
        assert flag is not None
        assert (flag.severity, flag.fault, flag.since) == (Severity.WARNING, "gpu_reset", None)


def test_a_ring_that_hangs_again_after_its_reset_is_held_again() -> None:
    timeline = recovered(story().training().kernel(FaultClass.GPU_HANG).silence(0.2)).silence(10)
    (over,) = timeline.history.kernel.findings
    hang = replace(over, fault=FaultClass.GPU_HANG, severity=FaultSeverity.FATAL, fatal_at=timeline.now)
    timeline.put(ev.KernelReported(at=timeline.now, findings=(hang,), sequence=3))
    assert timeline.check(GpuFault()) is None
    flag = timeline.silence(1).check(GpuFault())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.since == hang.fatal_at, "what was saved between the two is sound"


def test_a_hang_that_reports_itself_again_and_again_is_held_once() -> None:
    timeline = story().training().kernel(FaultClass.GPU_HANG)
    (hang,) = timeline.history.kernel.findings
    for count in range(4):
        timeline.silence(0.25).put(
            ev.KernelReported(at=timeline.now, findings=(replace(hang, fatal_at=timeline.now),), sequence=count + 2)
        )
    flag = timeline.check(GpuFault())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


@pytest.mark.parametrize("fault", [FaultClass.GPU_RESET, FaultClass.GPU_RESET_FAILED, FaultClass.GPU_INIT_FAILED])
def test_only_a_hang_is_held(fault: FaultClass) -> None:
    assert story().training().kernel(fault).check(GpuFault()) is not None


def test_a_finding_reported_again_replaces_the_one_before() -> None:
    timeline = story().training().kernel(FaultClass.GPU_HANG, fatal=False)
    (first,) = timeline.history.kernel.findings
    worse = replace(first, fault=FaultClass.GPU_RESET_FAILED, severity=FaultSeverity.FATAL)
    timeline.put(ev.KernelReported(at=timeline.now, findings=(worse,), sequence=2))
    assert list(timeline.history.kernel.findings) == [worse]
    flag = timeline.check(GpuFault())
    assert flag is not None
    assert flag.fault == "gpu_reset_failed"


def test_an_event_older_than_the_attempt_counts_once_it_reports_something_fatal_again() -> None:
    timeline = story().started().kernel(FaultClass.GPU_HANG, ago_s=5)
    assert timeline.check(GpuFault()) is None
    (old,) = timeline.history.kernel.findings
    again = replace(old, fatal_at=timeline.silence(3).now)
    timeline.put(ev.KernelReported(at=timeline.now, findings=(again,), sequence=2))
    flag = timeline.check(GpuFault())
    assert flag is not None
    assert flag.since == again.fatal_at


def tree(timeline: Story, *pids: int, more: int = 0) -> None:
    """The attempt's processes are read, the busiest of them by name."""
    uses = tuple(ProcessUse(pid=pid, name="python", rss_bytes=1) for pid in pids)
    reading = ProcessReading(at=timeline.now, processes=len(pids) + more, largest=uses)
    timeline.put(ev.ProcessesRead(at=timeline.now, job=JOB, attempt=1, reading=reading))


@pytest.mark.parametrize(
    ("pid", "more", "severity"),
    [
        (4242, 0, Severity.CRITICAL),
        (4300, 0, Severity.CRITICAL),
        (None, 0, Severity.CRITICAL),
        (999, 0, Severity.WARNING),
        (999, 5, Severity.CRITICAL),
    ],
)
def test_a_page_fault_of_somebody_elses_process_is_reported_only(
    pid: int | None, more: int, severity: Severity
) -> None:
    timeline = story().training()
    for _ in range(2):
        tree(timeline, 4242, 4300, more=more)
    flag = timeline.kernel(FaultClass.PAGE_FAULT, pid=pid).check(GpuFault())
    assert flag is not None
    assert flag.severity is severity


def test_a_hang_takes_everybody_on_the_gpu_with_it_whoever_made_it() -> None:
    timeline = story().training()
    for _ in range(2):
        tree(timeline, 4242)
    flag = timeline.kernel(FaultClass.GPU_HANG, pid=999).silence(1).check(GpuFault())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
