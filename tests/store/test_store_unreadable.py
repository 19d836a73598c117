"""A database that cannot be read does not fill the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_by_hand import at

from supervisor.store.committer import LOG_AGAIN_S
from supervisor.store.database import Database, Failure, UnusableError
from supervisor.store.sql import Statement
from supervisor.store.steps import Row
from supervisor.store.writer import Writer


class UnreadableFile(Database):
    """A file of which no query can be answered."""

    why = "disk I/O error"

    def read(self, query: Statement) -> list[Row]:
        """Fail as the disk does."""
        raise UnusableError(Failure.OTHER, self.why)


def test_why_the_file_cannot_be_read_is_logged_once_and_again_after_a_while_or_where_that_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = UnreadableFile(tmp_path / "supervisor.db")
    writer = Writer(database, at(0))

    def query_at(seconds: float) -> int:
        """Return how often it has been logged after some queries."""
        writer.now = at(seconds)
        for _ in range(3):
            assert writer.read(Statement("SELECT * FROM jobs")) is None
        return caplog.text.count("store.unreadable")

    assert [query_at(0), query_at(LOG_AGAIN_S - 1), query_at(LOG_AGAIN_S)] == [1, 1, 2]
    database.why = "database disk image is malformed"
    assert query_at(LOG_AGAIN_S + 1) == 3
    database.why = "disk I/O error"
    assert query_at(LOG_AGAIN_S + 2) == 3, "two reasons that alternate are no flood either"
