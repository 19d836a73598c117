"""Straggler rank: behind, or the one for whose data all wait."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import StepRecord
from supervisor.core.rules.advisory.straggler_rank import StragglerRank

from .long_stories import LongStory, trained
from .stories import JOB

RULE = StragglerRank(window_s=120.0)


def ranks(seconds: int, *, waits: tuple[float | None, ...], until: int | None = None) -> LongStory:
    """Ranks step together each second, rank n waits `waits[n]` of it; the last stops after `until` of them."""
    timeline = trained(1)
    for step in range(2, seconds + 2):
        timeline.silence(1)
        for rank, wait_s in enumerate(waits):
            if until is not None and rank == len(waits) - 1 and step > until:
                continue
            record = StepRecord(at=timeline.now, step=step, loss=1.0, data_wait_s=wait_s)
            timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(record,), rank=rank))
    return timeline


def test_the_rank_that_waits_for_data_alone_is_reported() -> None:
    flag = ranks(200, waits=(0.05, 0.05, 0.6)).check(RULE)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "rank 2")
    assert flag.message == "rank 2 waits for data 60% of its time, the others 5%: they all wait with it"


def test_all_waiting_alike_is_not_one_rank() -> None:
    assert ranks(200, waits=(0.5, 0.5, 0.6)).check(RULE) is None


def test_a_short_time_is_not_enough() -> None:
    assert ranks(100, waits=(0.05, 0.05, 0.6)).check(RULE) is None


def test_a_rank_that_falls_behind_is_reported() -> None:
    flag = ranks(100, waits=(None, None), until=60).check(RULE)
    assert flag is not None
    assert flag.subject == "rank 1"
    assert flag.message == "rank 1 is at step 60 since 41 s, the first at 101"


def test_a_few_steps_or_seconds_behind_is_not() -> None:
    assert ranks(100, waits=(None, None), until=95).check(RULE) is None
    assert ranks(100, waits=(None, None), until=75).check(RULE) is None


def test_a_rank_that_catches_up_interrupts() -> None:
    timeline = ranks(100, waits=(None, None), until=60)
    assert timeline.step(101, rank=1).check(RULE) is None


def test_one_process_or_silent_ranks_say_nothing() -> None:
    assert trained().silence(600).check(RULE) is None
    assert ranks(300, waits=(None, None)).check(RULE) is None
