"""What is said of a standstill follows from what cards, processes and the agent showed meanwhile."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.flags import Diagnosis
from supervisor.core.readings import Stage
from supervisor.core.rules.stall import Stall

from .stories import Story, story


def of(timeline: Story) -> Diagnosis:
    flag = timeline.check(Stall())
    assert flag is not None
    assert flag.diagnosis is not None
    return flag.diagnosis


def inside() -> Story:
    return story().training(100).stage(Stage.STEP, stages_complete=True)


def test_what_the_agent_reports_is_ruled_out_and_not_then_named_as_the_cause() -> None:
    found = of(inside().silence(60))
    assert found.ruled_out[0].startswith("validation, checkpoint, wait for data")
    assert not any("loader" in cause for cause in found.causes)
    assert not any("workers=0" in item for item in found.advice)


def test_where_the_agent_does_not_report_them_the_loader_is_the_first_to_ask() -> None:
    found = of(story().training(100).silence(60))
    assert "data loader" in found.causes[0]
    assert not any(item.startswith("validation") for item in found.ruled_out)


def test_a_busy_gpu_is_a_kernel_that_never_ends() -> None:
    assert "a kernel that never ends" in of(inside().gpu(60, busy=99.0)).causes[0]


def test_a_busy_gpu_at_a_new_shape_is_a_search_until_conv2d_was_replaced() -> None:
    timeline = story().training(100).stage(Stage.COMPILE, stages_complete=True).gpu(600, busy=99.0)
    assert "MIOpen searches" in of(timeline).causes[0]
    assert any("conv2d" in item for item in of(timeline).advice)
    timeline.history.patched = True
    assert "MIOpen" not in of(timeline).causes[0]


def test_an_idle_gpu_rules_a_kernel_out() -> None:
    assert any("the GPU is 0 % busy" in item for item in of(inside().gpu(60, busy=0.0)).ruled_out)


def test_a_wait_for_data_is_the_loaders() -> None:
    assert "data loader" in of(story().training(100).stage(Stage.DATA_WAIT).silence(180)).causes[0]


def test_a_process_that_waits_in_the_kernel_is_the_drivers() -> None:
    found = of(inside().tree(60, stuck=(4242,)))
    assert "GPU's driver" in found.causes[0]
    assert any("reboot" in item for item in found.advice)


def test_a_crash_is_ruled_out_only_while_the_process_has_raised_nothing() -> None:
    """A rank that raised may hang as it ends, in a collective of the others."""
    assert any(item.startswith("a crash") for item in of(inside().silence(60)).ruled_out)
    raised = inside().says(ev.AgentEvent.EXCEPTION, type="ValueError", message="label 81").silence(60)
    assert not any(item.startswith("a crash") for item in of(raised).ruled_out)


def test_a_kernel_log_that_speaks_is_not_ruled_out() -> None:
    found = of(inside().kernel(FaultClass.QUEUE_EVICTION, fatal=False).silence(60))
    assert not any("kernel saw" in item for item in found.ruled_out)
