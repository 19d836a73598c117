"""Memory of the dead: the next attempt waits for it, but not for ever."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core.job import Limits, Phase
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.gpu_memory import GpuMemory, still_held

from .stories import GPU, Life, life

IDLE, HELD = 400_000_000, 3_900_000_000
OTHER = "0000:0b:00.0"


def taken(used_bytes: int, gpu: str = GPU) -> RemedyContext:
    return RemedyContext(memory=(GpuMemory(gpu=gpu, used_bytes=used_bytes),))


def crashed(before: RemedyContext, limits: Limits | None = None) -> Life:
    """A life whose second attempt was launched with `before`, and crashed."""
    timeline = life(limits=limits).training().exits(1)
    timeline.context = before
    timeline.looks().training(200)
    return timeline


def ended(timeline: Life, context: RemedyContext) -> Life:
    timeline.context = context
    timeline.exits(1).silence(5).looks().read_decisions()
    return timeline


def test_nothing_is_launched_while_a_dead_process_holds_memory_and_at_once_when_it_is_freed() -> None:
    timeline = ended(crashed(taken(IDLE)), taken(HELD))
    assert timeline.silence(30).read_decisions() == []
    assert timeline.phase() is Phase.BACKOFF
    timeline.context = taken(IDLE + 200_000_000)
    assert timeline.silence(1).read_decisions() == ["Launch"]


def test_after_the_limit_it_is_launched_all_the_same_and_says_how_much_is_held() -> None:
    timeline = ended(crashed(taken(IDLE)), taken(HELD))
    timeline.silence(60)
    launch = timeline.last
    assert isinstance(launch, de.Launch)
    assert "3.5 GB of 0000:0a:00.0 still held 60 s after the previous attempt ended" in launch.reason


def test_a_wait_of_less_than_a_second_is_one() -> None:
    timeline = crashed(taken(IDLE), Limits(gpu_memory_release_s=0.5, budget=Budget(backoff_s=(0.0,))))
    timeline.context = taken(HELD)
    timeline.exits(1).looks().read_decisions()
    assert timeline.silence(0.4).read_decisions() == []
    assert timeline.silence(0.1).read_decisions() == ["Launch"]


def test_what_nobody_read_is_not_waited_for() -> None:
    for before, after in (
        (taken(IDLE), RemedyContext()),
        (RemedyContext(), taken(HELD)),
        (taken(IDLE), taken(HELD, OTHER)),
    ):
        timeline = crashed(before)
        timeline.context = after
        assert timeline.exits(1).silence(5).looks().phase() is Phase.STARTING


def test_no_limit_is_no_wait() -> None:
    timeline = crashed(taken(IDLE), Limits(gpu_memory_release_s=0.0))
    timeline.context = taken(HELD)
    assert timeline.exits(1).silence(5).looks().phase() is Phase.STARTING


def test_each_gpu_is_measured_against_itself() -> None:
    before = (GpuMemory(gpu=GPU, used_bytes=IDLE), GpuMemory(gpu=OTHER, used_bytes=HELD))
    now = tuple(replace(earlier, used_bytes=HELD) for earlier in before)
    assert still_held(before, now) == (GpuMemory(gpu=GPU, used_bytes=HELD - IDLE),)
