"""Writes the steps of a job as one Parquet file or, while they are followed, as a folder of files, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from supervisor.cli.replay.extra import load_library
from supervisor.cli.replay.follow import Pause
from supervisor.cli.replay.series import COLUMNS, TIMES
from supervisor.store.records import StepBucket

ROWS_OF_GROUP = 10_000
ROWS_OF_PART = 1000
"""Of a file while steps are followed: less than three hours, and some 60 kB to write again for each new row."""
INTEGERS = (
    "attempt", "steps", "step_first", "step_last", "epoch", "gpu_memory_max_bytes", "non_finite", "samples", "tokens",
)  # fmt: skip
"""Columns of whole numbers; times are milliseconds in UTC, all others double precision. Unknown values are null."""


def write_parquet(target: Path, buckets: Iterable[StepBucket]) -> None:
    """Write the columns of the other tables into a new file; raise OSError, CliError without pyarrow.

    The file can be read once its end is written: what is interrupted before leaves no file.
    """
    arrow, parquet, schema = _load_pyarrow()
    rows = (_values_of(bucket) for bucket in buckets)
    with target.open("xb") as file:
        try:
            with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                while group := list(islice(rows, ROWS_OF_GROUP)):
                    writer.write_table(arrow.Table.from_pylist(group, schema=schema))
        except BaseException:
            target.unlink()
            raise


def write_parts(target: Path, buckets: Iterable[StepBucket], pause: Pause) -> None:
    """Write them into the files of a new folder, each of which can be read at any time; raise as `write_parquet`.

    With each new row the newest file is replaced by a longer one. Readers of folders take all of them as one table.
    """
    arrow, parquet, schema = _load_pyarrow()
    target.mkdir()
    part: list[dict[str, object]] = []
    number, written = 1, 0

    def replace_file() -> None:
        nonlocal written
        if len(part) == written:
            return
        draft = target / f".part-{number:06d}.draft"  # a name that readers of folders pass over
        parquet.write_table(arrow.Table.from_pylist(part, schema=schema), draft, compression="zstd")
        draft.replace(target / f"part-{number:06d}.parquet")
        written = len(part)

    pause.flush = replace_file
    for bucket in buckets:
        part.append(_values_of(bucket))
        if len(part) == ROWS_OF_PART:
            replace_file()
            part.clear()
            number, written = number + 1, 0
    replace_file()


def _load_pyarrow() -> tuple[Any, Any, Any]:
    """Return pyarrow, its module for Parquet, and the schema of the rows; raise CliError without pyarrow."""
    arrow = load_library("pyarrow", "parquet")
    parquet = load_library("pyarrow.parquet", "parquet")
    return arrow, parquet, arrow.schema([(name, _type_of(arrow, name)) for name in COLUMNS])


def _type_of(arrow: Any, name: str) -> Any:
    if name in TIMES:
        return arrow.timestamp("ms", tz="UTC")
    return arrow.int64() if name in INTEGERS else arrow.float64()


def _values_of(bucket: StepBucket) -> dict[str, object]:
    values = {name: getattr(bucket, TIMES.get(name, name)) for name in COLUMNS}
    for name in TIMES:
        values[name] = datetime.fromtimestamp(round(values[name], 3), tz=timezone.utc)
    return values
