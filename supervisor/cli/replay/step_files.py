"""Writes the steps of a job into the files that other programs read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path

from supervisor.cli.replay.series import csv_lines, ndjson_lines
from supervisor.cli.replay.tensorboard import events_file
from supervisor.store.records import StepBucket


def lines(kind: str, buckets: Iterable[StepBucket]) -> Iterator[str]:
    """Return the lines of a table, `kind` being csv or ndjson."""
    return csv_lines(buckets) if kind == "csv" else ndjson_lines(buckets)


def write_table(target: Path, kind: str, buckets: Iterable[StepBucket]) -> None:
    """Write a table into a new file; raise OSError."""
    with target.open("x", encoding="utf-8", newline="", buffering=1) as file:
        file.writelines(lines(kind, buckets))


def write_runs(target: Path, buckets: Iterable[StepBucket]) -> None:
    """Write a run for each attempt into a new folder; raise OSError.

    Steps that were redone lie one over the other, where TensorBoard shows them as separate curves.
    """
    target.mkdir()
    for attempt, of_attempt in groupby(buckets, key=lambda bucket: bucket.attempt):
        folder = target / f"attempt-{attempt:03d}"
        folder.mkdir()
        first = next(of_attempt)
        name = f"events.out.tfevents.{int(first.first_unix_s)}.rocm-supervisor"
        with (folder / name).open("xb", buffering=0) as file:  # whoever follows reads what is written
            for piece in events_file(chain((first,), of_attempt)):
                file.write(piece)
