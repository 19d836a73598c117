"""Writes the coarser tiers of the metrics: each row once the time that it stands for is over, a bounded part a call."""

from __future__ import annotations

import math
from collections.abc import Iterator

from supervisor.store import tiers
from supervisor.store.database import Database
from supervisor.store.sql import Statement
from supervisor.store.statements import GPU_SAMPLE, PROCESS_SAMPLE, STEPS, Kind
from supervisor.store.tiers import FIVE_MINUTES_S, HOUR_S, Tiers
from supervisor.store.write_queue import Pending

LATE_S = 60
"""So long after its end, the rows of a time are expected to be in the file."""
WINDOWS_AT_ONCE = 100
"""Windows of five minutes aggregated in a call, of one kind of metric: 0.3 s for 8 GPUs."""
LATE_WINDOWS = 1000
"""Windows remembered that got rows after they were aggregated; further ones are not aggregated again."""
_LAST = "SELECT max(bucket_unix_s) AS last FROM {table} WHERE width_s = ? AND bucket_unix_s < ?"
_FIRST = "SELECT min({time}) AS first FROM {table} WHERE {time} >= ? AND {time} < ?"
MISSED_S = 3 * 86400
"""How far back an earlier daemon may have died between the commit of late rows and their aggregation."""
_MISSED = """
SELECT window FROM
(SELECT CAST(bucket_unix_s AS INTEGER) / :width * :width AS window, sum(steps) AS made FROM step_metrics
 WHERE bucket_unix_s >= :since AND bucket_unix_s < :until GROUP BY window)
LEFT JOIN (SELECT bucket_unix_s AS window, sum(steps) AS kept FROM step_tiers
 WHERE width_s = :width AND bucket_unix_s >= :since AND bucket_unix_s < :until GROUP BY window) USING (window)
WHERE made > coalesce(kept, 0) ORDER BY window LIMIT :most"""
"""Windows whose tier lacks steps of the raw rows; of a late reading nothing comes but steps."""
KINDS: tuple[tuple[Kind, Tiers], ...] = (
    (STEPS, tiers.STEPS),
    (GPU_SAMPLE, tiers.GPUS),
    (PROCESS_SAMPLE, tiers.PROCESSES),
)


class Rollup:
    """The tiers of one database file. For one thread at a time."""

    def __init__(self) -> None:
        self._parts = tuple((kind, _Part(kept)) for kind, kept in KINDS)

    def note_written(self, rows: Pending) -> None:
        """Remember what was committed of times that were aggregated before: steps of a while without a daemon."""
        for kind, part in self._parts:
            for row in rows.rows(kind):
                part.note_time(row[part.tiers.raw_time])

    def run(self, database: Database, unix_s: float) -> None:
        """Aggregate a bounded part of what is complete. Raises UnusableError."""
        for _, part in self._parts:
            part.run(database, unix_s)


class _Part:
    """The tiers of one kind of metric."""

    def __init__(self, kept: Tiers) -> None:
        self.tiers = kept
        self._until: int | None = None
        """The time before which everything is aggregated, but for the windows in `_late`; None: not known yet."""
        self._hours_until = 0
        """The same for the tier of hours."""
        self._late: set[int] = set()

    def note_time(self, unix_s: float) -> None:
        """Remember the window of a row if it was aggregated without it."""
        if self._until is not None and unix_s < self._until and len(self._late) < LATE_WINDOWS:
            self._late.add(_floor_time(unix_s, FIVE_MINUTES_S))

    def run(self, database: Database, unix_s: float) -> None:
        """Aggregate a bounded part of what is complete, oldest first. Raises UnusableError."""
        over = _floor_time(unix_s - LATE_S, FIVE_MINUTES_S)
        if self._until is None:
            self._hours_until = self._read_end(database, HOUR_S, over)
            self._until = self._read_end(database, FIVE_MINUTES_S, over)
            self._late.update(self._find_missed(database, self._until))
        since, until = self._find_next(database, self._until, over)
        late = sorted(window for window in self._late if window + FIVE_MINUTES_S <= over)[:WINDOWS_AT_ONCE]
        statements = list(self._aggregate(since, until))
        for window in late:
            statements += self._aggregate(window, window + FIVE_MINUTES_S)
        hours_until = _floor_time(until, HOUR_S)
        again = {hour for hour in (_floor_time(window, HOUR_S) for window in late) if hour < self._hours_until}
        for begin, end in ((self._hours_until, hours_until), *((hour, hour + HOUR_S) for hour in sorted(again))):
            if begin < end:
                statements.append(self._aggregate_tier(HOUR_S, begin, end))
        if statements:
            database.change(*statements)
        self._until, self._hours_until = max(self._until, until), max(self._hours_until, hours_until)
        self._late.difference_update(late)

    def _read_end(self, database: Database, width_s: int, over: int) -> int:
        """Return the end of the last row of a tier before `over`, 0 where it has none."""
        query = _LAST.format(table=self.tiers.table)
        (row,) = database.read(Statement(query, (width_s, over)))
        return 0 if row["last"] is None else int(row["last"]) + width_s

    def _find_missed(self, database: Database, until: int) -> Iterator[int]:
        """Yield the windows that an earlier daemon still had to aggregate again: it knew of them in memory alone."""
        if self.tiers is tiers.STEPS:
            given = {"since": until - MISSED_S, "until": until, "width": FIVE_MINUTES_S, "most": LATE_WINDOWS}
            yield from (int(row["window"]) for row in database.read(Statement(_MISSED, given)))

    def _find_next(self, database: Database, begin: int, over: int) -> tuple[int, int]:
        """Return the windows to aggregate: from the first with rows, as many as one call may."""
        query = _FIRST.format(table=self.tiers.raw_table, time=self.tiers.raw_time)
        (row,) = database.read(Statement(query, (begin, over)))
        if row["first"] is None:
            return over, over
        since = max(begin, _floor_time(row["first"], FIVE_MINUTES_S))
        return since, min(over, since + WINDOWS_AT_ONCE * FIVE_MINUTES_S)

    def _aggregate(self, since: int, until: int) -> Iterator[Statement]:
        if since < until:
            for width in self.tiers.widths:
                if width <= FIVE_MINUTES_S:
                    yield self._aggregate_tier(width, since, until)

    def _aggregate_tier(self, width_s: int, since: int, until: int) -> Statement:
        return Statement(self.tiers.aggregate(width_s), {"since": since, "until": until})


def _floor_time(unix_s: float, width_s: int) -> int:
    return math.floor(unix_s / width_s) * width_s
