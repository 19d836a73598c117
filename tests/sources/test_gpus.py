"""The watch over the sources: best answer, fences, rest, and one that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from supervisor.config.settings import SourceName
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.gpus import REST_S, SOURCES, GpuWatch
from supervisor.sources.gpu.source import SourceSilentError

if TYPE_CHECKING:
    from amdgpu_tree import AmdgpuTree

NOW = Moment(100.0, 1_700_000_000.0)


class Fake:
    """A source that does what its function says."""

    def __init__(
        self, name: str, answer: Callable[[Moment], tuple[GpuReading, ...]], wait_s: float = 5.0, vendor: str = "amd"
    ) -> None:
        self.name, self.answer, self.wait_s, self.vendor = name, answer, wait_s, vendor
        self.interval_s, self.deadline_s, self.asked, self.closed = 0.0, 5.0, 0, False

    def read(self, now: Moment) -> tuple[GpuReading, ...]:
        self.asked += 1
        return self.answer(now)

    def close(self) -> None:
        self.closed = True


def reading(gpu: str, source: str, at: Moment, **values: float | str | None) -> GpuReading:
    return GpuReading(at=at, gpu=gpu, source=source, **values)  # type: ignore[arg-type]  # names and types by hand


def broken(_: Moment) -> tuple[GpuReading, ...]:
    raise RuntimeError("boom")


def silent(_: Moment) -> tuple[GpuReading, ...]:
    raise SourceSilentError("not installed")


def test_the_first_source_that_answers_is_the_only_one_asked() -> None:
    first = Fake("first", lambda now: (reading("a", "first", now, edge_c=50.0),))
    second = Fake("second", lambda now: (reading("a", "second", now, edge_c=51.0),))
    watch = GpuWatch([first, second])
    assert [seen.source for seen in watch.read(NOW)] == ["first"]
    assert (first.asked, second.asked) == (1, 0)
    assert [(status.name, status.answering) for status in watch.status()] == [("first", True), ("second", False)]
    watch.close()


def test_a_source_that_raises_is_fenced_and_the_next_one_answers() -> None:
    watch = GpuWatch([Fake("first", broken), Fake("second", lambda now: (reading("a", "second", now, edge_c=51.0),))])
    assert [seen.source for seen in watch.read(NOW)] == ["second"]
    assert watch.status()[0].detail == "RuntimeError: boom"
    watch.close()


def test_one_vendor_s_gpus_do_not_silence_the_other_s_sources() -> None:
    amd = Fake("sysfs", lambda now: (reading("a", "sysfs", now, edge_c=50.0),))
    spare = Fake("rocm-smi", lambda now: (reading("a", "rocm-smi", now, edge_c=51.0),))
    nvidia = Fake("nvml", lambda now: (reading("n", "nvml", now, edge_c=40.0),), vendor="nvidia")
    last = Fake("nvidia-smi", lambda now: (reading("n", "nvidia-smi", now, edge_c=41.0),), vendor="nvidia")
    watch = GpuWatch([amd, spare, nvidia, last])
    assert [(seen.gpu, seen.source) for seen in watch.read(NOW)] == [("a", "sysfs"), ("n", "nvml")]
    assert (spare.asked, last.asked) == (0, 0)
    nvidia.answer = broken
    assert [(seen.gpu, seen.source) for seen in watch.read(NOW.plus(1))] == [("a", "sysfs"), ("n", "nvidia-smi")]
    watch.close()


def test_each_gpu_has_the_best_source_that_measures_it() -> None:
    first = Fake("first", lambda now: (reading("a", "first", now, edge_c=50.0), reading("b", "first", now)))
    second = Fake("second", lambda now: tuple(reading(gpu, "second", now, edge_c=51.0) for gpu in "abc"))
    watch = GpuWatch([first, second])
    assert [(seen.gpu, seen.source) for seen in watch.read(NOW)] == [("a", "first"), ("b", "second"), ("c", "second")]
    watch.close()


def test_a_sleeping_gpu_is_an_answer_and_no_reason_to_ask_on() -> None:
    first = Fake("first", lambda now: (reading("a", "first", now, runtime_status="suspended"),))
    second = Fake("second", lambda now: (reading("a", "second", now, edge_c=51.0),))
    watch = GpuWatch([first, second])
    assert [seen.source for seen in watch.read(NOW)] == ["first"]
    assert second.asked == 0
    watch.close()


def test_a_source_that_fails_twice_rests_and_is_tried_again() -> None:
    source = Fake("first", silent)
    watch = GpuWatch([source])
    for second in range(10):
        assert watch.read(NOW.plus(second)) == ()
    assert source.asked == 2
    assert watch.status()[0].detail == "not installed"
    source.answer = lambda now: (reading("a", "first", now, edge_c=50.0),)
    assert len(watch.read(NOW.plus(1 + REST_S))) == 1
    assert watch.status()[0].answering
    watch.close()


def test_a_source_is_not_asked_more_often_than_it_wants() -> None:
    source = Fake("first", lambda now: (reading("a", "first", now, edge_c=50.0),))
    source.interval_s = 10.0
    watch = GpuWatch([source])
    seen = [len(watch.read(NOW.plus(second))) for second in range(21)]
    assert source.asked == 3
    assert sum(seen) == 3
    watch.close()


def test_between_a_slow_source_s_answers_the_next_one_is_left_alone() -> None:
    slow = Fake("slow", lambda now: (reading("a", "slow", now, edge_c=50.0),), wait_s=0.0)
    slow.interval_s = 10.0
    last = Fake("last", lambda now: (reading("a", "last", now, edge_c=51.0),))
    watch = GpuWatch([slow, last])
    watch.read(NOW)
    end = time.perf_counter() + 60
    while not watch.status()[0].answering:
        assert time.perf_counter() < end
    asked = last.asked
    seen = [found.source for second in range(1, 9) for found in watch.read(NOW.plus(second))]
    assert "last" not in seen
    assert (slow.asked, last.asked) == (1, asked)
    watch.close()


@pytest.mark.alone(reason="compares a duration with a limit")
def test_a_source_that_hangs_delays_one_round_and_no_later_one() -> None:
    release = threading.Event()

    def hang(now: Moment) -> tuple[GpuReading, ...]:
        release.wait(120)
        return (reading("a", "first", now, edge_c=50.0),)

    first = Fake("first", hang, wait_s=0.2)
    watch = GpuWatch([first, Fake("second", lambda now: (reading("a", "second", now, edge_c=51.0),))])
    assert [seen.source for seen in watch.read(NOW)] == ["second"]
    started = time.perf_counter()
    for second in range(1, 8):
        assert [seen.source for seen in watch.read(NOW.plus(second))] == ["second"]
    assert time.perf_counter() - started < 0.15
    assert first.asked == 1
    assert watch.status()[0].detail == "no answer for 7 s"
    release.set()
    end = time.perf_counter() + 60
    while not watch.status()[0].answering:
        assert time.perf_counter() < end
    watch.close()


def test_closing_closes_the_sources() -> None:
    source = Fake("first", silent)
    watch = GpuWatch([source])
    watch.read(NOW)
    watch.close()
    assert source.closed


def test_the_simulated_machine_through_the_default_sources(tree: AmdgpuTree) -> None:
    watch = GpuWatch(sys_root=tree.sys_root)
    (seen,) = watch.read(NOW)
    assert (seen.gpu, seen.source, seen.junction_c) == ("0000:0a:00.0", "sysfs", 79)
    sysfs, *others = watch.status()
    assert (sysfs.answering, sysfs.detail) == (True, "0000:0a:00.0 navi10")
    assert sysfs.cost_s is not None
    assert [other.detail for other in others[:3]] == ["not queried yet"] * 3
    watch.close()


def test_a_machine_without_a_gpu_has_no_readings_and_reasons(tmp_path: Path) -> None:
    watch = GpuWatch(["sysfs"], sys_root=tmp_path)
    assert watch.read(NOW) == ()
    assert "no GPU of the amdgpu driver" in watch.status()[0].detail
    watch.close()


def test_a_name_that_is_no_source_is_refused_with_the_choice() -> None:
    with pytest.raises(ValueError, match="'nvsmi' is not a source; available: sysfs, rocm-smi, amd-smi"):
        GpuWatch(["nvsmi"])
    assert list(SOURCES) == list(get_args(SourceName))
