"""What moments, readings and severities answer about themselves."""

from __future__ import annotations

import pytest

from supervisor.core.flags import Severity
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, KernelWait

from .stories import GPU, START

GIB = 1 << 30


def test_an_earlier_monotonic_reading_is_an_earlier_time_of_day() -> None:
    now = Moment(100.0, 5000.0)
    assert now.at_monotonic(90.0) == Moment(90.0, 4990.0)
    assert now.at_monotonic(100.5) == Moment(100.5, 5000.5)


def test_a_later_moment_is_later_on_both_clocks() -> None:
    later = Moment(100.0, 5000.0).plus(2.5)
    assert later == Moment(102.5, 5002.5)
    assert later.seconds_since(Moment(100.0, 7.0)) == 2.5
    assert Moment(100.0, 7.0).seconds_since(later) == -2.5


@pytest.mark.parametrize(("set_by_s", "seen_s"), [(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (1.5, 1.5), (-3600.0, -3600.0)])
def test_a_clock_that_was_set_by_more_than_a_second_is_seen(set_by_s: float, seen_s: float) -> None:
    earlier = Moment(100.0, 2_000_000_000.0)
    later = Moment(160.0, 2_000_000_060.0 + set_by_s)
    assert later.clock_set_since(earlier) == seen_s


def memory(*, unified: bool | None, gtt: int | None) -> tuple[int | None, int | None]:
    reading = GpuReading(
        at=START,
        gpu=GPU,
        source="amdgpu",
        unified_memory=unified,
        vram_used_bytes=GIB,
        vram_total_bytes=2 * GIB,
        gtt_used_bytes=gtt,
        gtt_total_bytes=None if gtt is None else 8 * gtt,
    )
    return reading.memory_used_bytes, reading.memory_total_bytes


def test_a_training_on_an_apu_has_gtt_too() -> None:
    assert memory(unified=True, gtt=GIB) == (2 * GIB, 10 * GIB)


def test_a_training_on_a_gpu_or_where_gtt_is_not_reported_has_vram_alone() -> None:
    assert memory(unified=False, gtt=GIB) == (GIB, 2 * GIB)
    assert memory(unified=True, gtt=None) == (GIB, 2 * GIB)


def test_memory_that_is_not_reported_is_unknown_whatever_gtt_says() -> None:
    reading = GpuReading(at=START, gpu=GPU, source="amdgpu", unified_memory=True, gtt_used_bytes=GIB)
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (None, None)


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (KernelWait(pid=7, name="python", thread=7), "process 7 (python) waits in the kernel"),
        (
            KernelWait(pid=7, name="python", thread=9, channel="rpc_wait"),
            "process 7 (python), thread 9, waits in rpc_wait",
        ),
        (
            KernelWait(pid=7, name="python", thread=7, stack=("folio_wait", "nfs_read")),
            "process 7 (python) waits in folio_wait (called by nfs_read)",
        ),
        (
            KernelWait(pid=7, name="python", thread=7, channel="nfs_read", stack=("folio_wait", "nfs_read", "vfs")),
            "process 7 (python) waits in nfs_read (called by folio_wait, vfs)",
        ),
    ],
    ids=["nothing is known", "a channel", "a stack", "both"],
)
def test_a_wait_in_the_kernel_is_named_as_far_as_it_is_known(wait: KernelWait, words: str) -> None:
    assert wait.words == words


def test_a_rule_that_may_not_act_warns() -> None:
    assert [Severity.acting(act=act) for act in (True, "shadow", False)] == [
        Severity.CRITICAL,
        Severity.CRITICAL,
        Severity.WARNING,
    ]


def test_severities_are_ordered_and_have_their_names() -> None:
    assert [severity.label for severity in sorted(Severity)] == ["info", "warning", "critical"]
