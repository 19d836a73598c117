"""Host memory: tells early, acts only where it would help."""

from __future__ import annotations

import pytest

from supervisor.core.flags import Severity
from supervisor.core.rules.host_memory import HostMemory

from .stories import GB, story

NEARLY_NONE = 900_000_000
LITTLE = 3 * GB


def test_memory_used_up_by_the_job_acts_and_may_save() -> None:
    flag = story().training().memory(10, available=NEARLY_NONE, rss=20 * GB).check(HostMemory())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.can_save
    assert flag.message == "0.90 of 32.00 GB of memory are left, of which the job holds 62%"


def test_one_second_short_of_the_hold_is_reported_only() -> None:
    flag = story().training().memory(9, available=NEARLY_NONE, rss=20 * GB).check(HostMemory())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_better_reading_interrupts() -> None:
    timeline = story().training().memory(8, available=NEARLY_NONE, rss=20 * GB).silence(1)
    timeline.memory(available=LITTLE, rss=20 * GB).silence(1)
    flag = timeline.memory(8, available=NEARLY_NONE, rss=20 * GB).check(HostMemory())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_little_memory_is_reported_and_a_tenth_is_enough() -> None:
    flag = story().training().memory(available=LITTLE, rss=GB).check(HostMemory())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert story().training().memory(60, available=3_200_000_000, rss=GB).check(HostMemory()) is None


@pytest.mark.parametrize("rss", [None, 7_900_000_000])
def test_memory_that_others_hold_is_reported_only(rss: int | None) -> None:
    flag = story().training().memory(60, available=NEARLY_NONE, rss=rss).check(HostMemory())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_a_quarter_of_all_memory_is_a_real_share() -> None:
    flag = story().training().memory(60, available=NEARLY_NONE, rss=8 * GB).check(HostMemory())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_silent_sensor_is_not_full() -> None:
    assert story().training().memory(60, available=None, rss=20 * GB).check(HostMemory()) is None
    assert story().training().memory(60, available=1, total=None, rss=20 * GB).check(HostMemory()) is None
    assert story().training().memory(5, available=1, rss=20 * GB).silence(61).check(HostMemory()) is None


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert story().training().memory(10, available=1, rss=20 * GB).exits(1).check(HostMemory()) is None


def test_act_off_reports_only() -> None:
    flag = story().training().memory(10, available=1, rss=20 * GB).check(HostMemory(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING
