"""What an allocator holds at another micro-batch is reckoned by taking the blocks of a training in other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.memory.allocator import MIB, UNIT_BYTES, Allocator
from supervisor.core.memory.estimate import WORKSPACE_BYTES, estimate
from supervisor.core.memory.points import Point, read_trace
from supervisor.core.memory.traces import predict_reserved

GIB = 1 << 30


def hold(*sizes: int, returned: Sequence[int] = (), then: Sequence[int] = ()) -> int:
    """Return what is reserved after blocks were taken, some of them returned, and further ones taken."""
    allocator = Allocator()
    taken = [allocator.take(size) for size in sizes]
    for number in returned:
        allocator.give_back(taken[number])
    for size in then:
        allocator.take(size)
    return allocator.reserved_bytes


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ((1,), 2 * MIB),
        ((MIB, MIB), 2 * MIB),
        ((MIB, MIB - UNIT_BYTES, UNIT_BYTES), 2 * MIB),
        ((MIB, MIB, 1), 4 * MIB),
        ((MIB + 1,), 20 * MIB),
        ((9 * MIB, 9 * MIB), 20 * MIB),
        ((9 * MIB, 9 * MIB, 3 * MIB), 40 * MIB),
        ((10 * MIB,), 10 * MIB),
        ((11 * MIB,), 12 * MIB),
    ],
    ids=str,
)
def test_a_segment_is_as_large_as_torch_makes_it(sizes: tuple[int, ...], reserved: int) -> None:
    assert hold(*sizes) == reserved


def test_free_neighbours_are_joined_and_segments_are_not() -> None:
    assert hold(6 * MIB, 6 * MIB, returned=(0, 1), then=(12 * MIB,)) == 20 * MIB
    assert hold(6 * MIB, 6 * MIB, returned=(0, 1), then=(18 * MIB,)) == 20 * MIB, "with the one before and the rest"
    assert hold(6 * MIB, 6 * MIB, returned=(1, 0), then=(18 * MIB,)) == 20 * MIB, "with the one after"
    assert hold(6 * MIB, 6 * MIB, 6 * MIB, returned=(0, 2), then=(12 * MIB,)) == (20 + 12) * MIB
    assert hold(16 * MIB, 16 * MIB, returned=(0, 1), then=(32 * MIB,)) == (16 + 16 + 32) * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken_and_kept_whole_where_little_is_left() -> None:
    assert hold(40 * MIB, 20 * MIB, returned=(0, 1), then=(20 * MIB, 40 * MIB)) == 60 * MIB
    assert hold(40 * MIB, returned=(0,), then=(39 * MIB, MIB + 1)) == 60 * MIB, (
        "a MiB that is left stays with its block"
    )
    assert hold(40 * MIB, returned=(0,), then=(38 * MIB, MIB + 1)) == 40 * MIB


@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=60))
def test_taken_blocks_never_lie_in_one_another_and_all_comes_back(asked: list[tuple[int, bool]]) -> None:
    allocator, taken = Allocator(), dict[int, int]()
    for size, returns in asked:
        if returns and taken:
            address = next(iter(taken))
            allocator.give_back(address)
            del taken[address]
        taken[allocator.take(size)] = size
        ordered = sorted(taken.items())
        assert all(at + size <= following for (at, size), (following, _) in pairwise(ordered))
    reserved = allocator.reserved_bytes
    for address in taken:
        allocator.give_back(address)
    again = [allocator.take(size) for size in sorted(taken.values(), reverse=True)]
    assert len(set(again)) == len(again)
    assert reserved >= sum(taken.values())


class Tape:
    """The events of a trace."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.taken = 0

    def take(self, size: int) -> int:
        """Return the number of a block."""
        self.taken += 1
        self.events.append(size)
        return self.taken

    def give_back(self, numbers: Sequence[int]) -> None:
        """Return blocks by their numbers."""
        self.events += [-number for number in numbers]


@dataclass(frozen=True)
class Training:
    """A network of some layers: what does not grow, and what grows with the samples, in units."""

    layers: int = 12
    weight: int = 6000
    activation: int = 900
    workspace_until: int = 0
    """Up to so many samples a convolution takes a workspace."""

    def run(self, batch: int, steps: int = 2) -> tuple[list[int], list[int]]:
        """Return the events of a trace, and the marks."""
        tape = Tape()
        for _ in range(self.layers):
            tape.take(self.weight)
        marks, gradients = [tape.taken], list[int]()
        for step in range(steps):
            kept = self._forward(tape, batch)
            tape.give_back(gradients)
            gradients = self._backward(tape, batch, kept)
            for _ in range(self.layers):
                if not step:
                    tape.take(self.weight)  # the optimizer's state
                tape.give_back([tape.take(self.weight)])
            marks.append(tape.taken)
        return tape.events, marks

    def _forward(self, tape: Tape, batch: int) -> list[int]:
        kept = []
        for layer in range(self.layers):
            kept += [tape.take(self.activation * batch * part + layer) for part in (1, 4, 2)]
            if batch <= self.workspace_until:
                tape.give_back([tape.take(3000)])
        return kept

    def _backward(self, tape: Tape, batch: int, kept: Sequence[int]) -> list[int]:
        gradients = []
        for number in reversed(kept):
            gradients += [tape.take(self.weight)] if number % 3 == 0 else []
            tape.give_back([tape.take(self.activation * batch * 2)])
            tape.give_back([number])
        return gradients

    def probe(self, batch: int, *, whole: bool) -> Point:
        """Return the point of a probe at a micro-batch."""
        events, marks = self.run(batch)
        return Point(
            device="cuda", batch=batch, configured=batch, weights_bytes=0, gradient_bytes=0, optimizer_bytes=0,
            graph_bytes=self.reserve(batch) // 2, update_bytes=0, reserved_bytes=self.reserve(batch), other_bytes=0,
            card_bytes=80 * GIB, trace_events=tuple(events), trace_marks=tuple(marks), trace_is_whole=whole,
        )  # fmt: skip

    def reserve(self, batch: int) -> int:
        """Return what the allocator holds after its steps."""
        allocator, addresses = Allocator(), list[int]()
        for event in self.run(batch)[0]:
            if event > 0:
                addresses.append(allocator.take(event * UNIT_BYTES))
            else:
                allocator.give_back(addresses[-event - 1])
        return allocator.reserved_bytes


@pytest.mark.parametrize("batch", [12, 16, 61])
@pytest.mark.parametrize("is_small_whole", [True, False])
@pytest.mark.parametrize(
    "training",
    [Training(), Training(workspace_until=4), Training(weight=3600, activation=900)],
    ids=["plain", "with a workspace for few samples", "with weights of the size of activations"],
)
def test_what_is_held_at_another_micro_batch_follows_from_two(
    training: Training, batch: int, *, is_small_whole: bool
) -> None:
    points = [training.probe(4, whole=is_small_whole), training.probe(8, whole=not is_small_whole)]
    assert predict_reserved(points, batch) == pytest.approx(training.reserve(batch), rel=0.05)


def list_unbelieved() -> Iterator[tuple[str, list[Point]]]:
    small, large = Training().probe(4, whole=True), Training().probe(8, whole=False)
    yield "of one micro-batch", [small]
    yield "without one that begins with its process", [replace(small, trace_is_whole=False), large]
    yield "of an allocator that holds something else", [replace(small, reserved_bytes=2 * Training().reserve(4)), large]
    yield "that end before a second step", [small, replace(large, trace_marks=large.trace_marks[:2])]
    yield "without samples", [replace(small, batch=None), large]


@pytest.mark.parametrize(("points"), [points for _, points in list_unbelieved()], ids=[w for w, _ in list_unbelieved()])
def test_nothing_is_reckoned_by_traces(points: list[Point]) -> None:
    assert predict_reserved(points, 16) is None


def test_an_estimate_has_the_slack_that_the_traces_come_to() -> None:
    points = [Training().probe(4, whole=True), Training().probe(8, whole=False)]
    without = [replace(point, trace_events=(), trace_marks=()) for point in points]
    assert estimate(points, 16, None).bytes == predict_reserved(points, 16)
    assert estimate(points, 8, None) == estimate(without, 8, None), "what was probed is what it was"
    assert estimate(without, 16, None).bytes != predict_reserved(points, 16)


def test_without_a_gpu_the_slack_follows_from_the_traces_of_tensors_too() -> None:
    points = [
        replace(Training().probe(batch, whole=True), device="cpu", reserved_bytes=None, other_bytes=None)
        for batch in (4, 8)
    ]
    for batch in (8, 16):
        found = estimate(points, batch, None)
        assert found.bytes - found.parts.other == pytest.approx(Training().reserve(batch) + WORKSPACE_BYTES, rel=0.05)


def test_without_a_gpu_more_is_held_between_wide_logits_than_the_traces_come_to() -> None:
    plain = [
        replace(Training().probe(batch, whole=True), device="cpu", reserved_bytes=None, other_bytes=None)
        for batch in (4, 8)
    ]
    wide = [
        replace(point, largest_output_columns=32_000, largest_output_single_bytes=2 * point.graph_bytes)
        for point in plain
    ]
    assert estimate(wide, 16, None).parts.slack > estimate(plain, 16, None).parts.slack


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"events": "many", "marks": [0]},
        {"events": [1, 2, -3], "marks": [0]},
        {"events": [1, -1, -1], "marks": [0]},
        {"events": [1, 0], "marks": [0]},
        {"events": [1, 2], "marks": [2, 1]},
        {"events": [1, 2], "marks": [0, 3]},
        {"events": [1, 1 << 40], "marks": [0]},
        {"events": [1, True], "marks": [0]},
    ],
)
def test_a_trace_that_cannot_be_is_none(report: dict[str, object]) -> None:
    assert read_trace(report) == {}


def test_a_trace_is_read() -> None:
    found = read_trace({"events": [4, 8, -1], "marks": [1, 2], "whole": True})
    assert found == {"trace_events": (4, 8, -1), "trace_marks": (1, 2), "trace_is_whole": True}
