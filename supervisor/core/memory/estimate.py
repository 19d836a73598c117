"""Reckons from one or more points what a training needs at another micro-batch, and which is the largest that fits.

Forward and backward pass take a fixed part and a part for each sample: a straight line through two points, or one for
each pass where both are known: with few samples the forward pass peaks, while gradients are there, with many the other.
The update of the optimizer takes the same at every micro-batch. The peak is the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from supervisor.core.memory.allocator import MIB
from supervisor.core.memory.points import Point
from supervisor.core.memory.traces import PASS_WORKSPACE_BYTES, predict_reserved

SLACK = 0.11
"""What an allocator holds beyond the tensors at their peak, as a share of them, where none was measured: the median of
what networks took on an H200, 8 to 23 %."""
LEAST_SLACK = 0.08
"""The same at a larger micro-batch than was probed, where that showed less: with two samples a Qwen3 took 0 %, with
four 13 %."""
LOGITS_UNJOINED = 0.8
"""How much more it holds for each further byte of a language model's logits in single precision, whose blocks of a
gigabyte find no place in others: of a Qwen3 0.9 to 1.6 from four to eight samples and from eight to sixteen, of one
with twice as many layers 1.3 and 0."""
LOGITS_HELD = 1.35
"""How much it holds at least for each byte of a language model's logits in single precision, where none was measured:
on an H200 0.8 to 2.1 in 17 trainings of language models. A LoRA of 1.8 held two fifths more than its tensors."""
GAPS = 0.075
"""What of it stays when memory is short: an allocator then returns and joins what it holds in vain. On an H200 they
ran until tensors took 94 to 99 % of the memory allowed."""
WORKSPACE_BYTES = 2 * PASS_WORKSPACE_BYTES
"""Of libraries inside the allocator, where no GPU was measured. On an H200 cuBLAS holds 32 MiB for the thread of the
forward pass and as much for that of the backward pass: in 26 trainings tensors took 67 to 235 MB more than counted."""
CONTEXT_BYTES = 560 * MIB
"""A GPU's context and its loaded kernels outside of the allocator, where none was measured."""
LARGEST_BATCH = 1 << 20
TRIED = (1.02, 1.0, 0.96, 0.92, 0.87, 0.81)
"""Micro-batches that are run to find one that fits, as shares of the one reckoned; each is one smaller at least.

Each is 93 % of the one before or more, so that what runs is of the largest that would where that did not.
"""
REHEARSED_FIRST = 2
"""Where among them rehearsals begin; from there on each larger one is rehearsed until one does not run."""
PROOF_STEPS = 4
WITHOUT_CUDNN = 0.01
"""Of the memory, which a proof has less where cuDNN was left out of depthwise convolutions: on an H200 tensors at their
peak differed by 0.1 % with it and without in a ConvNeXt, by 0.8 % at most in a MobileNetV3 with its channels last."""
WITHOUT_CUDNN_ATTENTION = 0.002
"""The same where it was left out of attention: tensors at their peak were the same in a GPT-2, a BERT, a Qwen3
and a ViT, to the byte, and differed by 0.03 % at most in a T5."""
LEAST_RESERVED = 0.97
"""Of the bytes of tensors by the line: what an allocator is reckoned to hold may differ from it by that."""
LOGITS_COLUMNS = 16_384
LOGITS_SHARE = 0.2
"""An output with so many columns that takes this share of the activations is named as what limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Errors that were measured (`tests/bench/estimates.py`), as shares of the estimate."""

    below: float
    above: float


MEASURED = Bounds(below=0.02, above=0.06)
"""At a micro-batch that was probed on the GPU."""
PREDICTED = Bounds(below=0.06, above=0.06)
"""On the line through two micro-batches that were probed on the GPU."""
WITHOUT_GPU = Bounds(below=0.08, above=0.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Where the bytes go; their sum is the estimate."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """What is left of the peak: activations, and temporary tensors of whichever pass peaks."""
    slack: int
    other: int
    """Context, libraries, and what other programs hold of the GPU."""

    @property
    def total(self) -> int:
        """Their sum."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.slack + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of one training at one micro-batch."""

    batch: int | None
    parts: Parts
    low: int
    high: int
    card_bytes: int | None
    fits: bool | None
    """None: it hangs on the error, or no card is known."""
    largest_micro_batch: int | None
    limited_by: str
    how: str
    """"measured", "predicted" or "without a GPU"."""

    @property
    def bytes(self) -> int:
        """The memory of the GPU that is taken in all."""
        return self.parts.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Bytes of a pass as fixed + each * samples."""

    fixed: float
    each: float
    other: Line | None = None
    """That of another pass: the higher one counts."""

    def at(self, batch: int) -> int:
        """Return the bytes at a micro-batch."""
        own = max(0, round(self.fixed + self.each * batch))
        return own if self.other is None else max(own, self.other.at(batch))

    def find_largest(self, room_bytes: float) -> int:
        """Return the largest micro-batch that takes no more than that; it can be negative."""
        own = math.floor((room_bytes - self.fixed) / self.each)
        return own if self.other is None else min(own, self.other.find_largest(room_bytes))


def estimate(points: Sequence[Point], batch: int | None, card_bytes: int | None) -> Estimate:
    """Return the estimate at `batch` from points of one training, at least one of them.

    Raises ValueError where `batch` was not probed and cannot be reckoned: that takes two micro-batches.
    """
    ordered = sorted(points, key=lambda point: point.batch or 0)
    probed = next((point for point in ordered if point.batch == batch), None)
    base = probed or ordered[-1]
    line = fit_line(ordered)
    if probed is None and (line is None or batch is None):
        raise ValueError(f"{_why_unknown(ordered, line)}: what another takes cannot be reckoned")
    graph = probed.graph_bytes if probed is not None else _at(line, batch)
    parts = _split(base, graph, more=0.0 if probed is not None else _count_more(base, batch))
    if batch is not None and (probed is None or base.device == "cpu"):
        is_doubted = base.device == "cpu" and base.largest_output_columns >= LOGITS_COLUMNS
        parts = _replace_slack(parts, predict_reserved(ordered, batch), is_doubted=is_doubted)
    bounds = _bounds(base, probed=probed is not None)
    card = card_bytes if card_bytes is not None else base.card_bytes
    low, high = round(parts.total * (1 - bounds.below)), round(parts.total * (1 + bounds.above))
    least = max(graph, base.update_bytes) + parts.other
    most = least * (1 + bounds.above + GAPS)
    fits = None if card is None else True if most <= card else False if least * (1 - bounds.below) > card else None
    return Estimate(
        batch=batch,
        parts=parts,
        low=min(low, parts.total),
        high=high,
        card_bytes=card,
        fits=fits,
        largest_micro_batch=None if card is None else largest_micro_batch(ordered, line, card),
        limited_by=_limit(base, parts, graph),
        how="without a GPU" if base.device == "cpu" else "measured" if probed is not None else "predicted",
    )


def _why_unknown(points: Sequence[Point], line: Line | None) -> str:
    probed = sorted({point.batch for point in points if point.batch})
    if line is None and len(probed) > 1:
        return f"{probed[-1]} samples take no more than {probed[-2]}"
    return "only one micro-batch was probed"


def fit_line(points: Sequence[Point]) -> Line | None:
    """Return the line through the two largest micro-batches, of each pass where they are known; None with only one."""
    known = [point for point in points if point.batch]
    if len({point.batch for point in known}) < 2:
        return None
    small, large = known[-2:]
    forward = _fit_through(small, small.forward_bytes, large, large.forward_bytes)
    backward = _fit_through(small, small.backward_bytes, large, large.backward_bytes)
    if forward is not None and backward is not None:
        return replace(forward, other=backward)
    return _fit_through(small, small.graph_bytes, large, large.graph_bytes)


def _fit_through(small: Point, less: int | None, large: Point, more: int | None) -> Line | None:
    if less is None or more is None:
        return None
    each = (more - less) / ((large.batch or 0) - (small.batch or 0))
    return Line(fixed=less - each * (small.batch or 0), each=each) if each > 0 else None


def largest_micro_batch(points: Sequence[Point], line: Line | None, card_bytes: int) -> int | None:
    """Return the largest micro-batch that fits with its slack; 0: none does; None: not known."""
    if line is None:
        return None
    base = points[-1]
    room = card_bytes - _other(base) - (WORKSPACE_BYTES if base.device == "cpu" else 0)
    usable = room / (1 + GAPS + (0.0 if base.device == "cuda" else WITHOUT_GPU.above / 2))
    if base.update_bytes > usable:
        return 0
    return max(0, min(LARGEST_BATCH, line.find_largest(usable)))


def find_proof_room(points: Sequence[Point], card_bytes: int, *, is_own_card: bool) -> int | None:
    """Return what the allocator may hold while a micro-batch is proven to run, None: all that is free.

    A GPU that is only asked about (not `is_own_card`) is as small for the allocator; what others hold of a real one
    they do hold. A proof without some of cuDNN's kernels has to do with less.
    """
    less = 0.0
    if any(point.without_cudnn for point in points):
        less = WITHOUT_CUDNN
    elif any(point.without_cudnn_attention for point in points):
        less = WITHOUT_CUDNN_ATTENTION
    if is_own_card and not less:
        return None
    return round((card_bytes - (points[-1].other_bytes or 0)) * (1 - less))


def next_probe(points: Sequence[Point], card_bytes: int, *, share: float = 0.6) -> int | None:
    """Return the micro-batch that takes `share` of the card, to be probed for a better line; None: none is larger.

    From a single point it is a smaller one: what does not grow with the samples is more than is known then.
    """
    largest = max((point.batch or 0 for point in points), default=0)
    line = fit_line(sorted(points, key=lambda point: point.batch or 0)) if len(points) > 1 else _guess_line(points)
    if line is None or not largest:
        return None
    base = points[-1]
    wanted = line.find_largest(share * (card_bytes - _other(base)))
    return wanted if wanted > 2 * largest else None


def prove_largest(
    reckoned: int,
    known: Sequence[int],
    runs: Callable[[int], bool],
    rehearse: Callable[[int], bool | None] = lambda _: None,
) -> int:
    """Return the largest micro-batch that was seen to run: one about as large as reckoned, or smaller, that `runs`.

    How much an allocator cannot join depends on the sizes of a net's tensors, 4 to 13 % of the memory: the logits of a
    language model are single blocks of a gigabyte. Where none of those tried runs it is the largest of `known` below
    them that does: these were probed together with others, and on the whole GPU where a smaller one is asked about.

    `rehearse` returns what a run of a second or two would probably come to, in a small part of that time, or None.
    """
    tried = _list_tried(reckoned) if reckoned else []
    least = tried[-1] if tried else 0
    tried = _list_left(tried, rehearse)
    smaller = sorted((batch for batch in known if batch < least), reverse=True)
    return next((batch for batch in (*tried, *smaller) if runs(batch)), 0)


def _list_left(tried: Sequence[int], rehearse: Callable[[int], bool | None]) -> list[int]:
    """Return those of the micro-batches that are left to be run once some were rehearsed, the smallest first."""
    for place, batch in reversed(list(enumerate(tried[: REHEARSED_FIRST + 1]))):
        ran = rehearse(batch)
        if ran is None:
            break
        if not ran:
            return list(tried[place + 1 :])
    return list(tried)


def _guess_line(points: Sequence[Point]) -> Line | None:
    """Return the line through one point if weights and optimizer state were all that is fixed: it rises too much."""
    for point in points:
        if point.batch:
            fixed = point.weights_bytes + point.optimizer_bytes
            each = (point.graph_bytes - fixed) / point.batch
            return Line(fixed=fixed, each=each) if each > 0 else None
    return None


def _list_tried(reckoned: int) -> list[int]:
    """Return the micro-batches that are run, the largest first, each smaller than the one before."""
    tried: list[int] = []
    for share in TRIED:
        wanted = math.floor(reckoned * share)
        tried.append(min(wanted, tried[-1] - 1) if tried else max(wanted, reckoned + 1))
    return [batch for batch in tried if batch >= 1]


def _at(line: Line | None, batch: int | None) -> int:
    assert line is not None
    assert batch is not None
    return line.at(batch)


def _other(base: Point) -> int:
    return base.other_bytes if base.other_bytes is not None else CONTEXT_BYTES


def _count_more(base: Point, batch: int | None) -> float:
    """Return how many times more samples a micro-batch has than a point, 0 where it has less: 1.0 is twice as many."""
    return max(0.0, (batch or 0) / base.batch - 1) if base.batch else 0.0


def _slack(base: Point, peak: int, *, more: float) -> int:
    """Return what the allocator holds beyond tensors, with so many times more samples than where it was measured.

    It grows with them, and with the largest blocks: where logits are such, these are what it cannot join.
    """
    logits = base.largest_output_single_bytes if base.largest_output_columns >= LOGITS_COLUMNS else 0
    if base.reserved_bytes is None or not base.peak_bytes:
        return round(max(peak * SLACK, LOGITS_HELD * (1 + more) * logits)) + WORKSPACE_BYTES
    held = base.reserved_bytes - base.peak_bytes
    least = LEAST_SLACK * peak if more else 0.0
    if more and logits:
        least = max(least, held + LOGITS_UNJOINED * more * logits)
    return round(max(held / base.peak_bytes * peak, least))


def _split(base: Point, graph: int, *, more: float) -> Parts:
    peak = max(graph, base.update_bytes)
    left = max(0, peak - base.weights_bytes - base.gradient_bytes - base.optimizer_bytes)
    rest = peak - left
    weights = min(base.weights_bytes, rest)
    optimizer = min(base.optimizer_bytes, rest - weights)
    return Parts(
        weights=weights,
        gradients=rest - weights - optimizer,
        optimizer=optimizer,
        activations=left,
        slack=_slack(base, peak, more=more),
        other=_other(base),
    )


def _replace_slack(parts: Parts, reserved_bytes: int | None, *, is_doubted: bool) -> Parts:
    """Return the parts with what the allocator was reckoned to hold, unless that is clearly less than its tensors.

    `is_doubted`: what kernels take while they run is in no count of tensors, and between logits much is held by it. Of
    networks for images and text the reckoning was within 7 %, of a LoRA 17 % too low: of what is missing to the share
    that other language models have shown two thirds are added.
    """
    taken = parts.total - parts.slack - parts.other
    if reserved_bytes is None or reserved_bytes < LEAST_RESERVED * taken:
        return parts
    slack = max(0, reserved_bytes - taken)
    return replace(parts, slack=max(slack, (slack + 2 * parts.slack) // 3) if is_doubted else slack)


def _bounds(base: Point, *, probed: bool) -> Bounds:
    if base.device == "cpu":
        return WITHOUT_GPU
    return MEASURED if probed else PREDICTED


def _limit(base: Point, parts: Parts, graph: int) -> str:
    """Return what takes most of the memory."""
    if base.update_bytes >= graph:
        return "the optimizer's update"
    largest = max(
        ("weights", parts.weights),
        ("gradients", parts.gradients),
        ("optimizer state", parts.optimizer),
        ("activations", parts.activations),
        key=lambda item: item[1],
    )[0]
    wide = base.largest_output_columns >= LOGITS_COLUMNS
    if largest == "activations" and wide and base.largest_output_bytes >= LOGITS_SHARE * parts.activations:
        return "logits"
    return largest
