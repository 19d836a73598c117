"""What the agent tells, taken in: bounded, and nonsense is left out."""

from __future__ import annotations

import math

import pytest

from supervisor.core import events as ev
from supervisor.core.attempt.agent_reports import (
    ALLOCATIONS_KEPT,
    EVERY_MAX_S,
    HOLDERS_KEPT,
    LOADERS_KEPT,
    Holder,
    Saving,
)
from supervisor.core.foreign_values import BYTES_MAX, EPOCH_MAX, PID_MAX

from .long_stories import long_story
from .stories import GB


def test_words_full_of_nonsense_are_left_out() -> None:
    timeline = long_story()
    timeline.rank_says(ev.AgentEvent.ALLOCATOR, reserved_bytes="much", allocated_bytes=None)
    timeline.rank_says(ev.AgentEvent.EPOCH_END, epoch="first", metrics=[1, 2])
    timeline.rank_says(ev.AgentEvent.WORKERS, loader=None, pids="51")
    timeline.rank_says(ev.AgentEvent.PRECISION, asked=16, used=None)
    timeline.rank_says(ev.AgentEvent.CLAIMED, rank=10_000)
    known = timeline.history.reports
    found = (known.allocations, list(known.epochs), known.loaders, known.rank_pids, known.precision)
    assert found == ({}, [], {}, {}, None)


def test_numbers_of_an_epoch_that_are_none_are_not_taken_for_zero() -> None:
    timeline = long_story().epoch_ends(0, fitness=None, metrics={"a": 1, "b": None, "c": "x", "d": True, "e": 10**400})
    (epoch,) = timeline.history.reports.epochs
    assert epoch.fitness is not None
    assert math.isnan(epoch.fitness)
    assert epoch.metrics == {"a": 1.0}
    assert (epoch.val_loss, epoch.train_loss, epoch.merit) == (None, None, None)


def test_it_is_bounded() -> None:
    timeline = long_story()
    for number in range(ALLOCATIONS_KEPT + 50):
        timeline.silence(1).allocator(GB, reserved=2 * GB, rank=0)
        timeline.allocator(GB, reserved=2 * GB, rank=number)
        timeline.rank_says(ev.AgentEvent.WORKERS, loader=number, pids=[number + 10])
    known = timeline.history.reports
    assert len(known.allocations[Holder(0)]) == ALLOCATIONS_KEPT
    assert len(known.allocations) <= 65
    for gpu in range(100):
        for rank in range(60):
            timeline.allocator(GB, reserved=2 * GB, rank=rank, gpu_index=gpu)
    assert len(known.allocations) == HOLDERS_KEPT
    assert len(known.loaders) <= LOADERS_KEPT


def test_a_rank_is_named_with_its_gpu_only_where_it_holds_memory_on_several() -> None:
    timeline = long_story().allocator(GB, reserved=2 * GB, rank=0, gpu_index=0)
    timeline.allocator(GB, reserved=2 * GB, rank=1, gpu_index=1).allocator(GB, reserved=2 * GB, rank=1, gpu_index=2)
    known = timeline.history.reports
    assert [known.name_holder(holder) for holder in known.allocations] == ["rank 0", "rank 1, GPU 1", "rank 1, GPU 2"]


def test_the_failure_of_a_save_that_was_asked_for_is_over_with_the_next_that_succeeds() -> None:
    timeline = long_story().rank_says(ev.AgentEvent.SAVE_FAILED, error="OSError: no space left on device")
    assert timeline.history.reports.saving.asked_error == "OSError: no space left on device"
    timeline.rank_says(ev.AgentEvent.CHECKPOINT_SAVED, requested=True)
    assert timeline.history.reports.saving == Saving()


@pytest.mark.parametrize(("size", "known"), [(BYTES_MAX, BYTES_MAX), (BYTES_MAX + 1, None), (-1, None)])
def test_a_size_that_no_memory_has_is_not_known(size: int, known: int | None) -> None:
    timeline = long_story().allocator(GB, reserved=2 * GB, total_bytes=size, inactive_split_bytes=size)
    (allocation,) = timeline.history.reports.allocations[Holder(0)]
    assert (allocation.total_bytes, allocation.inactive_split_bytes) == (known, known)
    assert long_story().allocator(size, reserved=2 * GB).history.reports.allocations.keys() == (
        {Holder(0)} if known is not None else set()
    )


def test_counts_that_are_not_reported_are_none_made() -> None:
    timeline = long_story().allocator(GB, reserved=2 * GB, retries=None, ooms=None)  # type: ignore[arg-type] # not sent
    (allocation,) = timeline.history.reports.allocations[Holder(0)]
    assert (allocation.retries, allocation.ooms, allocation.unused_bytes) == (0, 0, GB)


@pytest.mark.parametrize(("every_s", "known"), [(EVERY_MAX_S, EVERY_MAX_S), (EVERY_MAX_S + 1, 60.0), (0.0, 60.0)])
def test_an_interval_of_snapshots_that_is_none_leaves_the_one_before(every_s: float, known: float) -> None:
    timeline = long_story().rank_says(ev.AgentEvent.SNAPSHOTS, every_s=60.0)
    assert timeline.rank_says(ev.AgentEvent.SNAPSHOTS, every_s=every_s).history.reports.saving.every_s == known


@pytest.mark.parametrize(("pid", "known"), [(1, (1,)), (PID_MAX, (PID_MAX,)), (0, ()), (PID_MAX + 1, ())])
def test_a_worker_has_a_number_that_a_process_can_have(pid: int, known: tuple[int, ...]) -> None:
    timeline = long_story().rank_says(ev.AgentEvent.WORKERS, loader=1, pids=[pid], training=True)
    loaders = timeline.history.reports.loaders.values()
    assert [pid for loader in loaders for pid in loader.pids] == list(known)


@pytest.mark.parametrize(("epoch", "kept"), [(EPOCH_MAX, [EPOCH_MAX]), (EPOCH_MAX + 1, [])])
def test_an_epoch_that_no_training_reaches_is_left_out(epoch: int, kept: list[int]) -> None:
    timeline = long_story().epoch_ends(epoch, fitness=0.5)
    assert [item.epoch for item in timeline.history.reports.epochs] == kept
