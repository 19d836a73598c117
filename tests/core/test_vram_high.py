"""VRAM high: tells at five of six gigabytes, acts before the allocation that fails."""

from __future__ import annotations

import pytest

from supervisor.core.flags import Severity
from supervisor.core.rules.vram_high import VramHigh

from .stories import GB, GPU, OTHER_GPU, story


def test_nearly_full_for_the_hold_acts_and_may_save() -> None:
    flag = story().training().gpu(10, used=5_700_000_000).check(VramHigh())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.can_save
    assert flag.since is None
    assert flag.subject == GPU
    assert flag.message == f"{GPU}: VRAM at 5.70 GB of 6.00 GB (95%) for 10 s"


def test_one_second_short_of_the_hold_is_reported_only() -> None:
    flag = story().training().gpu(9, used=5_700_000_000).check(VramHigh())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_one_lower_reading_interrupts() -> None:
    timeline = story().training().gpu(8, used=5_700_000_000).silence(1).gpu(used=5_600_000_000).silence(1)
    flag = timeline.gpu(8, used=5_700_000_000).check(VramHigh())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_five_of_six_gigabytes_are_reported_and_a_little_less_is_not() -> None:
    flag = story().training().gpu(used=5 * GB).check(VramHigh())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert story().training().gpu(used=4_900_000_000).check(VramHigh()) is None


def test_a_limit_in_bytes_replaces_the_fraction_for_acting() -> None:
    rule = VramHigh(limit_bytes=4 * GB)
    flag = story().training().gpu(10, used=4 * GB).check(rule)
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    flag = story().training().gpu(10, used=5_999_000_000).check(VramHigh(limit_bytes=6 * GB))
    assert flag is not None
    assert flag.severity is Severity.WARNING


@pytest.mark.parametrize("total", [None, 0])
def test_a_limit_in_bytes_needs_no_total(total: int | None) -> None:
    flag = story().training().gpu(10, used=4 * GB, total=total).check(VramHigh(limit_bytes=4 * GB))
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.message == f"{GPU}: VRAM at 4.00 GB for 10 s"


def test_the_flag_is_of_a_reading_that_is_known_to_be_full() -> None:
    flag = story().training().gpu(10, used=5_700_000_000).gpu(1, used=5_700_000_000, total=None).check(VramHigh())
    assert flag is not None
    assert flag.message == f"{GPU}: VRAM at 5.70 GB of 6.00 GB (95%) for 10 s"


def test_a_silent_sensor_is_not_full() -> None:
    assert story().training().gpu(60, used=None).check(VramHigh()) is None
    assert story().training().gpu(60, used=5_900_000_000, total=None).check(VramHigh()) is None
    assert story().training().gpu(60, used=5_900_000_000, total=0).check(VramHigh()) is None
    assert story().training().gpu(5, used=5_900_000_000).silence(61).check(VramHigh()) is None


def test_a_gap_of_unknown_readings_neither_holds_nor_interrupts() -> None:
    timeline = story().training().gpu(5, used=5_900_000_000).silence(1).gpu(3, used=None).silence(1)
    flag = timeline.gpu(used=5_900_000_000).check(VramHigh())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_one_reading_holds_nothing_even_without_a_hold() -> None:
    flag = story().training().gpu(used=5_900_000_000).check(VramHigh(hold_s=0))
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_the_gpu_of_another_job_is_not_ours() -> None:
    assert story().training().gpu(60, used=5_900_000_000, gpu=OTHER_GPU).check(VramHigh()) is None


def test_where_nobody_knows_whose_gpu_is_full_it_is_only_reported() -> None:
    timeline = story(gpus_used=()).training().gpu(used=1 * GB).gpu(10, used=5_900_000_000, gpu=OTHER_GPU)
    flag = timeline.check(VramHigh())
    assert flag is not None
    assert flag.severity is Severity.WARNING
    assert flag.subject == OTHER_GPU


def test_the_only_gpu_of_the_machine_is_the_jobs() -> None:
    flag = story(gpus_used=()).training().gpu(10, used=5_900_000_000).check(VramHigh())
    assert flag is not None
    assert flag.severity is Severity.CRITICAL


def test_a_process_that_is_gone_fills_nothing() -> None:
    assert story().training().gpu(10, used=5_900_000_000).exits(1).check(VramHigh()) is None


def test_act_off_reports_only() -> None:
    flag = story().training().gpu(10, used=5_900_000_000).check(VramHigh(act=False))
    assert flag is not None
    assert flag.severity is Severity.WARNING
