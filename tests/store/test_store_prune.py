"""What is past its time goes, a bounded part a call; what tells a story stays."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from record_by_hand import START, at, gpu, host, made, open_store, record_everything, tree

from supervisor.core import events as ev
from supervisor.store.committer import LOG_AGAIN_S
from supervisor.store.database import Database, Failure, UnusableError
from supervisor.store.encode import BODY_LIMIT_BYTES, to_json
from supervisor.store.opening import prepare
from supervisor.store.prune import CHUNK_ROWS, EVENTS_OF_A_JOB
from supervisor.store.sql import Statement
from supervisor.store.statements import EVENT
from supervisor.store.steps import Row
from supervisor.store.write_queue import Pending
from supervisor.store.writer import Writer

DAY_S = 86400.0


@dataclass(frozen=True)
class Retention:
    step_metrics_days: float = 90
    five_minutes_days: float = 90
    hours_days: float = 730
    samples_days: float = 14
    incidents_days: float = 3650
    database_limit_mb: float = 1024


def counts(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def test_samples_go_first_then_steps_and_incidents_last(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    record_everything(store)
    before = counts(store.path)
    assert store.prune(at(13 * DAY_S), Retention()) == 0
    tiers = counts(store.path)
    assert {name for name in before if tiers[name] != before[name]} == {"step_tiers", "gpu_tiers", "process_tiers"}
    # Two readings of a GPU, one of the host and of the processes, and their rows of ten seconds and of a minute.
    assert store.prune(at(15 * DAY_S), Retention()) == 4 + 4
    after = counts(store.path)
    assert {name for name in tiers if after[name] != tiers[name]} == {
        "gpu_samples",
        "host_samples",
        "process_samples",
        "gpu_tiers",
        "process_tiers",
    }
    # Steps, their minute, and every row of five minutes.
    assert store.prune(at(91 * DAY_S), Retention()) == 2 + 1 + 3
    assert counts(store.path)["step_metrics"] == 0
    assert store.prune(at(731 * DAY_S), Retention()) == 3
    store.prune(at(3651 * DAY_S), Retention())
    left = {name for name, count in counts(store.path).items() if count}
    # An incident that is still open, and an alert that still waits, are nobody's past.
    assert left == {"jobs", "incidents", "alerts", "checkpoints", "gpus", "notes", "alembic_version"}
    store.close(START)


def test_one_call_deletes_a_bounded_part(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(CHUNK_ROWS + 500):  # of the host: they have no coarser rows
        store.add_host_sample(host(number))
        if number % 900 == 0:
            store.flush(at(number))
    store.flush(at(1))
    later = at(15 * DAY_S)
    assert [store.prune(later, Retention()) for _ in range(3)] == [CHUNK_ROWS, 500, 0]
    store.close(later)


def test_a_file_beyond_its_limit_sheds_the_oldest_samples_and_shrinks(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    record_everything(store)
    for number in range(12_000):
        store.add_gpu_samples([gpu(number)])
        if number % 1900 == 0:
            store.flush(at(number))
    store.flush(at(1))
    store.add_process_sample("night", 1, tree(13_000))
    store.flush(at(2))
    full = pages(store.path)
    rounds = 0
    while store.prune(at(13_000), Retention(database_limit_mb=0.5)):
        rounds += 1
        assert rounds < 20
    assert pages(store.path) < full / 2
    left = counts(store.path)
    assert left["gpu_samples"] < 7100
    assert left["process_samples"] == 1, "the oldest went, of whatever kind"
    assert (left["incidents"], left["step_metrics"], left["jobs"]) == (1, 2, 1)
    store.close(START)


def pages(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA page_count").fetchone()[0])


def test_with_no_samples_left_the_oldest_step_metrics_go(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made(range(1, 1000), cursor=999))
    store.flush(START)
    assert store.prune(START, Retention(database_limit_mb=0.001)) == 100
    assert store.prune(START, Retention(database_limit_mb=0.001)) == 0
    store.close(START)


def test_one_jobs_events_cost_no_other_job_its_steps(tmp_path: Path) -> None:
    """Beyond the limit the events of the job that tells most go, down to what any training tells."""
    store = open_store(tmp_path)
    record_everything(store)
    steps = counts(store.path)["step_metrics"]
    words = ev.AgentReported(
        at=at(0), job="noisy", attempt=1, agent_event=ev.AgentEvent.ALLOCATOR, facts={"text": "x" * 200}
    )
    for number in range(EVENTS_OF_A_JOB + CHUNK_ROWS):
        store.record_event(replace(words, at=at(number / 10)))
        if number % 4000 == 0:
            store.flush(at(number))
    store.flush(at(1))
    assert store.prune(at(9000), Retention(database_limit_mb=1)) == CHUNK_ROWS
    assert counts(store.path)["step_metrics"] == steps
    with closing(sqlite3.connect(store.path)) as connection:
        rows = dict(connection.execute("SELECT job, count(*) FROM events GROUP BY job").fetchall())
    assert rows.pop("noisy") == EVENTS_OF_A_JOB
    assert sum(rows.values()) > 0
    store.close(at(9000))


def test_beyond_the_limit_the_steps_of_the_job_that_has_most_go_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_steps(made(range(1, 40), cursor=39))
    for number in range(200):
        store.add_steps(replace(made(range(number * 40, number * 40 + 40), cursor=number * 40 + 40), job="other"))
    store.flush(at(1))
    before = steps_by_job(store.path)
    assert store.prune(at(9000), Retention(database_limit_mb=0)) > 0
    after = steps_by_job(store.path)
    assert (after["night"], after.get("other", 0) < before["other"]) == (before["night"], True)
    store.close(at(9000))


def steps_by_job(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT job, count(*) FROM step_metrics GROUP BY job").fetchall())


def test_while_nothing_can_be_written_one_jobs_events_push_out_no_other_jobs() -> None:
    pending = Pending()
    for number in range(100):
        pending.append(EVENT, {"job": "quiet", "number": number})
    for number in range(3 * EVENT.keep):
        pending.append(EVENT, {"job": "noisy", "number": number})
    rows = pending.rows(EVENT)
    assert len(rows) == EVENT.keep
    assert [row["number"] for row in rows if row["job"] == "quiet"] == list(range(100))
    assert rows[-1] == {"job": "noisy", "number": 3 * EVENT.keep - 1}
    pending = Pending()
    for number in range(EVENT.keep + 1):
        pending.append(EVENT, {"job": f"job {number % 3}", "number": number})
    assert len(pending.rows(EVENT)) == EVENT.keep


def test_a_body_in_the_record_is_bounded_whatever_a_word_holds() -> None:
    facts: dict[str, object] = {f"field {number}": [["x" * 2000] * 4] * 3 for number in range(30)}
    output = ev.AgentReported(at=START, job="night", attempt=1, agent_event=ev.AgentEvent.ALIVE, facts=facts)
    body = to_json(output)
    assert len(body) <= BODY_LIMIT_BYTES
    assert json.loads(body)["agent_event"] == "alive"


class FailingFile(Database):
    """A file that can be opened, but neither read nor changed."""

    def read(self, query: Statement) -> list[Row]:
        """Fail as the disk does."""
        raise UnusableError(Failure.OTHER, "disk I/O error")

    def change(self, *statements: Statement) -> int:
        """Fail as the disk does."""
        raise UnusableError(Failure.OTHER, "disk I/O error")


def test_why_nothing_is_deleted_or_aggregated_is_logged_once_and_again_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "supervisor.db"
    prepare(path, START.unix_s)
    writer = Writer(FailingFile(path), START)

    def prune_at(seconds: float) -> list[int]:
        """Return how often each has been logged after some tries."""
        writer.now = at(seconds)
        for _ in range(3):
            assert writer.prune(at(seconds), Retention(), at(seconds).unix_s) == 0
            assert writer.forget("jobs", [("night",)]) == 0
        return [caplog.text.count(event) for event in ("store.rollup_failed", "store.prune_failed")]

    assert [prune_at(0), prune_at(LOG_AGAIN_S - 1), prune_at(LOG_AGAIN_S)] == [[1, 1], [1, 1], [2, 2]]
    writer.close(at(LOG_AGAIN_S))
