"""The steps of a job as a table of numbers: CSV, or one JSON object a line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from supervisor.store.records import StepBucket

COLUMNS = (
    "attempt",
    "first_time",
    "last_time",
    "steps",
    "step_first",
    "step_last",
    "epoch",
    "loss_min",
    "loss_mean",
    "loss_max",
    "loss_last",
    "lr_last",
    "grad_norm_max",
    "data_wait_mean_s",
    "gpu_memory_max_bytes",
    "steps_per_s",
    "non_finite",
    "samples",
    "samples_per_s",
    "tokens",
    "tokens_per_s",
)
"""A row is ten seconds of one attempt. Times are RFC 3339, UTC; losses and norms are of finite values only."""

TIMES = {"first_time": "first_unix_s", "last_time": "last_unix_s"}
"""Columns that are times, and what of a bucket each shows."""
Value = int | float | str | None


def csv_lines(buckets: Iterable[StepBucket]) -> Iterator[str]:
    """Yield the header and a line for each bucket; an unknown value is empty."""
    yield _csv_line(COLUMNS)
    for bucket in buckets:
        yield _csv_line("" if value is None else value for value in row(bucket).values())


def ndjson_lines(buckets: Iterable[StepBucket]) -> Iterator[str]:
    """Yield an object for each bucket; an unknown value is null."""
    for bucket in buckets:
        yield json.dumps(row(bucket)) + "\n"


def row(bucket: StepBucket) -> dict[str, Value]:
    """Return the values of a bucket by column."""
    times = {name: _write_time(getattr(bucket, of_bucket)) for name, of_bucket in TIMES.items()}
    return {name: times[name] if name in times else getattr(bucket, name) for name in COLUMNS}


def _write_time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _csv_line(values: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
