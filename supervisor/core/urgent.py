"""Which events are judged at once and which can wait for the next tick; it judges nothing."""

from __future__ import annotations

import math

from supervisor.core import events as ev


def can_wait(event: ev.Event) -> bool:
    """Whether the next tick is soon enough to judge by: readings and steps that are as they should be."""
    match event:
        case ev.StepsMade():
            return all(_is_finite(record.loss) and _is_finite(record.grad_norm) for record in event.records)
        case ev.GpusRead() | ev.HostRead() | ev.ProcessesRead() | ev.AlertTried():
            return True
        case ev.CheckpointSeen() | ev.CheckpointNotKept():
            return True
        case ev.OutputSeen() | ev.KernelReported():
            return not event.findings
        case _:
            return False


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
