"""Steps aggregated into buckets of ten seconds, as rows of `step_metrics`.

A row contains new steps only. Two rows of a bucket merge into the row that all their steps together would give, here
and in SQL (`statements.STEPS`), so a bucket may be written in any number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any, TypeAlias

from supervisor.core.events import StepsMade
from supervisor.core.readings import StepRecord

BUCKET_S = 10
INTEGER_MAX = 2**63 - 1
Row: TypeAlias = dict[str, Any]


def bucket_of(unix_s: float) -> int:
    """Return the start of the bucket that contains a time, in Unix seconds."""
    return int(unix_s // BUCKET_S) * BUCKET_S


def bucket_rows(event: StepsMade) -> list[Row]:
    """Return one row for each bucket of consecutive steps, in the order of the steps."""
    rows = []
    for start, records in groupby(event.records, key=lambda record: bucket_of(record.at.unix_s)):
        identity = {"job": event.job, "attempt": event.attempt, "rank": event.rank, "bucket_unix_s": start}
        rows.append({**identity, **_fold_records(tuple(records))})
    return rows


def merged(old: Row, new: Row) -> Row:
    """Return the row of both parts of a bucket; `new` is the later part."""
    steps = old["steps"] + new["steps"]
    first, last = min(old["first_unix_s"], new["first_unix_s"]), max(old["last_unix_s"], new["last_unix_s"])
    return {
        **new,
        "steps": steps,
        "step_first": min(old["step_first"], new["step_first"]),
        "step_last": max(old["step_last"], new["step_last"]),
        "first_unix_s": first,
        "last_unix_s": last,
        "epoch": _newest_value(old, new, "epoch"),
        "loss_known": old["loss_known"] + new["loss_known"],
        "loss_min": _choose_extreme(min, old["loss_min"], new["loss_min"]),
        "loss_mean": _merge_means(old, new, "loss_mean", "loss_known"),
        "loss_max": _choose_extreme(max, old["loss_max"], new["loss_max"]),
        "loss_last": _newest_value(old, new, "loss_last"),
        "lr_last": _newest_value(old, new, "lr_last"),
        "grad_norm_max": _choose_extreme(max, old["grad_norm_max"], new["grad_norm_max"]),
        "data_wait_known": old["data_wait_known"] + new["data_wait_known"],
        "data_wait_mean_s": _merge_means(old, new, "data_wait_mean_s", "data_wait_known"),
        "gpu_memory_max_bytes": _choose_extreme(max, old["gpu_memory_max_bytes"], new["gpu_memory_max_bytes"]),
        "steps_per_s": _steps_per_s(steps, first, last),
        "non_finite": old["non_finite"] + new["non_finite"],
        "samples": _sum_known((old["samples"], new["samples"])),
        "tokens": _sum_known((old["tokens"], new["tokens"])),
    }


def _fold_records(records: tuple[StepRecord, ...]) -> Row:
    losses = _filter_finite(record.loss for record in records)
    rates = _filter_finite(record.lr for record in records)
    norms = _filter_finite(record.grad_norm for record in records)
    waits = _filter_finite(record.data_wait_s for record in records)
    memory = [record.gpu_memory_bytes for record in records if record.gpu_memory_bytes is not None]
    epochs = [record.epoch for record in records if record.epoch is not None]
    first, last = min(record.at.unix_s for record in records), max(record.at.unix_s for record in records)
    return {
        "steps": len(records),
        "step_first": min(record.step for record in records),
        "step_last": max(record.step for record in records),
        "first_unix_s": first,
        "last_unix_s": last,
        "epoch": epochs[-1] if epochs else None,
        "loss_known": len(losses),
        "loss_min": min(losses, default=None),
        "loss_mean": _mean_of(losses),
        "loss_max": max(losses, default=None),
        "loss_last": losses[-1] if losses else None,
        "lr_last": rates[-1] if rates else None,
        "grad_norm_max": max(norms, default=None),
        "data_wait_known": len(waits),
        "data_wait_mean_s": _mean_of(waits),
        "gpu_memory_max_bytes": min(max(memory), INTEGER_MAX) if memory else None,
        "steps_per_s": _steps_per_s(len(records), first, last),
        "non_finite": sum(1 for record in records if _non_finite(record)),
        "samples": _sum_known(record.samples for record in records),
        "tokens": _sum_known(record.tokens for record in records),
    }


def _filter_finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean_of(values: list[float]) -> float | None:
    """Return the mean; each value is divided first, as the sum of large finite numbers may overflow."""
    return math.fsum(value / len(values) for value in values) if values else None


def _sum_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return min(sum(known), INTEGER_MAX) if known else None


def _non_finite(record: StepRecord) -> bool:
    return any(value is not None and not math.isfinite(value) for value in (record.loss, record.grad_norm))


def _steps_per_s(steps: int, first_unix_s: float, last_unix_s: float) -> float | None:
    """Return steps per second between the first and the last step of the bucket; None for a single step."""
    span_s = last_unix_s - first_unix_s
    return (steps - 1) / span_s if steps > 1 and span_s > 0 else None


def _newest_value(old: Row, new: Row, column: str) -> Any:
    return old[column] if new[column] is None else new[column]


def _choose_extreme(choose: Any, old: float | None, new: float | None) -> float | None:
    known = [value for value in (old, new) if value is not None]
    return choose(known) if known else None


def _merge_means(old: Row, new: Row, column: str, known: str) -> float | None:
    count = old[known] + new[known]
    if not count:
        return None
    return float((old[column] or 0.0) * (old[known] / count) + (new[column] or 0.0) * (new[known] / count))
