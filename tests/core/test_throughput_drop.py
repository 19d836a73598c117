"""Throughput drop: against the training's own pace, and against its owner's."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import HostReading, Stage
from supervisor.core.rules.throughput_drop import ThroughputDrop

from .long_stories import LongStory, trained
from .stories import GPU

RULE = ThroughputDrop(window_s=120.0)


def test_a_pace_far_below_its_own_is_reported() -> None:
    flag = trained(5).pace(1200).pace(130, 2.0).check(RULE)
    assert flag is not None
    assert (flag.severity, flag.subject, flag.can_save) == (Severity.WARNING, "usual", True)
    assert flag.message == "0.5 steps/s over 120 s of stepping; 1 are usual here (limit 0.6)"


def test_the_usual_pace_is_reported_in_steps_a_second_whatever_that_is() -> None:
    flag = trained(5).pace(1200, 0.5).pace(130, 1.0).check(RULE)
    assert flag is not None
    assert flag.message == "1 steps/s over 120 s of stepping; 2 are usual here (limit 1.2)"


def test_a_training_of_minutes_is_slower_than_before_too() -> None:
    rule = ThroughputDrop()
    assert trained(5).pace(720).pace(310, 2.0).check(rule) is not None
    assert trained(5).pace(500).pace(310, 2.0).check(rule) is None


def test_a_little_slower_is_not() -> None:
    assert trained(5).pace(1200).pace(150, 1.5).check(RULE) is None


def test_less_than_half_of_two_minutes_is_not() -> None:
    assert trained(5).pace(1200).pace(58, 2.0).check(RULE) is None


def test_one_long_wait_is_no_pace() -> None:
    assert trained(5).pace(1200).pace(400, 400.0).pace(40).check(RULE) is None


def test_a_return_to_the_usual_pace_interrupts() -> None:
    assert trained(5).pace(1200).pace(130, 2.0).pace(60).check(RULE) is None


def test_without_a_pace_of_its_own_yet_it_says_nothing() -> None:
    assert trained(5).pace(300).pace(130, 2.0).check(RULE) is None


def test_paces_that_always_change_are_usual() -> None:
    timeline = trained(5)
    for _ in range(8):
        timeline.pace(90, 0.5).pace(90, 1.5)
    assert timeline.pace(90, 1.5).check(RULE) is None


def test_a_validation_between_epochs_slows_nothing_down() -> None:
    timeline = trained(5).pace(1200, batches=600)
    for _ in range(4):
        timeline.stage(Stage.VALIDATE).silence(400).stage(Stage.STEP)
        timeline.pace(60, batches=60)
    assert timeline.check(RULE) is None


def test_the_owners_pace_is_held_against_it_sooner() -> None:
    rule = ThroughputDrop(window_s=120.0, at_least_per_s=15.0)
    flag = trained(5).pace(200, 0.1).check(rule)
    assert flag is not None
    assert (flag.subject, flag.severity) == ("wanted", Severity.WARNING)
    assert flag.message == "10 steps/s over 120 s of stepping; 15 are wanted"
    assert trained(5).pace(200, 0.06).check(rule) is None


def test_a_training_that_stands_is_the_stalls() -> None:
    assert trained(5).pace(1200).silence(600).check(ThroughputDrop(window_s=120.0, at_least_per_s=15.0)) is None


def test_no_steps_say_nothing() -> None:
    assert trained(1).silence(4000).check(RULE) is None


def test_the_diagnosis_names_what_is_slow() -> None:
    timeline = trained(5).pace(1200, wait_s=0.1)
    timeline.pace(130, 2.0, wait_s=1.5).card(throttled_by=("thermal_edge",))
    timeline.put(ev.HostRead(at=timeline.now, reading=HostReading(at=timeline.now, io_stall_percent=60.0)))
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.diagnosis is not None
    causes = " ".join(flag.diagnosis.causes)
    assert "75% of the time goes into waiting for data" in causes
    assert f"{GPU} holds its clocks down: thermal_edge" in causes
    assert "storage is slow" in causes


def causes_and_exclusions(timeline: LongStory) -> tuple[tuple[str, ...], tuple[str, ...]]:
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.diagnosis is not None
    return flag.diagnosis.causes, flag.diagnosis.ruled_out


def test_what_a_gpu_reported_long_ago_is_no_cause() -> None:
    timeline = trained(5).pace(1200).card(throttled_by=("thermal_edge",)).pace(130, 2.0)
    assert "holds its clocks down" not in " ".join(causes_and_exclusions(timeline)[0])


def test_a_loader_that_takes_little_of_the_time_is_ruled_out() -> None:
    causes, ruled_out = causes_and_exclusions(trained(5).pace(1200, wait_s=0.1).pace(130, 2.0, wait_s=0.5))
    assert "not the loader: 25% of the time goes into waiting for data" in ruled_out
    assert "waiting for data" not in " ".join(causes)


def test_a_machine_that_hardly_waits_is_no_cause_and_one_that_is_short_of_memory_is() -> None:
    timeline = trained(5).pace(1200).pace(130, 2.0)
    timeline.put(
        ev.HostRead(at=timeline.now, reading=HostReading(at=timeline.now, io_stall_percent=20, memory_stall_percent=10))
    )
    causes = " ".join(causes_and_exclusions(timeline)[0])
    assert "storage" not in causes
    assert "memory is short" not in causes
    timeline.put(ev.HostRead(at=timeline.now, reading=HostReading(at=timeline.now, memory_stall_percent=11)))
    assert "memory is short: 11 % of the time something waited for it" in causes_and_exclusions(timeline)[0]
