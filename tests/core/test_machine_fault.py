"""Machine fault: the kernel's words about what every job of the machine stands on."""

from __future__ import annotations

import pytest

from supervisor.core.findings import About, FaultClass
from supervisor.core.flags import Severity
from supervisor.core.rules.advisory.machine_fault import MachineFault

from .stories import GPU, story


@pytest.mark.parametrize(("fault", "about"), [(FaultClass.IO_ERROR, "disk"), (FaultClass.HUNG_TASK, "host")])
def test_a_fault_of_disk_or_machine_is_reported_with_its_remedy(fault: FaultClass, about: About) -> None:
    timeline = story().training().kernel(fault, "I/O error, dev sda", gpu=None, about=about, remedy="look at it")
    flag = timeline.check(MachineFault())
    assert flag is not None
    assert (flag.severity, flag.fault) == (Severity.WARNING, fault.value)
    assert flag.message == f"this machine: {fault.value}: I/O error, dev sda (remedy: look at it)"


def test_a_gpu_is_not_the_machine() -> None:
    assert story().training().kernel(FaultClass.GPU_HANG, gpu=GPU).check(MachineFault()) is None


def test_an_oom_kill_is_reported_by_other_rules() -> None:
    assert story().training().kernel(FaultClass.OOM_KILL, gpu=None).check(MachineFault()) is None


def test_what_was_before_the_launch_is_not_reported() -> None:
    timeline = story().started().kernel(FaultClass.IO_ERROR, gpu=None, about="disk", ago_s=5)
    assert timeline.check(MachineFault()) is None


def test_an_attempt_that_is_over_is_not_notified_of_it() -> None:
    timeline = story().training().kernel(FaultClass.IO_ERROR, gpu=None, about="disk").exits(code=1)
    assert timeline.check(MachineFault()) is None
