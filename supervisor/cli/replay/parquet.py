"""Writes the steps of a job as one Parquet file, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from supervisor.cli.replay.extra import load_library
from supervisor.cli.replay.series import COLUMNS, TIMES
from supervisor.store.records import StepBucket

ROWS_OF_GROUP = 10_000
INTEGERS = (
    "attempt", "steps", "step_first", "step_last", "epoch", "gpu_memory_max_bytes", "non_finite", "samples", "tokens",
)  # fmt: skip
"""Columns of whole numbers; times are milliseconds in UTC, all others double precision. Unknown values are null."""


def write_parquet(target: Path, buckets: Iterable[StepBucket]) -> None:
    """Write the columns of the other tables into a new file; raise OSError, CliError without pyarrow.

    The file can be read once its end is written: what is interrupted before leaves no file.
    """
    arrow = load_library("pyarrow", "parquet")
    parquet = load_library("pyarrow.parquet", "parquet")
    schema = arrow.schema([(name, _type_of(arrow, name)) for name in COLUMNS])
    rows = (_values_of(bucket) for bucket in buckets)
    with target.open("xb") as file:
        try:
            with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                while group := list(islice(rows, ROWS_OF_GROUP)):
                    writer.write_table(arrow.Table.from_pylist(group, schema=schema))
        except BaseException:
            target.unlink()
            raise


def _type_of(arrow: Any, name: str) -> Any:
    if name in TIMES:
        return arrow.timestamp("ms", tz="UTC")
    return arrow.int64() if name in INTEGERS else arrow.float64()


def _values_of(bucket: StepBucket) -> dict[str, object]:
    values = {name: getattr(bucket, TIMES.get(name, name)) for name in COLUMNS}
    for name in TIMES:
        values[name] = datetime.fromtimestamp(round(values[name], 3), tz=timezone.utc)
    return values
