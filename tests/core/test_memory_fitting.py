"""What is known of a GPU's memory decides which remedy against a full one comes first, and by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Phase
from supervisor.core.memory.kept import KeptEstimate, read_kept_estimate
from supervisor.core.memory.shortage import Shortage, read_shortage
from supervisor.core.remedies.causes import OOM_GPU
from supervisor.core.remedies.context import Ended, RemedyContext
from supervisor.core.remedies.effects import changes_of
from supervisor.core.remedies.fitting import Fitting, fit_order, shrink
from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.spec import InForce

from .stories import Life
from .test_remedy import EVERYTHING, patient, trains

GIB = 1 << 30
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.98 GiB of which 256.00 MiB is "
    "free. Including non-PyTorch memory, this process has 15.70 GiB memory in use. Of the allocated memory 14.50 GiB "
    "is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated ..."
)
SPLIT = FULL.replace("Tried to allocate 2.00 GiB", "Tried to allocate 300.00 MiB")
OLDER = (
    "HIP out of memory. Tried to allocate 20.00 MiB (GPU 0; 5.98 GiB total capacity; 5.10 GiB already allocated; "
    "10.00 MiB free; 5.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory ..."
)
KEPT = KeptEstimate(torch="2.12.0", card_bytes=round(15.98 * GIB), configured=64, largest=12, ran=True)
LADDER = ("allocator", "half_batch", "half_batch", "smaller_images", "cpu_profile")


def runs_out(timeline: Life, message: str = FULL) -> de.Retry:
    """Its GPU is full at the same step as before."""
    trains(timeline).says(ev.AgentEvent.EXCEPTION, type="OutOfMemoryError", message=message).exits(1)
    retry = [decision for decision in timeline.decisions if isinstance(decision, de.Retry)][-1]
    if timeline.phase() is Phase.BACKOFF:
        timeline.looks().silence(1)
    return retry


def walk(timeline: Life, message: str = FULL) -> list[str | None]:
    """Take remedies until none is left."""
    taken: list[str | None] = []
    while timeline.phase() is not Phase.FAILED:
        retry = runs_out(timeline, message)
        taken += [retry.remedy] if timeline.phase() is not Phase.FAILED else []
    return taken


# --- what torch reports ---------------------------------------------------------------------------------------------


def test_the_figures_of_a_failed_allocation_are_read_from_messages_of_new_and_old_torch() -> None:
    assert read_shortage(FULL) == Shortage(
        tried_bytes=2 * GIB, free_bytes=256 << 20, unused_bytes=200 << 20, capacity_bytes=round(15.98 * GIB)
    )
    assert read_shortage(OLDER) == Shortage(
        tried_bytes=20 << 20,
        free_bytes=10 << 20,
        unused_bytes=round(5.5 * GIB) - round(5.1 * GIB),
        capacity_bytes=round(5.98 * GIB),
    )


@pytest.mark.parametrize("message", ["", "HIP out of memory. Tried to allocate 20.00 MiB", "HIP error: out of memory"])
def test_a_message_without_the_figures_is_no_shortage(message: str) -> None:
    assert read_shortage(message) is None


def test_what_is_free_in_pieces_is_a_matter_of_the_allocator_and_what_is_not_there_is_none() -> None:
    full, split, older = (read_shortage(message) for message in (FULL, SPLIT, OLDER))
    assert full is not None
    assert split is not None
    assert older is not None
    assert (full.is_beyond_allocator, split.is_beyond_allocator, older.is_beyond_allocator) == (True, False, False)


# --- by what torch reports ------------------------------------------------------------------------------------------


def test_no_setting_of_the_allocator_is_tried_first_where_it_cannot_make_room() -> None:
    timeline = patient()
    retry = runs_out(timeline)
    assert retry.remedy == "half_batch"
    assert "2.15 GB were asked for, 0.27 GB were free and 0.21 GB held in vain" in (retry.why or "")
    assert runs_out(patient(), SPLIT).remedy == "allocator"
    assert runs_out(patient(), "HIP error: out of memory").remedy == "allocator"


def test_nothing_is_left_out_of_the_ladder_for_that() -> None:
    assert walk(patient()) == ["half_batch", "half_batch", "allocator", "smaller_images", "cpu_profile"]


def test_a_training_whose_batch_cannot_be_changed_gets_what_there_is() -> None:
    timeline = patient(context=RemedyContext())
    timeline.started().says(ev.AgentEvent.CLAIMED, torch="2.12.0").steps(1, 60)
    timeline.says(ev.AgentEvent.EXCEPTION, type="OutOfMemoryError", message=FULL).exits(1)
    retry = [decision for decision in timeline.decisions if isinstance(decision, de.Retry)][-1]
    assert (retry.remedy, "no setting" in (retry.why or "")) == ("allocator", False)


# --- by an estimate -------------------------------------------------------------------------------------------------


def test_the_batch_is_shrunk_at_once_to_what_fits_by_the_estimate() -> None:
    timeline = patient(context=replace(EVERYTHING, estimate=KEPT))
    retry = runs_out(timeline)
    assert (retry.remedy, retry.times) == ("half_batch", 3)
    assert "the largest micro-batch that ran has 12 of 64 samples: 8 fit, 64 do not" in (retry.why or "")
    assert (retry.why or "").endswith("half the batch, twice the accumulation, 3 times")
    settings = dict(changes_of(timeline.job.course.in_force, Remedies(scale_lr=True)).settings)
    assert (settings["batch_factor"].value, settings["lr_factor"].value) == (0.125, 0.125)


def test_an_estimate_that_was_wrong_leaves_the_rest_of_the_ladder() -> None:
    assert walk(patient(context=replace(EVERYTHING, estimate=KEPT))) == [
        "half_batch",
        "half_batch",
        "allocator",
        "smaller_images",
        "cpu_profile",
    ]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (replace(KEPT, largest=64), "and it had 64: what else takes memory is not known"),
        (replace(KEPT, largest=0), "no micro-batch fits"),
    ],
)
def test_an_estimate_that_blames_no_batch_leaves_the_order(kept: KeptEstimate, words: str) -> None:
    timeline = patient(context=replace(EVERYTHING, estimate=kept))
    retry = runs_out(timeline, SPLIT)
    assert retry.remedy == "allocator"
    assert words in (retry.why or "")


def test_a_batch_that_would_fit_on_a_free_gpu_is_still_what_makes_room_on_one_that_others_use() -> None:
    retry = runs_out(patient(context=replace(EVERYTHING, estimate=replace(KEPT, largest=64))))
    assert (retry.remedy, retry.times) == ("half_batch", None)
    assert "what else takes memory is not known; 2.15 GB were asked for" in (retry.why or "")


@pytest.mark.parametrize(
    "kept", [replace(KEPT, torch="2.11.0"), replace(KEPT, card_bytes=24 * GIB)], ids=["torch", "gpu"]
)
def test_an_estimate_of_another_torch_or_gpu_says_nothing(kept: KeptEstimate) -> None:
    timeline = patient(context=replace(EVERYTHING, estimate=kept))
    retry = runs_out(timeline, SPLIT)
    assert (retry.remedy, retry.times, "estimate" in (retry.why or "")) == ("allocator", None, False)


def test_an_estimate_says_nothing_of_the_memory_of_the_host() -> None:
    ended = Ended(cause="oom_host", torch_version="2.12.0", shortage=read_shortage(FULL))
    order = ("fewer_workers", "half_batch")
    assert fit_order(order, ended, RemedyContext(estimate=KEPT), (), 0.5) == Fitting(order=order)


@given(
    order=st.permutations(LADDER),
    largest=st.integers(0, 200),
    configured=st.integers(1, 200),
    shrunk=st.integers(0, 9),
    factor=st.sampled_from([0.25, 0.5, 0.75]),
    message=st.sampled_from([FULL, SPLIT, OLDER]),
    is_kept=st.booleans(),
)
def test_no_remedy_is_ever_left_out_and_no_batch_shrunk_further_than_it_takes(
    *, order: list[str], largest: int, configured: int, shrunk: int, factor: float, message: str, is_kept: bool
) -> None:
    shortage = read_shortage(message)
    assert shortage is not None
    kept = replace(KEPT, largest=largest, configured=configured, card_bytes=shortage.capacity_bytes)
    ended = Ended(cause=OOM_GPU, torch_version="2.12.0", shortage=shortage)
    held = [InForce(remedy="half_batch", cause=OOM_GPU, attempt=2, times=shrunk)] if shrunk else []
    fitting = fit_order(tuple(order), ended, RemedyContext(estimate=kept if is_kept else None), held, factor)
    assert sorted(fitting.order) == sorted(order)
    if fitting.times is not None:
        assert fitting.order[0] == "half_batch"
        assert shrink(configured, factor, shrunk + fitting.times - 1) > largest


# --- what was kept --------------------------------------------------------------------------------------------------


def test_a_kept_estimate_is_read_as_it_was_and_no_part_of_one() -> None:
    facts: dict[str, object] = {
        "torch": "2.12.0",
        "card_bytes": KEPT.card_bytes,
        "configured": 64,
        "largest": 12,
        "ran": True,
    }
    assert read_kept_estimate(facts) == KEPT
    for name in ("torch", "card_bytes", "configured", "largest"):
        assert read_kept_estimate({**facts, name: None}) is None
