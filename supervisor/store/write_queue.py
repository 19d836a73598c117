"""The queue of rows that are not yet in the database: bounded, and shared fairly between jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

from supervisor.store.statements import ALERT, JOB, KINDS, NOTE, Kind
from supervisor.store.steps import Row


class Pending:
    """Rows waiting to be written, by kind and key, oldest first."""

    def __init__(self) -> None:
        self._rows: dict[Kind, dict[Hashable, Row]] = {}
        """Only the kinds that were queued since the last commit: most turns queue one kind or none."""
        self._jobs: dict[Kind, Counter[Hashable]] = {}
        """Number of rows of each job; None: of no job."""
        self._appended = 0
        self.given_up: dict[str, int] = {}
        """Rows dropped because nothing could be written for too long, by kind."""

    def put(self, kind: Kind, key: Hashable, row: Row) -> None:
        """Queue the row of a key; a queued row of that key is merged or replaced."""
        rows = self._rows.get(kind)
        if rows is None:
            rows, self._jobs[kind] = self._rows.setdefault(kind, {}), Counter()
        waiting = rows.get(key)
        rows[key] = kind.merge(waiting, row) if waiting is not None and kind.merge else row
        if waiting is None:
            self._jobs[kind][row.get("job")] += 1
        while len(rows) > kind.keep:
            self._give_up(kind)
            self.given_up[kind.name] = self.given_up.get(kind.name, 0) + 1

    def _give_up(self, kind: Kind) -> None:
        """Drop the oldest row of the job with the most rows of a kind: rows of one job never displace another's."""
        rows, jobs = self._rows[kind], self._jobs[kind]
        largest = max(jobs, key=lambda job: jobs[job])
        del rows[next(key for key, row in rows.items() if row.get("job") == largest)]
        jobs[largest] -= 1
        if not jobs[largest]:
            del jobs[largest]

    def append(self, kind: Kind, row: Row) -> None:
        """Queue a row that no later one replaces."""
        self._appended += 1
        self.put(kind, self._appended, row)

    def take_over(self, later: Pending) -> None:
        """Append all rows of a later queue."""
        for kind, rows in later._rows.items():
            for key, row in rows.items():
                if isinstance(key, int):
                    self.append(kind, row)
                else:
                    self.put(kind, key, row)
        for name, count in later.given_up.items():
            self.given_up[name] = self.given_up.get(name, 0) + count

    def rows(self, kind: Kind) -> list[Row]:
        """Return the queued rows of one kind, oldest first."""
        return list(self._rows.get(kind, {}).values())

    def by_kind(self) -> Iterator[tuple[Kind, list[Row]]]:
        """Yield the kinds that have queued rows, in the order of writing."""
        for kind in KINDS:
            if rows := self.rows(kind):
                yield kind, rows

    def drop_job(self, job: str, note_prefix: str) -> None:
        """Remove the rows of a job and its notes by prefix, but not its alerts: they are still delivered."""
        for kind in [kind for kind in self._rows if kind is not ALERT]:
            rows = self._rows[kind]
            for key in [key for key, row in rows.items() if _is_of_job(kind, row, job, note_prefix)]:
                self._jobs[kind][rows[key].get("job")] -= 1
                del rows[key]

    @property
    def urgent(self) -> bool:
        """Whether a queued row has to be committed with its turn."""
        return any(rows and kind.urgent for kind, rows in self._rows.items())

    @property
    def durable(self) -> bool:
        """Whether a queued row has to be synced to the disk by its commit."""
        return any(rows and kind.durable for kind, rows in self._rows.items())

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values())


def _is_of_job(kind: Kind, row: Row, job: str, note_prefix: str) -> bool:
    if kind is NOTE:
        return str(row["key"]).startswith(note_prefix)
    return row.get("name" if kind is JOB else "job") == job
