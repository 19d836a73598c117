"""The queue of rows that are not yet in the database: bounded, the last word on a key first; it touches no database."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from supervisor.store.steps import Row
from supervisor.store.writes import KINDS, Kind


class Pending:
    """Rows waiting to be written, by kind and key, oldest first."""

    def __init__(self) -> None:
        self._rows: dict[Kind, dict[Hashable, Row]] = {kind: {} for kind in KINDS}
        self._appended = 0
        self.given_up: dict[str, int] = {}
        """Rows lost because nothing could be written for too long, by kind."""

    def put(self, kind: Kind, key: Hashable, row: Row) -> None:
        """Queue the row of a key; what waits under that key is merged or replaced."""
        rows = self._rows[kind]
        waiting = rows.get(key)
        rows[key] = kind.merge(waiting, row) if waiting is not None and kind.merge else row
        while len(rows) > kind.keep:
            del rows[next(iter(rows))]
            self.given_up[kind.name] = self.given_up.get(kind.name, 0) + 1

    def append(self, kind: Kind, row: Row) -> None:
        """Queue a row that no later one replaces."""
        self._appended += 1
        self.put(kind, self._appended, row)

    def take_over(self, later: Pending) -> None:
        """Queue everything of a later queue behind what waits here."""
        for kind, rows in later._rows.items():
            for key, row in rows.items():
                if isinstance(key, int):
                    self.append(kind, row)
                else:
                    self.put(kind, key, row)

    def rows(self, kind: Kind) -> list[Row]:
        """Return what waits of one kind, oldest first."""
        return list(self._rows[kind].values())

    def by_kind(self) -> Iterator[tuple[Kind, list[Row]]]:
        """Yield the kinds of which something waits, in the order of writing."""
        for kind, rows in self._rows.items():
            if rows:
                yield kind, list(rows.values())

    def clear(self) -> None:
        """Forget all that waits: it has been written."""
        for rows in self._rows.values():
            rows.clear()

    @property
    def urgent(self) -> bool:
        """Whether something waits that belongs into the commit of its turn."""
        return any(rows and kind.urgent for kind, rows in self._rows.items())

    @property
    def durable(self) -> bool:
        """Whether something waits whose commit has to reach the disk."""
        return any(rows and kind.durable for kind, rows in self._rows.items())

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values())
