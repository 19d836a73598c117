"""Data starved: told, never stopped."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.rules.advisory.data_starved import DataStarved

from .long_stories import LongStory, trained

RULE = DataStarved(window_s=120.0)


def starved(wait_s: float | None = 4.0, busy: float | None = 5.0, seconds: float = 200.0) -> LongStory:
    """The A10G: a step each five seconds, the card nearly idle."""
    timeline = trained(2)
    for _ in range(round(seconds / 5)):
        timeline.pace(5, 5.0, wait_s=wait_s).card(gpu_busy_percent=busy)
    return timeline


def test_a_gpu_that_waits_for_batches_is_reported_and_never_stopped() -> None:
    flag = starved().check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message == "80% of 120 s of stepping went into waiting for data, the GPU at 5 %, 0.2 steps/s"
    assert flag.diagnosis is not None
    assert "not a hang" in flag.diagnosis.ruled_out[0]


def test_a_little_less_waiting_is_not_reported() -> None:
    assert starved(wait_s=2.4).check(RULE) is None


def test_a_busy_gpu_interrupts() -> None:
    assert starved(busy=31.0).check(RULE) is None


def test_silent_sensors_of_either_side_say_nothing() -> None:
    assert starved(busy=None).check(RULE) is None
    assert starved(wait_s=None).check(RULE) is None


def test_two_minutes_are_needed() -> None:
    assert starved(seconds=100).check(RULE) is None


def test_on_the_cpu_no_gpu_starves() -> None:
    assert starved().says(ev.AgentEvent.PLAN, device="cpu").check(RULE) is None


def test_the_advice_knows_the_workers() -> None:
    timeline = starved().rank_says(ev.AgentEvent.WORKERS, loader=1, pids=[], training=True)
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.diagnosis is not None
    assert flag.diagnosis.causes[0].startswith("no loader workers")
    flag = timeline.rank_says(ev.AgentEvent.WORKERS, loader=2, pids=[5, 6], training=True).check(RULE)
    assert flag is not None
    assert flag.diagnosis is not None
    assert flag.diagnosis.causes[0].startswith("2 loader workers are too few")
