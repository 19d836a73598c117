"""What one probe measured: the memory of a training's second step at one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.core.foreign_values import BYTES_MAX, as_dict, as_int, as_message

TEXT_LIMIT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Bytes are those of tensors unless the name says otherwise."""

    device: str
    """"cuda" (a GPU's allocator), or "cpu" (an account of tensors as a GPU would make them)."""
    batch: int | None
    """Samples in a micro-batch; None: not known, because the script draws from no DataLoader."""
    configured: int | None
    """Samples in a micro-batch by the loader's own sampler."""
    weights_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    graph_bytes: int
    """The peak outside of the optimizer's update: forward and backward pass."""
    update_bytes: int
    """The peak during the optimizer's update."""
    reserved_bytes: int | None
    """What the allocator held of the GPU in the end, its peak."""
    other_bytes: int | None
    """Use of the GPU outside of the allocator: context, libraries, and other programs."""
    card_bytes: int | None
    forward_bytes: int | None = None
    """The peak outside of the backward pass, where it is known, as in an account of tensors."""
    backward_bytes: int | None = None
    """The same within it."""
    shapes: int = 1
    """Different shapes of samples among the batches drawn."""
    ranks: int = 1
    """Ranks of the training, of which the first was measured."""
    compiled: bool = False
    """Whether torch.compile has compiled something, or would where a GPU is."""
    without_cudnn: bool = False
    """Whether those of depthwise convolutions were PyTorch's own kernels, since cuDNN prepared its own for seconds."""
    without_cudnn_attention: bool = False
    """Whether attention was computed by another kernel than cuDNN's, which are compiled for each micro-batch."""
    checkpointed: str | None = None
    """How checkpointing was switched for a what-if; empty: it could not be."""
    largest_output_bytes: int = 0
    largest_output_columns: int = 0
    largest_output_single_bytes: int = 0
    """What it would take in single precision, in which losses are computed."""
    torch: str = ""
    gpu: str | None = None
    trace_events: Sequence[int] = ()
    """Blocks of the allocator in units of 512 bytes, and less than zero those returned, by their number from 1 on."""
    trace_marks: Sequence[int] = ()
    """Blocks that had been taken when the first batch was drawn, and after each step."""
    trace_is_whole: bool = False
    """Whether the trace begins with the process."""

    @property
    def peak_bytes(self) -> int:
        """The most that tensors took together."""
        return max(self.graph_bytes, self.update_bytes)


def read_point(report: dict[str, object]) -> Point | str:
    """Return what an agent reported, or why it has no measurement: the file is written by the training's user."""
    problem = as_message(report.get("problem"), TEXT_LIMIT)
    if problem is not None:
        return problem
    sizes = {name: as_int(report.get(name), maximum=BYTES_MAX) for name in NEEDED}
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        return f"the report of the probe has no {missing[0]}"
    known: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    largest = as_dict(report.get("largest_output"))
    optional: dict[str, Any] = {name: as_int(report.get(name), maximum=BYTES_MAX) for name in OPTIONAL}
    checkpointed = report.get("checkpointed")
    return Point(
        device="cuda" if report.get("device") == "cuda" else "cpu",
        shapes=as_int(report.get("shapes"), maximum=10**6) or 1,
        ranks=as_int(report.get("ranks"), 1, maximum=10**6) or 1,
        compiled=report.get("compiled") is True,
        without_cudnn=report.get("without_cudnn") is True,
        without_cudnn_attention=report.get("without_cudnn_attention") is True,
        checkpointed=checkpointed[:TEXT_LIMIT] if isinstance(checkpointed, str) else None,
        largest_output_bytes=as_int(largest.get("bytes"), maximum=BYTES_MAX) or 0,
        largest_output_columns=as_int(largest.get("columns"), maximum=BYTES_MAX) or 0,
        largest_output_single_bytes=as_int(largest.get("single_bytes"), maximum=BYTES_MAX) or 0,
        torch=as_message(report.get("torch"), 64) or "",
        gpu=as_message(report.get("gpu"), 128),
        **read_trace(as_dict(report.get("trace"))),
        **known,
        **optional,
    )


def read_trace(report: dict[str, object]) -> dict[str, Any]:
    """Return the fields of a trace, none where it is not one: no block is returned twice, or before it was taken."""
    events, marks = (as_ints(report.get(name)) for name in ("events", "marks"))
    taken: set[int] = set()
    count = 0
    for event in events:
        count += event > 0
        if event > 0:
            taken.add(count)
        elif -event in taken:
            taken.remove(-event)
        else:
            return {}
    if not events or list(marks) != sorted(marks) or not all(0 <= mark <= count for mark in marks):
        return {}
    return {"trace_events": events, "trace_marks": marks, "trace_is_whole": report.get("whole") is True}


def as_ints(value: object) -> tuple[int, ...]:
    """Return the whole numbers of a list, none where it has anything else."""
    if not isinstance(value, list) or not all(type(item) is int and abs(item) < TRACE_MAX for item in value):
        return ()
    return tuple(value)


TRACE_MAX = 1 << 40
NEEDED = ("weights_bytes", "gradient_bytes", "optimizer_bytes", "graph_bytes", "update_bytes")
OPTIONAL = ("batch", "configured", "reserved_bytes", "other_bytes", "card_bytes", "forward_bytes", "backward_bytes")
