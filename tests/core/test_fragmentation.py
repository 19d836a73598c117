"""Fragmentation: the two RX 7900 XT's death, foretold before it comes."""

from __future__ import annotations

from supervisor.core.flags import Severity
from supervisor.core.rules.fragmentation import Fragmentation

from .long_stories import LongStory, trained
from .stories import GB

ACTS = Fragmentation(act=True)


def retrying(*retries: int, reserved: int = 23 * GB, allocated: int = 15 * GB) -> LongStory:
    """One reading each two seconds with these counts of retries."""
    timeline = trained(20)
    for count in retries:
        timeline.silence(2).allocator(
            allocated, reserved=reserved, retries=count, inactive_split_bytes=6 * GB, ooms=count // 5
        )
    return timeline


def test_a_full_gpu_whose_allocations_are_retried_again_and_again_acts_and_saves_first() -> None:
    flag = retrying(0, 2, 5).check(ACTS)
    assert flag is not None
    assert (flag.severity, flag.can_save, flag.subject) == (Severity.CRITICAL, True, "rank 0")
    assert flag.message == (
        "rank 0: 5 allocations in 4 s had to be retried after all cached memory was given back, 1 failed; the "
        "allocator holds 23.00 of 24.00 GB, 8.00 GB unused, 6.00 GB of it in pieces of blocks in use"
    )


def test_the_gpu_that_is_in_pieces_is_named_where_a_model_is_split_over_several() -> None:
    timeline = trained()
    for retries in (0, 2, 5):
        timeline.silence(2).allocator(8 * GB, reserved=9 * GB, gpu_index=0)
        timeline.allocator(15 * GB, reserved=23 * GB, retries=retries, gpu_index=1)
    flag = timeline.check(ACTS)
    assert flag is not None
    assert flag.subject == "rank 0, GPU 1"
    assert flag.message.startswith("rank 0, GPU 1: 5 allocations in 4 s had to be retried")


def test_it_reports_by_default() -> None:
    flag = retrying(0, 2, 5).check(Fragmentation())
    assert flag is not None
    assert flag.severity is Severity.WARNING


def test_retries_all_at_once_are_a_kernels_workspace() -> None:
    assert retrying(0, 7, 7, 7).check(ACTS) is None
    assert retrying(0, 1, 2).check(ACTS) is None


def test_a_gpu_with_room_or_memory_in_use_is_not_in_pieces() -> None:
    assert retrying(0, 2, 5, reserved=15 * GB, allocated=9 * GB).check(ACTS) is None
    assert retrying(0, 2, 5, allocated=21 * GB).check(ACTS) is None


def test_retries_of_long_ago_are_over() -> None:
    assert retrying(0, 2, 5).silence(301).check(ACTS) is None
    timeline = retrying(0, 2, 5).silence(300).allocator(15 * GB, reserved=23 * GB, retries=5)
    assert timeline.check(ACTS) is None


def test_without_the_allocators_word_or_with_nonsense_nothing_is_reported() -> None:
    assert trained().silence(5).check(ACTS) is None
    timeline = trained()
    for retries in (0, 2, 5):
        timeline.allocator(15 * GB, reserved=23 * GB, retries=retries, total_bytes=None).silence(2)
        timeline.allocator(True, reserved=23 * GB, retries=retries)
    assert timeline.check(ACTS) is None
