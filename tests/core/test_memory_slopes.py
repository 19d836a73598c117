"""VRAM leak, host memory slope, a disk that fills: what rises for hours, and what only wobbles."""

from __future__ import annotations

import pytest

from supervisor.core.flags import Severity
from supervisor.core.rules.disk_low import DiskLow
from supervisor.core.rules.host_memory_slope import HostMemorySlope
from supervisor.core.rules.vram_leak import VramLeak
from supervisor.core.stats.trend import WINDOW_S

from .long_stories import LongStory, trained
from .stories import GPU

LEAK = VramLeak(act=True)
SLOPE = HostMemorySlope(act=True)
DISK = DiskLow()


def test_memory_of_tensors_that_rises_is_foretold_and_may_save() -> None:
    flag = trained().hours(1.5, 2.0, of="allocator", wobble=0.05).check(LEAK)
    assert flag is not None
    assert (flag.severity, flag.can_save, flag.subject) == (Severity.CRITICAL, True, "rank 0")
    assert "of 24.00 GB are taken, full in" in flag.message
    assert "99.9 %" in flag.message


def test_an_hour_is_needed() -> None:
    assert trained().hours(0.9, 2.0, of="allocator").check(LEAK) is None


@pytest.mark.parametrize(("window_s", "hours"), list(zip(WINDOW_S, (0.25, 12.5), strict=True)))
def test_the_shortest_and_the_longest_time_that_may_be_set_find_it(window_s: float, hours: float) -> None:
    leak, slope = (
        VramLeak(window_s=window_s, min_rise_fraction=0.01),
        HostMemorySlope(window_s=window_s, gone_within_s=1e6),
    )
    per_hour = 1.0 if hours > 1 else 9.0
    assert trained().hours(hours, per_hour, of="allocator").check(leak) is not None
    assert trained().hours(hours, per_hour, of="host").check(slope) is not None


def test_a_level_that_wobbles_is_no_slope() -> None:
    assert trained().hours(6, 0.0, of="allocator", wobble=0.5).check(LEAK) is None


def test_a_rise_too_small_to_matter_is_none() -> None:
    assert trained().hours(2, 0.2, of="allocator").check(LEAK) is None


def test_steps_upwards_are_no_slope() -> None:
    timeline = trained()
    for level in (4.0, 5.0, 6.0):
        timeline.hours(0.6, 0.0, of="card", start=level)
    assert timeline.check(LEAK) is None


def test_memory_given_back_interrupts() -> None:
    assert trained().hours(1.5, 2.0, of="allocator").hours(1.0, 0.0, of="allocator").check(LEAK) is None


def test_without_the_allocator_the_gpu_speaks_and_a_silent_one_does_not() -> None:
    timeline = trained().hours(1.5, 2.0, of="card")
    flag = timeline.check(LEAK)
    assert flag is not None
    assert flag.subject == GPU
    assert timeline.silence(61).check(LEAK) is None
    assert trained().silence(7200).check(LEAK) is None


def test_host_memory_that_rises_is_foretold() -> None:
    flag = trained().hours(1.5, 8.0, of="host", wobble=0.1).check(SLOPE)
    assert flag is not None
    assert (flag.severity, flag.can_save) == (Severity.CRITICAL, True)
    assert "GB are left, gone in" in flag.message


def test_host_memory_far_from_gone_level_or_unknown_is_none() -> None:
    assert trained().hours(1.5, 3.0, of="host").check(SLOPE) is None
    assert trained().hours(3.0, 0.0, of="host", wobble=1.0).check(SLOPE) is None
    assert trained().hours(0.9, 8.0, of="host").check(SLOPE) is None
    assert trained().hours(1.5, 8.0, of="host").silence(61).check(SLOPE) is None
    assert trained().silence(4000).check(SLOPE) is None


def test_what_lasts_to_the_very_end_of_the_time_is_foretold_and_what_lasts_longer_is_not() -> None:
    timeline = trained().hours(1.5, 8.0, of="host")
    (watched,) = SLOPE.measure(timeline.history)
    left_s = watched.now
    assert left_s is not None
    assert timeline.check(HostMemorySlope(gone_within_s=left_s)) is not None
    assert timeline.check(HostMemorySlope(gone_within_s=left_s - 0.001)) is None


def filling(per_hour: float, hours: float = 1.0, start: float = 70.0) -> LongStory:
    """A disk of 100 GB."""
    return trained().hours(hours, per_hour, of="disk", start=start)


def test_a_disk_that_fills_is_reported_with_the_time_left() -> None:
    flag = filling(14.0).check(DISK)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.message == "/runs: 16.12 of 100.00 GB are free, full in 1.1 h at this rate"


def test_a_disk_that_fills_slowly_or_for_a_moment_only_is_not() -> None:
    assert filling(4.0).check(DISK) is None
    assert filling(14.0, hours=0.4).check(DISK) is None
    assert filling(0.0, hours=3.0).check(DISK) is None


def test_a_disk_on_which_something_was_deleted_is_not() -> None:
    assert filling(14.0).hours(0.6, 0.0, of="disk", start=50.0).check(DISK) is None
