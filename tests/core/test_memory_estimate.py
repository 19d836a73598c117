"""What a training needs is reckoned from the micro-batches that were probed, with its error, and never guessed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from supervisor.core.memory.estimate import (
    CONTEXT_BYTES,
    GAPS,
    LEAST_SLACK,
    LOGITS_HELD,
    MEASURED,
    PREDICTED,
    SLACK,
    WITHOUT_GPU,
    WORKSPACE_BYTES,
    estimate,
    find_proof_room,
    fit_line,
    next_probe,
    prove_largest,
)
from supervisor.core.memory.points import Point, read_point

GIB = 1 << 30
MIB = 1 << 20
FIXED, EACH = 4 * GIB, 100 * MIB


def point(batch: int | None, **facts: object) -> Point:
    """A network of 1 GiB under AdamW that takes 100 MiB a sample, probed on a GPU of 24 GiB."""
    graph = FIXED + EACH * (batch or 0)
    probed = Point(
        device="cuda", batch=batch, configured=batch, weights_bytes=GIB, gradient_bytes=GIB, optimizer_bytes=2 * GIB,
        graph_bytes=graph, update_bytes=5 * GIB, reserved_bytes=graph + 200 * MIB, other_bytes=500 * MIB,
        card_bytes=24 * GIB,
    )  # fmt: skip
    return replace(probed, **facts)  # type: ignore[arg-type]  # fields of Point, by the tests below


def test_what_was_probed_is_returned_as_it_was_with_a_small_error() -> None:
    found = estimate([point(16), point(32)], 32, None)
    assert found.bytes == FIXED + 32 * EACH + 200 * MIB + 500 * MIB
    assert found.how == "measured"
    assert found.fits is True
    assert (found.low, found.high) == (
        round(found.bytes * (1 - MEASURED.below)),
        round(found.bytes * (1 + MEASURED.above)),
    )
    assert found.parts.total == found.bytes, "nothing of the peak is left out, and nothing is counted twice"
    assert found.parts.gradients == GIB
    assert estimate([point(32), point(16)], 32, None) == found, "the order of the probes is of no account"


def test_another_micro_batch_lies_on_the_line_with_a_larger_error() -> None:
    found = estimate([point(16), point(32)], 128, None)
    assert found.how == "predicted"
    assert found.parts.activations == 128 * EACH
    assert found.high == round(found.bytes * (1 + PREDICTED.above))


def test_an_allocator_that_holds_nothing_in_vain_for_few_samples_does_for_more() -> None:
    few = [point(batch, reserved_bytes=FIXED + EACH * batch) for batch in (16, 64)]
    slack = {batch: estimate(few, batch, None).parts.slack for batch in (16, 32, 64, 128)}
    assert slack == {16: 0, 32: 0, 64: 0, 128: round(LEAST_SLACK * (FIXED + 128 * EACH))}
    much = [point(batch, reserved_bytes=2 * (FIXED + EACH * batch)) for batch in (16, 64)]
    assert estimate(much, 128, None).parts.slack == FIXED + 128 * EACH, "as much as was measured"


def test_an_allocator_holds_more_in_vain_for_each_further_block_of_logits() -> None:
    """A Qwen3 of 12 layers held 1.4 GiB in vain with four sequences and 3.1 GiB with eight, 12 and 20 % of it."""
    facts, each = {"largest_output_columns": 50_000}, 50 * MIB
    few = [point(batch, **facts, largest_output_single_bytes=batch * each) for batch in (16, 32)]
    slack = {batch: estimate(few, batch, None).parts.slack for batch in (16, 32, 64, 128)}
    assert slack[16] == slack[32] == 200 * MIB
    assert [slack[batch] - slack[32] for batch in (64, 128)] == [round(0.8 * 32 * each), round(0.8 * 96 * each)]
    narrow = [replace(known, largest_output_columns=1000) for known in few]
    assert estimate(narrow, 64, None).parts.slack == round(LEAST_SLACK * (FIXED + 64 * EACH))
    much = [replace(known, reserved_bytes=2 * known.graph_bytes) for known in few]
    assert estimate(much, 64, None).parts.slack == FIXED + 64 * EACH, "that is more"


def test_probed_without_a_gpu_a_smaller_micro_batch_is_the_largest() -> None:
    """Its workspace and half of the larger error are kept free."""
    largest = {}
    for device in ("cuda", "cpu"):
        points = [point(16, device=device), point(32, device=device)]
        found = estimate(points, 32, 24 * GIB)
        largest[device] = found.largest_micro_batch
    room = (24 * GIB - 500 * MIB) / (1 + GAPS)
    assert largest["cuda"] == int((room - FIXED) // EACH)
    room = (24 * GIB - 500 * MIB - WORKSPACE_BYTES) / (1 + GAPS + WITHOUT_GPU.above / 2)
    assert largest["cpu"] == int((room - FIXED) // EACH)


def test_the_largest_micro_batch_fits_and_the_one_after_a_tenth_more_does_not() -> None:
    found = estimate([point(16), point(32)], 32, None)
    largest = found.largest_micro_batch
    assert largest is not None
    room = 24 * GIB - 500 * MIB
    assert FIXED + largest * EACH < room
    assert FIXED + 1.1 * largest * EACH > room


def test_what_cannot_fit_is_refused_and_what_hangs_on_the_error_is_left_open() -> None:
    assert estimate([point(128), point(256)], 256, None).fits is False
    near = estimate([point(16), point(32)], 190, None)
    assert near.fits is None, f"{near.bytes} of {near.card_bytes} is within the error"


def test_an_update_that_does_not_fit_fits_at_no_micro_batch() -> None:
    small = [point(1), point(2)]
    assert estimate(small, 2, 5 * GIB).largest_micro_batch == 0
    with_an_update = [replace(probed, update_bytes=20 * GIB, graph_bytes=GIB * (probed.batch or 0)) for probed in small]
    assert estimate(with_an_update, 2, 24 * GIB).largest_micro_batch != 0
    assert estimate(small, 2, None).limited_by == "the optimizer's update"


def test_without_a_gpu_an_allocator_is_taken_to_hold_more_in_vain_for_wide_logits() -> None:
    def find_slack(batch: int, columns: int) -> int:
        wide = {"largest_output_columns": columns, "largest_output_single_bytes": GIB}
        counted = [point(8), point(16, device="cpu", reserved_bytes=None, other_bytes=None, **wide)]
        return estimate(counted, batch, None).parts.slack - WORKSPACE_BYTES

    assert find_slack(16, 32_000) == round(LOGITS_HELD * GIB)
    assert find_slack(32, 32_000) == round(LOGITS_HELD * 2 * GIB), "of twice the samples logits are twice as large"
    assert find_slack(32, 1000) == round(SLACK * (FIXED + 32 * EACH))


def test_wide_outputs_are_named_as_logits() -> None:
    wide = {"largest_output_bytes": 2 * GIB, "largest_output_columns": 151_936}
    assert estimate([point(32), point(64, **wide)], 64, None).limited_by == "logits"
    assert estimate([point(32), point(64)], 64, None).limited_by == "activations"


def test_one_micro_batch_alone_tells_nothing_of_another() -> None:
    alone = [point(None)]
    found = estimate(alone, None, None)
    assert found.largest_micro_batch is None
    with pytest.raises(ValueError, match="only one micro-batch was probed"):
        estimate(alone, 8, None)
    assert fit_line([point(8), point(8)]) is None


def test_without_a_gpu_context_and_workspace_are_added_and_no_card_means_no_verdict() -> None:
    unknown = {"device": "cpu", "reserved_bytes": None, "other_bytes": None, "card_bytes": None}
    found = estimate([point(2, **unknown), point(4, **unknown)], 64, None)
    assert found.fits is None
    assert found.largest_micro_batch is None
    assert found.parts.other == CONTEXT_BYTES
    assert found.parts.slack > WORKSPACE_BYTES
    assert estimate([point(2, **unknown), point(4, **unknown)], 64, 80 * GIB).fits is True


@pytest.mark.parametrize(("batch", "reserved"), [(32, 945_815_552), (64, 1_375_731_712)])
def test_a_half_frozen_resnet_counted_at_two_and_four_pictures_takes_what_it_took_on_an_h200(
    batch: int, reserved: int
) -> None:
    """Its activations are few, so that what libraries hold for either pass is a tenth of all."""
    small = point(
        2, device="cpu", reserved_bytes=None, other_bytes=None, card_bytes=None, weights_bytes=96_448_416,
        gradient_bytes=96_448_416, optimizer_bytes=192_896_832, graph_bytes=402_656_768, forward_bytes=367_640_576,
        backward_bytes=402_656_768, update_bytes=489_520_128,
    )  # fmt: skip
    large = replace(
        small, batch=4, graph_bytes=423_931_392, forward_bytes=391_548_928, backward_bytes=423_931_392,
        update_bytes=490_724_352,
    )  # fmt: skip
    counted = [small, large]
    found = estimate(counted, batch, None)
    assert found.bytes - found.parts.other == pytest.approx(reserved, rel=0.08)


def test_with_few_samples_the_forward_pass_peaks_and_with_many_the_backward_pass() -> None:
    """In the forward pass the gradients of the step before are there; the backward pass takes logits three times."""

    def counted(batch: int) -> Point:
        forward, backward = FIXED + EACH * batch, FIXED - GIB + 2 * EACH * batch
        peak = max(forward, backward)
        return point(batch, forward_bytes=forward, backward_bytes=backward, graph_bytes=peak)

    line = fit_line([counted(2), counted(4)])
    assert line is not None
    assert line.at(8) == FIXED + 8 * EACH
    assert line.at(100) == FIXED - GIB + 200 * EACH
    assert line.find_largest(FIXED + 9 * EACH) == 9
    assert line.find_largest(FIXED - GIB + 200 * EACH) == 100
    found = estimate([counted(2), counted(4)], 100, None)
    assert found.bytes - found.parts.other - found.parts.slack == FIXED - GIB + 200 * EACH
    assert fit_line([counted(2), point(4)]) == fit_line([point(2), point(4)]), "one pass alone is no line"


def test_a_further_probe_takes_most_of_the_card_or_is_not_worth_it() -> None:
    wanted = next_probe([point(8), point(16)], 24 * GIB)
    assert wanted is not None
    assert 0.55 < (FIXED + wanted * EACH) / (23.5 * GIB) < 0.61
    assert next_probe([point(64), point(128)], 24 * GIB) is None


def test_a_single_probe_gives_a_further_one_as_if_its_samples_took_all_but_weights_and_optimizer_state() -> None:
    """That is too much a sample, so the further one is smaller than the card allows."""
    each = (FIXED + 8 * EACH - 3 * GIB) / 8
    assert next_probe([point(8)], 24 * GIB) == int((0.6 * (24 * GIB - 500 * MIB) - 3 * GIB) / each)
    assert next_probe([point(8, graph_bytes=3 * GIB)], 24 * GIB) is None, "samples that take nothing show no line"
    little = next_probe([point(4096, graph_bytes=3 * GIB + 512)], 24 * GIB)
    assert little is not None, "one block of the allocator for all samples is something"
    assert little > 4096


@pytest.mark.parametrize(
    ("most", "tried", "proven"),
    [
        pytest.param(200, [102], 102, id="more than reckoned runs"),
        pytest.param(100, [102, 100], 100, id="as reckoned"),
        pytest.param(93, [102, 100, 96, 92], 92, id="less"),
        pytest.param(91, [102, 100, 96, 92, 87], 87, id="much less, and 93 % of what runs or more"),
        pytest.param(86, [102, 100, 96, 92, 87, 81], 81, id="the same of the last that is tried"),
        pytest.param(60, [102, 100, 96, 92, 87, 81, 32], 32, id="none of those tried: what was probed, once it ran"),
        pytest.param(20, [102, 100, 96, 92, 87, 81, 32, 16], 16, id="what was probed on a larger GPU does not run"),
        pytest.param(9, [102, 100, 96, 92, 87, 81, 32, 16], 0, id="none runs"),
    ],
)
def test_the_largest_micro_batch_is_one_that_was_seen_to_run(most: int, tried: list[int], proven: int) -> None:
    """Of a decoder's 14 that were reckoned 13 ran: how much an allocator cannot join is seen by running alone."""
    seen: list[int] = []

    def runs(batch: int) -> bool:
        seen.append(batch)
        return batch <= most

    found = prove_largest(100, [16, 32], runs)
    assert (seen, found) == (tried, proven)
    assert prove_largest(0, [], lambda _: True) == 0, "nothing is tried where none fits"
    assert prove_largest(2, [], lambda batch: batch == 1) == 1, "of few each smaller one is tried"


@pytest.mark.parametrize(
    ("most", "rehearsed", "tried"),
    [
        (14, [14, 15], [14]),
        (15, [14, 15, 16], [15]),
        (20, [14, 15, 16], [16]),
        (12, [14], [13, 12]),
    ],
)
def test_what_does_not_run_in_a_rehearsal_is_not_tried(most: int, rehearsed: list[int], tried: list[int]) -> None:
    seen: list[int] = []
    begun: list[int] = []

    def note(begun: list[int], batch: int) -> bool:
        begun.append(batch)
        return batch <= most

    assert prove_largest(15, [8], partial(note, seen), partial(note, begun)) == min(most, 16)
    assert (begun, seen) == (rehearsed, tried)


def test_once_a_rehearsal_is_no_longer_possible_all_that_is_left_is_tried() -> None:
    rehearsed: list[int] = []

    def rehearse(batch: int) -> bool | None:
        rehearsed.append(batch)
        return True if batch < 15 else None

    assert prove_largest(15, [8], lambda batch: batch <= 14, rehearse) == 14
    assert rehearsed == [14, 15]


def test_of_22_sequences_of_bert_that_were_reckoned_for_12_gib_19_run_in_a_new_process_and_are_found() -> None:
    """From 20 on a block of logits, 1.2 GiB, finds no place between what the first update left in 12 GiB."""
    assert prove_largest(22, [8], lambda batch: batch <= 19) == 19


def test_a_proof_without_some_of_cudnns_kernels_has_to_do_with_less_memory() -> None:
    points, free = [point(16), point(32, other_bytes=GIB)], 23 * GIB
    assert find_proof_room(points, 24 * GIB, is_own_card=True) is None, "the GPU's own memory is the limit"
    assert find_proof_room(points, 24 * GIB, is_own_card=False) == free
    without = [point(16, without_cudnn=True), points[1]]
    for is_own_card in (True, False):
        assert find_proof_room(without, 24 * GIB, is_own_card=is_own_card) == round(0.99 * free)
        attention = [point(16, without_cudnn_attention=True), points[1]]
        assert find_proof_room(attention, 24 * GIB, is_own_card=is_own_card) == round(0.998 * free)


def test_a_report_that_is_damaged_is_no_measurement() -> None:
    good: dict[str, object] = {
        "weights_bytes": 1,
        "gradient_bytes": 1,
        "optimizer_bytes": 2,
        "graph_bytes": 5,
        "update_bytes": 6,
    }
    read = read_point({**good, "batch": 4, "largest_output": {"bytes": 7, "columns": 3}, "device": "cuda"})
    assert isinstance(read, Point)
    assert (read.forward_bytes, read.backward_bytes) == (None, None)
    passes = read_point({**good, "forward_bytes": 4, "backward_bytes": 5})
    assert isinstance(passes, Point)
    assert (passes.forward_bytes, passes.backward_bytes) == (4, 5)
    assert (read.batch, read.largest_output_bytes, read.device) == (4, 7, "cuda")
    assert isinstance(read_point({**good, "graph_bytes": 1 << 60}), Point)
    assert read_point({**good, "graph_bytes": -1}) == "the report of the probe has no graph_bytes"
    assert read_point({**good, "graph_bytes": 1 << 61}) == "the report of the probe has no graph_bytes"
    assert read_point({**good, "problem": "CUDA out of memory"}) == "CUDA out of memory"
    beyond = read_point({**good, "largest_output": {"bytes": 1 << 61, "columns": 1 << 61}, "shapes": 1 << 61})
    assert isinstance(beyond, Point)
    assert (beyond.largest_output_bytes, beyond.largest_output_columns, beyond.shapes) == (0, 0, 1)
