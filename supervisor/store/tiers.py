"""Coarser tiers of the metrics, so that a chart of weeks reads as few rows as one of hours: tables, widths, SQL.

Rows of ten seconds (samples), one minute, five minutes and one hour are aggregated from the next finer ones once their
time is over (`rollup.py`), and are kept longer the coarser they are. Needs sqlite3 alone: the page reads them too.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

NARROWEST_S, MINUTE_S, FIVE_MINUTES_S, HOUR_S = 10, 60, 300, 3600
Parameter: TypeAlias = str | float | int

_AGGREGATE = """
INSERT OR REPLACE INTO {table} (width_s, bucket_unix_s, {columns})
SELECT {width}, {bucket}, {keys}, {values} FROM ({rows}) WHERE bucket_unix_s >= :since AND bucket_unix_s < :until
GROUP BY {bucket}, {keys}"""
_READ = "SELECT bucket_unix_s, {columns} FROM ({rows}) WHERE bucket_unix_s >= ? AND bucket_unix_s < ? AND {where}"
_TIER = "SELECT bucket_unix_s, {columns} FROM {table} WHERE width_s = {width}"
_ENDS = "SELECT {time} FROM {table} WHERE {where} AND {time} < ? ORDER BY {time}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """The tiers of one kind of metric."""

    table: str
    raw_table: str
    raw_time: str
    """The column of `raw_table` with the time of a row."""
    raw: str
    """A query of the raw rows with the columns of the tiers."""
    keys: tuple[str, ...]
    columns: Mapping[str, str]
    """Each column with the expression that aggregates it from finer rows."""
    widths: tuple[int, ...]
    """Seconds, the narrowest first; each a multiple of the one before."""

    def aggregate(self, width_s: int) -> str:
        """Return the statement that writes the rows of a tier between :since and :until from the next finer ones."""
        finer = [width for width in self.widths if width < width_s]
        return _AGGREGATE.format(
            table=self.table,
            columns=self._list_columns,
            width=width_s,
            bucket=f"(CAST(bucket_unix_s AS INTEGER) / {width_s}) * {width_s}",
            keys=", ".join(self.keys),
            values=", ".join(self.columns.values()),
            rows=self._select_rows(finer[-1] if finer else None),
        )

    def query(self, segments: Sequence[Segment], where: str, given: Sequence[Parameter]) -> tuple[str, list[Parameter]]:
        """Return a query of the rows in the segments for which `where` holds, with its parameters."""
        parts, parameters = [], list[Parameter]()
        for segment in segments:
            parts.append(_READ.format(columns=self._list_columns, rows=self._select_rows(segment.width_s), where=where))
            parameters += [segment.since_unix_s, segment.until_unix_s, *given]
        return " UNION ALL ".join(parts), parameters

    @property
    def _list_columns(self) -> str:
        return ", ".join((*self.keys, *self.columns))

    def _select_rows(self, width_s: int | None) -> str:
        """Return the query of a tier's rows, or of the raw ones."""
        return (
            self.raw if width_s is None else _TIER.format(columns=self._list_columns, table=self.table, width=width_s)
        )


def _mean(value: str, known: str) -> str:
    """Return the mean of `value` over rows that each stand for `known` values."""
    return f"sum({value} * {known}) / nullif(sum({known}), 0)"


_SPAN = {"first_unix_s": "min(first_unix_s)", "last_unix_s": "max(last_unix_s)"}
STEPS = Tiers(
    table="step_tiers",
    raw_table="step_metrics",
    raw_time="bucket_unix_s",
    raw="""
SELECT bucket_unix_s, job, attempt, rank, first_unix_s, last_unix_s, steps, step_first, step_last,
       max(steps - 1, 0) AS paced_steps, CASE WHEN steps > 1 THEN last_unix_s - first_unix_s ELSE 0 END AS paced_s,
       epoch, CASE WHEN loss_mean IS NULL THEN 0 ELSE loss_known END AS loss_known, loss_min, loss_mean, loss_max,
       lr_last AS lr_max, grad_norm_max,
       CASE WHEN data_wait_mean_s IS NULL THEN 0 ELSE data_wait_known END AS data_wait_known, data_wait_mean_s,
       gpu_memory_max_bytes, non_finite
FROM step_metrics""",
    keys=("job", "attempt", "rank"),
    columns={
        **_SPAN,
        "steps": "sum(steps)",
        "step_first": "min(step_first)",
        "step_last": "max(step_last)",
        "paced_steps": "sum(paced_steps)",
        "paced_s": "sum(paced_s)",
        "epoch": "max(epoch)",
        "loss_known": "sum(loss_known)",
        "loss_min": "min(loss_min)",
        "loss_mean": _mean("loss_mean", "loss_known"),
        "loss_max": "max(loss_max)",
        "lr_max": "max(lr_max)",
        "grad_norm_max": "max(grad_norm_max)",
        "data_wait_known": "sum(data_wait_known)",
        "data_wait_mean_s": _mean("data_wait_mean_s", "data_wait_known"),
        "gpu_memory_max_bytes": "max(gpu_memory_max_bytes)",
        "non_finite": "sum(non_finite)",
    },
    widths=(MINUTE_S, FIVE_MINUTES_S, HOUR_S),
)
"""`paced_steps` were made in `paced_s`, the time between the first and the last step of each raw row."""
GPUS = Tiers(
    table="gpu_tiers",
    raw_table="gpu_samples",
    raw_time="at_unix_s",
    raw="""
SELECT at_unix_s AS bucket_unix_s, gpu, at_unix_s AS first_unix_s, at_unix_s AS last_unix_s,
       vram_used_bytes AS memory_bytes, coalesce(junction_c, edge_c, memory_c) AS temperature_c,
       power_w IS NOT NULL AS power_known, power_w, gpu_busy_percent IS NOT NULL AS busy_known,
       gpu_busy_percent AS busy_percent
FROM gpu_samples""",
    keys=("gpu",),
    columns={
        **_SPAN,
        "memory_bytes": "max(memory_bytes)",
        "temperature_c": "max(temperature_c)",
        "power_known": "sum(power_known)",
        "power_w": _mean("power_w", "power_known"),
        "busy_known": "sum(busy_known)",
        "busy_percent": _mean("busy_percent", "busy_known"),
    },
    widths=(NARROWEST_S, MINUTE_S, FIVE_MINUTES_S, HOUR_S),
)
PROCESSES = Tiers(
    table="process_tiers",
    raw_table="process_samples",
    raw_time="at_unix_s",
    raw="""
SELECT at_unix_s AS bucket_unix_s, job, at_unix_s AS first_unix_s, at_unix_s AS last_unix_s, rss_bytes,
       cpu_percent IS NOT NULL AS cpu_known, cpu_percent
FROM process_samples""",
    keys=("job",),
    columns={
        **_SPAN,
        "rss_bytes": "max(rss_bytes)",
        "cpu_known": "sum(cpu_known)",
        "cpu_percent": _mean("cpu_percent", "cpu_known"),
    },
    widths=(NARROWEST_S, MINUTE_S, FIVE_MINUTES_S, HOUR_S),
)
ALL = (STEPS, GPUS, PROCESSES)


def choose_width(wanted_s: float) -> int:
    """Return the time of a point: at least what is wanted, a multiple of ten seconds or of a tier that is half of it.

    So that points are of equal length, and each is read from few rows.
    """
    for tier in (HOUR_S, FIVE_MINUTES_S, MINUTE_S):
        if wanted_s >= 2 * tier:
            return math.ceil(wanted_s / tier) * tier
    return max(1, math.ceil(wanted_s / NARROWEST_S)) * NARROWEST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a window of time, and the tier that it is read from; None: the raw rows."""

    width_s: int | None
    since_unix_s: float
    until_unix_s: float


def plan_segments(
    connection: sqlite3.Connection, tiers: Tiers, width_s: int, since_unix_s: float, until_unix_s: float
) -> list[Segment]:
    """Divide a window between the tiers, for points of `width_s`. Raises sqlite3.Error.

    The coarsest tier whose rows each belong to one point serves all that it contains; what is newer is read from
    finer rows, and what is older from coarser ones, since those are kept for longer.
    """
    levels: list[int | None] = [None, *tiers.widths]
    chosen = max(index for index, width in enumerate(levels) if width is None or width_s % width == 0)
    segments: list[Segment] = []
    begin: float | None = None
    for width in reversed(levels[: chosen + 1]):
        ends = _read_ends(connection, tiers, width, until_unix_s)
        if ends is None:
            continue
        oldest, end = ends
        since = oldest if begin is None else begin
        begin = max(since, end)
        segments.append(Segment(width_s=width, since_unix_s=since, until_unix_s=begin))
    older = until_unix_s if begin is None else segments[0].since_unix_s
    for width in levels[chosen + 1 :]:
        assert width is not None
        ends = _read_ends(connection, tiers, width, until_unix_s)
        if older <= since_unix_s or ends is None or ends[0] + width > older:
            continue
        # The first finer row may lie within a coarse one, which then serves the whole of its time.
        boundary = math.ceil(older / width) * width
        segments = [_clip(segment, boundary, until_unix_s) for segment in segments]
        segments.append(Segment(width_s=width, since_unix_s=ends[0], until_unix_s=boundary))
        older = ends[0]
    clipped = (_clip(segment, since_unix_s, until_unix_s) for segment in segments)
    return [segment for segment in clipped if segment.since_unix_s < segment.until_unix_s]


def _read_ends(
    connection: sqlite3.Connection, tiers: Tiers, width_s: int | None, until_unix_s: float
) -> tuple[float, float] | None:
    """Return the time from and until which a tier has rows, None where it has none; raw rows reach to the end."""
    table, time, where = (tiers.raw_table, tiers.raw_time, "1")
    if width_s is not None:
        table, time, where = tiers.table, "bucket_unix_s", f"width_s = {width_s}"
    sql = _ENDS.format(table=table, time=time, where=where)
    first = connection.execute(f"{sql} LIMIT 1", (until_unix_s,)).fetchone()
    if first is None:
        return None
    if width_s is None:
        return float(first[0]), until_unix_s
    (last,) = connection.execute(f"{sql} DESC LIMIT 1", (until_unix_s,)).fetchone()
    return float(first[0]), float(last + width_s)


def _clip(segment: Segment, since_unix_s: float, until_unix_s: float) -> Segment:
    """Return the part of a segment in a window; a coarse row that begins before it belongs to it."""
    if segment.width_s is not None:
        since_unix_s = math.floor(since_unix_s / segment.width_s) * segment.width_s
    return Segment(
        width_s=segment.width_s,
        since_unix_s=max(segment.since_unix_s, since_unix_s),
        until_unix_s=min(segment.until_unix_s, until_unix_s),
    )
