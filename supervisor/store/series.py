"""Metrics for charts, aggregated by SQLite to as many points as a chart can draw; from any process, sqlite3 alone.

Objects for rows, folded in Python, cost a chart of three days 300 ms and 95 MB; `GROUP BY` costs 11 ms.
Every point has the smallest and the largest value of its time, so that no spike is lost.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from supervisor.store.tiers import (
    GPUS,
    HOUR_S,
    PROCESSES,
    STEPS,
    Segment,
    Tiers,
    choose_width,
    plan_segments,
)

MOST_POINTS = 1200
GAP_WIDTHS = 3.0
"""A line is broken where so many widths of a point lie between two points."""

Value: TypeAlias = float | int | None
Columns: TypeAlias = dict[str, list[Value]]
"""Lists of one length by name; `at` holds Unix seconds, and a row whose other values are None breaks the line."""

STEP_COLUMNS = (
    "at",
    "attempt",
    "step",
    "epoch",
    "loss_min",
    "loss",
    "loss_max",
    "steps_per_s",
    "data_wait_s",
    "lr",
    "grad_norm",
    "gpu_memory_bytes",
    "non_finite",
    "again",
)
_SQL_STEPS = """
SELECT (min(first_unix_s) + max(last_unix_s)) / 2, attempt, max(step_last), max(epoch),
       min(loss_min), sum(loss_mean * loss_known) / nullif(sum(loss_known), 0), max(loss_max),
       sum(paced_steps) / nullif(sum(paced_s), 0),
       sum(data_wait_mean_s * data_wait_known) / nullif(sum(data_wait_known), 0),
       max(lr_max), max(grad_norm_max), max(gpu_memory_max_bytes), sum(non_finite), min(step_first)
FROM ({rows})
GROUP BY attempt, {key}
ORDER BY attempt, min(first_unix_s)
"""
_OF_ATTEMPTS = """job = ? AND rank = 0
  AND attempt IN (WITH RECURSIVE numbers(n) AS (SELECT ? UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
                  SELECT n FROM numbers)"""  # listed so that SQLite seeks each in the primary key of the raw rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time from which at most `points` points are wanted."""

    since_unix_s: float
    until_unix_s: float
    points: int

    @property
    def width_s(self) -> int:
        """The time of one point."""
        return choose_width((self.until_unix_s - self.since_unix_s) / max(1, min(self.points, MOST_POINTS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    """The steps that are recorded of one attempt."""

    attempt: int
    first_unix_s: float
    last_unix_s: float
    step_first: int
    step_last: int
    counts_itself: bool = False
    """Whether its steps are its own count, which says nothing of the training's."""


def read_spans(connection: sqlite3.Connection, job: str) -> tuple[AttemptSpan, ...]:
    """Return the attempts of a job that have steps, the oldest first. Raises sqlite3.Error."""
    ends = connection.execute("SELECT min(attempt), max(attempt) FROM step_metrics WHERE job = ?", (job,)).fetchone()
    if ends[0] is None:
        return ()
    own = _read_counting_themselves(connection, job)
    first = "SELECT first_unix_s, step_first FROM step_metrics WHERE job = ? AND attempt = ? AND rank = 0"
    last = "SELECT last_unix_s, step_last FROM step_metrics WHERE job = ? AND attempt = ? AND rank = 0"
    found = []
    for attempt in range(ends[0], ends[1] + 1):
        began = connection.execute(first + " ORDER BY bucket_unix_s LIMIT 1", (job, attempt)).fetchone()
        ended = connection.execute(last + " ORDER BY bucket_unix_s DESC LIMIT 1", (job, attempt)).fetchone()
        if began is not None and ended is not None:
            found.append(
                AttemptSpan(
                    attempt=attempt,
                    first_unix_s=began[0],
                    last_unix_s=ended[0],
                    step_first=began[1],
                    step_last=ended[1],
                    counts_itself=attempt in own,
                )
            )
    return tuple(found)


def find_redone(spans: Sequence[AttemptSpan]) -> dict[int, float]:
    """Return, by attempt, the step from which on a later attempt made its work again; infinity where none did."""
    redone: dict[int, float] = {}
    lowest = math.inf
    for span in reversed(spans):
        if span.counts_itself:
            lowest = math.inf
            continue
        redone[span.attempt] = lowest
        lowest = min(lowest, span.step_first)
    return redone


def read_steps(connection: sqlite3.Connection, job: str, window: Window, spans: Sequence[AttemptSpan]) -> Columns:
    """Return the steps of a job in a window of time (STEP_COLUMNS). Raises sqlite3.Error.

    `again` is 1 for work that a later attempt had to make again.
    """
    width = window.width_s
    begin = math.floor(window.since_unix_s / width) * width
    inside = [span for span in spans if span.last_unix_s >= begin and span.first_unix_s < window.until_unix_s]
    if not inside:
        return {name: [] for name in STEP_COLUMNS}
    given = (job, inside[0].attempt, inside[-1].attempt)
    until = math.ceil(window.until_unix_s)
    segments = plan_segments(connection, STEPS, width, begin, until)
    found = _group_steps(connection, segments, given, f"(bucket_unix_s - {begin}) / {width}")
    return _build_step_columns(found, find_redone(spans), GAP_WIDTHS * width)


def read_attempt_steps(
    connection: sqlite3.Connection, job: str, spans: Sequence[AttemptSpan], attempt: int | None, points: int
) -> Columns:
    """Return the steps of one attempt, or of all, in order of their number: `points` points. Raises sqlite3.Error."""
    chosen = [span for span in spans if attempt in (None, span.attempt)]
    if not chosen:
        return {name: [] for name in STEP_COLUMNS}
    total = max(span.step_last for span in chosen) - min(span.step_first for span in chosen)
    points = max(1, min(points, MOST_POINTS))
    width = max(1, math.ceil(total / points))
    begin = min(span.first_unix_s for span in chosen) - HOUR_S
    until = max(span.last_unix_s for span in chosen) + 1
    stepped_s = sum(span.last_unix_s - span.first_unix_s for span in chosen)
    segments = plan_segments(connection, STEPS, choose_width(stepped_s / points), begin, until)
    given = (job, chosen[0].attempt, chosen[-1].attempt)
    found = _group_steps(connection, segments, given, f"step_first / {width}")
    return _build_step_columns(found, find_redone(spans), math.inf)


def _group_steps(
    connection: sqlite3.Connection, segments: Sequence[Segment], given: tuple[str, int, int], key: str
) -> list[tuple[Value, ...]]:
    if not segments:
        return []
    rows, parameters = STEPS.query(segments, _OF_ATTEMPTS, given)
    return connection.execute(_SQL_STEPS.format(rows=rows, key=key), parameters).fetchall()


def _build_step_columns(found: Sequence[tuple[Value, ...]], redone: dict[int, float], gap_s: float) -> Columns:
    rows = []
    for row in found:
        *values, step_first = row
        attempt = int(row[1] or 0)
        rows.append((*values, int((step_first or 0) >= redone.get(attempt, math.inf))))
    return build_columns(STEP_COLUMNS, rows, gap_s, breaks_at=1)


GPU_COLUMNS = ("at", "memory_bytes", "temperature_c", "power_w", "busy_percent")
PROCESS_COLUMNS = ("at", "rss_bytes", "cpu_percent")
_SQL_GPUS = """
SELECT gpu, (min(first_unix_s) + max(last_unix_s)) / 2, max(memory_bytes), max(temperature_c),
       sum(power_w * power_known) / nullif(sum(power_known), 0),
       sum(busy_percent * busy_known) / nullif(sum(busy_known), 0)
FROM ({rows}) GROUP BY 1, CAST((bucket_unix_s - ?) / ? AS INTEGER) ORDER BY 1, 2
"""
_SQL_PROCESSES = """
SELECT job, (min(first_unix_s) + max(last_unix_s)) / 2, max(rss_bytes),
       sum(cpu_percent * cpu_known) / nullif(sum(cpu_known), 0)
FROM ({rows}) GROUP BY 1, CAST((bucket_unix_s - ?) / ? AS INTEGER) ORDER BY 1, 2
"""


def read_gpus(connection: sqlite3.Connection, gpus: Sequence[str] | None, window: Window) -> dict[str, Columns]:
    """Return the readings of these GPUs, or of all, in a window of time (GPU_COLUMNS). Raises sqlite3.Error."""
    found = _group_samples(connection, GPUS, _SQL_GPUS, window)
    names = sorted({row[0] for row in found} & (set(gpus) if gpus else {row[0] for row in found}))
    return {
        name: build_columns(GPU_COLUMNS, [row[1:] for row in found if row[0] == name], GAP_WIDTHS * window.width_s)
        for name in names
    }


def read_processes(connection: sqlite3.Connection, job: str, window: Window) -> Columns:
    """Return the readings of a job's processes in a window of time (PROCESS_COLUMNS). Raises sqlite3.Error."""
    found = _group_samples(connection, PROCESSES, _SQL_PROCESSES, window, job)
    return build_columns(PROCESS_COLUMNS, [row[1:] for row in found], GAP_WIDTHS * window.width_s)


def _group_samples(
    connection: sqlite3.Connection, tiers: Tiers, sql: str, window: Window, job: str | None = None
) -> list[tuple[Any, ...]]:
    """Return a row for each key and point: the key, the time, and the other values."""
    width = window.width_s
    begin = math.floor(window.since_unix_s / width) * width
    segments = plan_segments(connection, tiers, width, begin, window.until_unix_s)
    if not segments:
        return []
    rows, parameters = tiers.query(segments, "1" if job is None else "job = ?", () if job is None else (job,))
    return connection.execute(sql.format(rows=rows), (*parameters, begin, width)).fetchall()


def build_columns(
    names: Sequence[str], rows: Sequence[tuple[Value, ...]], gap_s: float, breaks_at: int | None = None
) -> Columns:
    """Return rows as columns, with an empty row where a line is to be broken.

    That is where more than `gap_s` lies between two rows, unless all of them lie as far apart, and where the value in
    column `breaks_at` changes.
    """
    gap_s = max(gap_s, 3 * _median_distance(rows))
    with_gaps: list[tuple[Value, ...]] = list(rows[:1])
    for before, row in pairwise(rows):
        at, at_before = row[0] or 0.0, before[0] or 0.0
        if at - at_before > gap_s or (breaks_at is not None and row[breaks_at] != before[breaks_at]):
            with_gaps.append(((at + at_before) / 2, *(None for _ in names[1:])))
        with_gaps.append(row)
    return {name: [_round_significant(row[index]) for row in with_gaps] for index, name in enumerate(names)}


def _median_distance(rows: Sequence[tuple[Value, ...]]) -> float:
    distances = sorted((row[0] or 0.0) - (before[0] or 0.0) for before, row in pairwise(rows))
    return distances[len(distances) // 2] if distances else 0.0


def _round_significant(value: Value) -> Value:
    """Return a number with the digits that a chart can show: five of a small one, of a large one one decimal."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 1) if abs(value) >= 1e4 else float(f"{value:.5g}")


def _read_counting_themselves(connection: sqlite3.Connection, job: str) -> set[int]:
    """Return the attempts whose steps are their own count, by the agent's newest report."""
    found: Iterable[tuple[int, str]] = connection.execute(
        "SELECT attempt, json_extract(body, '$.facts.scale') FROM events WHERE kind = 'agent_reported' AND job = ?"
        " AND attempt IS NOT NULL AND json_extract(body, '$.word') = 'counting' ORDER BY id",
        (job,),
    )
    return {attempt for attempt, scale in dict(found).items() if scale == "attempt"}
