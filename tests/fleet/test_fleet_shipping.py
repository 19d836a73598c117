"""A node's record is copied to the fleet's database completely and once, whatever happens to either meanwhile."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.fleet import schema
from supervisor.fleet.database import create
from supervisor.fleet.errors import FleetError, FleetUnreachableError
from supervisor.fleet.pruning import DAY_S, Kept, prune
from supervisor.fleet.reading import list_nodes, open_node
from supervisor.fleet.sent import Digest, Sent, Version
from supervisor.fleet.shipping import LOOK_BACK_EVERY_S, REFRESH_S, ROWS_AT_ONCE, SETTLE_S, Shipper
from supervisor.store.archive import Archive
from supervisor.store.store import Store
from supervisor.store.timelines import read_lives
from tests.rigs.postgres_server import READER, SHIPPER, FleetDatabase
from tests.store.record_by_hand import (
    START,
    at,
    checkpoint,
    flag,
    incident,
    job,
    launch,
    open_store,
    record_everything,
)

pytestmark = [pytest.mark.xdist_group("postgres")]
LATER_S = 86_400.0


class Clock:
    """Unix seconds that a test moves."""

    def __init__(self) -> None:
        self.unix_s = START.unix_s + LATER_S

    def __call__(self) -> float:
        return self.unix_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = open_store(tmp_path)
    record_everything(opened)
    return opened


def ship_from(
    fleet: FleetDatabase, record: Path, clock: Callable[[], float], node: str = "a", sent: Sent | None = None
) -> Shipper:
    """A shipper with the rights that it has in use."""
    kept = Sent(record.with_name(f"sent-{node}.db"), clock()) if sent is None else sent
    return Shipper(record, fleet.connect(SHIPPER), kept, node, clock)


def read(fleet: FleetDatabase, node: str = "a") -> Archive:
    return open_node(fleet.connect(READER), node)


def test_the_fleet_answers_what_the_nodes_own_record_does(fleet: FleetDatabase, store: Store, clock: Clock) -> None:
    with store.turn(at(95)):
        store.record_decision(launch(2))
        store.save_checkpoint("night", 1, checkpoint(2, Verdict.PROVEN), at(20))
    store.close(at(95))
    own = Archive(store.path)
    shipped = ship_from(fleet, store.path, clock).ship_new()
    copied = read(fleet)
    assert shipped.refused == ()
    assert (copied.jobs(), copied.incidents(), copied.incident("night-1")) == (
        (job(),),
        (incident(),),
        own.incident("night-1"),
    )
    for question in (Archive.attempts, Archive.decisions, Archive.flags, Archive.events, Archive.resumed_saves):
        assert question(copied, "night") == question(own, "night"), question
    assert (copied.remedies(), copied.gpus(), copied.notes()) == (own.remedies(), own.gpus(), own.notes())
    assert [node.name for node in list_nodes(fleet.connect(READER))] == ["a"]


def test_the_time_account_of_a_job_can_be_reckoned_from_its_minutes(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    store.close(at(95))
    with closing(sqlite3.connect(store.path)) as connection:  # as the daemon's roll-up leaves them
        row = {"width_s": 60, "bucket_unix_s": int(START.unix_s) // 60 * 60, "job": "night", "attempt": 1, "rank": 0}
        row |= {"first_unix_s": START.unix_s + 1, "last_unix_s": START.unix_s + 19, "steps": 19, "step_first": 1}
        row |= {"step_last": 19, "paced_steps": 18, "paced_s": 18.0, "loss_known": 19, "data_wait_known": 0}
        row |= {"non_finite": 0, "loss_mean": 0.5}
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT OR REPLACE INTO step_tiers ({', '.join(row)}) VALUES ({marks})", [*row.values()])
        connection.commit()
    ship_from(fleet, store.path, clock).ship_new()
    (metric,) = read(fleet).step_metrics("night")
    assert (metric.steps, metric.step_first, metric.step_last, metric.loss_mean) == (19, 1, 19, 0.5)
    assert metric.steps_per_s == 1.0
    (life,) = read_lives(read(fleet), "night")
    assert [(stride.step_first, stride.step_last) for stride in life.strides] == [(1, 19)]


def test_a_minute_is_copied_once_nothing_more_is_added_to_it(fleet: FleetDatabase, store: Store, clock: Clock) -> None:
    store.close(at(95))
    minute = int(START.unix_s) // 60 * 60
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("DELETE FROM gpu_tiers")
        columns = "width_s, bucket_unix_s, gpu, first_unix_s, last_unix_s, power_known, busy_known"
        connection.execute(f"INSERT INTO gpu_tiers ({columns}) VALUES (60, {minute}, '0', 1.0, 2.0, 0, 0)")
        connection.execute(f"INSERT INTO gpu_tiers ({columns}) VALUES (300, {minute}, '0', 1.0, 2.0, 0, 0)")
        connection.commit()
    clock.unix_s = minute + SETTLE_S
    shipper = ship_from(fleet, store.path, clock)
    shipper.ship_new()
    assert fleet.count("gpu_tiers") == 0
    clock.unix_s += 60
    shipper.ship_new()
    assert fleet.count("gpu_tiers") == 1  # of the minute, not of the five minutes


def test_what_changes_is_shown_as_it_is_now_and_what_does_not_is_sent_once(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    shipper = ship_from(fleet, store.path, clock)
    first = shipper.ship_new()
    assert shipper.ship_new().rows == 1, "only that it was here"
    ended = replace(incident(), outcome="gave_up", reason="its budget is spent")
    with store.turn(at(100)):
        store.save_incident(ended)
    assert shipper.ship_new().rows == 2
    assert read(fleet).incidents() == (ended,)
    assert fleet.count("incidents") == 2
    assert first.rows > 10


def test_a_row_that_changes_all_the_time_is_sent_every_few_minutes(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    shipper = ship_from(fleet, store.path, clock)
    shipper.ship_new()
    with store.turn(at(100)):
        store.save_offsets("night", 1, output_bytes=9000, agent_log_bytes=600)
    assert shipper.ship_new().rows == 1
    clock.unix_s += REFRESH_S
    assert shipper.ship_new().rows == 2
    assert (fleet.count("attempts"), len(read(fleet).attempts("night"))) == (2, 1)


def test_what_was_complete_long_ago_is_read_again_once_an_hour_and_what_completes_is_sent_at_once(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    finished, open_one = replace(incident(2), outcome="gave_up"), incident(3)
    with store.turn(at(90)):
        store.save_incident(finished)
        store.save_incident(open_one)
    shipper = ship_from(fleet, store.path, clock)
    shipper.ship_new()
    clock.unix_s += LOOK_BACK_EVERY_S
    shipper.ship_new()
    clock.unix_s += 60
    late, completed = replace(finished, reason="found out later"), replace(open_one, outcome="gave_up")
    with store.turn(at(100)):
        store.save_incident(late)
        store.save_incident(completed)
    assert shipper.ship_new().rows == 2, "that it was here, and the one that was completed"
    assert completed in read(fleet).incidents()
    clock.unix_s += LOOK_BACK_EVERY_S
    shipper.ship_new()
    assert late in read(fleet).incidents()


def test_what_an_outage_left_unsent_is_sent_after_it_however_long_ago_it_was_complete(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    shipper = ship_from(fleet, store.path, clock)
    shipper.ship_new()
    clock.unix_s += LOOK_BACK_EVERY_S
    shipper.ship_new()
    clock.unix_s += 60
    fleet.server.stop()
    ended = replace(incident(), outcome="gave_up")
    with store.turn(at(100)):
        store.save_incident(ended)
    for _ in range(2):
        with pytest.raises(FleetUnreachableError):
            shipper.ship_new()
        clock.unix_s += 10 * LOOK_BACK_EVERY_S
    fleet.server.start()
    shipper.ship_new()
    assert ended in read(fleet).incidents()


def test_pruning_keeps_every_incident_and_the_newest_of_what_changed(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    shipper = ship_from(fleet, store.path, clock)
    shipper.ship_new()
    ended = replace(incident(), outcome="gave_up")
    with store.turn(at(100)):
        store.save_incident(ended)
    clock.unix_s += 60
    shipper.ship_new()
    assert (fleet.count("incidents"), fleet.count("beats")) == (2, 2)
    young, old = clock.unix_s + 3 * DAY_S, clock.unix_s + 3000 * DAY_S
    kept = Kept(metrics=10, reports=10, replaced=2)
    assert prune(fleet.connect(), kept, young)["incidents"] == 1
    assert read(fleet).incidents() == (ended,)
    assert fleet.count("flags") == 1
    deleted = prune(fleet.connect(), kept, old)
    assert (deleted["flags"], deleted["incidents"], deleted["attempts"], deleted["beats"]) == (1, 0, 0, 1)
    assert (fleet.count("flags"), fleet.count("step_tiers"), fleet.count("beats")) == (0, 0, 1)
    assert read(fleet).incidents() == (ended,)
    assert sum(prune(fleet.connect(), kept, old).values()) == 0


def test_a_role_that_ships_cannot_prune(fleet: FleetDatabase) -> None:
    with pytest.raises(FleetError, match="permission denied"):
        prune(fleet.connect(SHIPPER), Kept(), START.unix_s)


class LosesAnswers(Sent):
    """As where the database commits and its answer does not arrive."""

    def mark_sent(self, name: str, versions: Sequence[Version]) -> None:
        raise sqlite3.OperationalError("the answer was lost")


def test_a_copy_whose_answer_was_lost_is_not_there_twice(fleet: FleetDatabase, store: Store, clock: Clock) -> None:
    path = store.path.with_name("sent.db")
    with pytest.raises(sqlite3.OperationalError):
        ship_from(fleet, store.path, clock, sent=LosesAnswers(path, clock())).ship_new()
    assert fleet.count("attempts") == 1
    ship_from(fleet, store.path, clock, sent=Sent(path, clock())).ship_new()
    assert (fleet.count("attempts"), fleet.count("incidents")) == (1, 1)


def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    events = 5 * ROWS_AT_ONCE
    with store.turn(at(100)):
        for number in range(events):
            store.record_event(ev.UserRequest(at=at(100 + number), job="night", ask=ev.Ask.STOP, by="me"))
    store.close(at(101))
    own = len(Archive(store.path).events("night", limit=10 * events))
    done = threading.Event()

    def ship() -> None:
        shipper = ship_from(fleet, store.path, clock)
        while not done.is_set():
            with suppress(FleetUnreachableError):
                shipper.ship_new()
                done.set()

    shipping = threading.Thread(target=ship)
    shipping.start()
    for _ in range(3):
        deadline = time.perf_counter() + 30
        before = _count_or_none(fleet)
        while not done.is_set() and _count_or_none(fleet) in (None, before) and time.perf_counter() < deadline:
            pass
        fleet.server.kill()
        fleet.server.start()
    shipping.join(60)
    assert done.is_set()
    assert fleet.count("events") == own
    assert len({record.id for record in read(fleet).events("night", limit=10 * events)}) == own


def _count_or_none(fleet: FleetDatabase) -> int | None:
    with suppress(DBAPIError):
        return fleet.count("events")
    return None


def test_rows_that_the_database_never_takes_are_named_and_hold_up_no_others(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    # An index of PostgreSQL holds 2,704 bytes, after its compression.
    long = "/runs/" + "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20_000))
    with store.turn(at(100)):
        store.record_flag("night", 1, replace(flag(), message="a NUL \0 and half a character \ud83d"))
        store.open_attempt(replace(launch(2), resume_from=checkpoint(2, Verdict.PROVEN, path=long)), "/state/2")
        store.save_checkpoint("night", 1, checkpoint(2, Verdict.PROVEN, path=long), at(100))
        store.open_attempt(replace(launch(3), resume_from=checkpoint(3, Verdict.PROVEN)), "/state/3")
    shipper = ship_from(fleet, store.path, clock)
    shipped = shipper.ship_new()
    assert len(shipped.refused) == 1
    assert shipped.refused[0].startswith("checkpoints {")
    assert fleet.count("checkpoints") == 1
    assert read(fleet).flags("night")[0].message.startswith("a NUL \ufffd and half a character")
    assert shipper.ship_new().refused == (), "it is not tried again"


def test_values_that_a_disk_has_spoilt_hold_up_no_others(fleet: FleetDatabase, store: Store, clock: Clock) -> None:
    """SQLite takes a value of any type in any column, and a text with a changed bit."""
    spoilt = (
        "UPDATE flags SET message = CAST(x'ff41' AS TEXT)",
        "UPDATE decisions SET at_unix_s = x'00'",
        "UPDATE attempts SET last_step = x'01'",
        "UPDATE incidents SET closed = 7",
    )
    with closing(sqlite3.connect(store.path)) as record, record:
        for statement in spoilt:
            record.execute(statement)
    shipper = ship_from(fleet, store.path, clock)
    refused = shipper.ship_new().refused
    assert {text.partition(" ")[0] for text in refused} == {"attempts", "decisions", "incidents"}
    assert [flag.message for flag in read(fleet).flags("night")] == ["\ufffdA"]
    assert shipper.ship_new().refused == ()


class StoppingTheServer(Sent):
    """Stops the server's processes for its clients, once something is about to be sent."""

    stopped: list[int]

    def keep(self, name: str, rows: Sequence[Digest], read_unix_s: float) -> list[Version]:
        for pid in set(self.stopped):
            os.kill(pid, signal.SIGSTOP)
        return super().keep(name, rows, read_unix_s)


def test_a_server_that_is_stopped_is_away(fleet: FleetDatabase, store: Store, clock: Clock) -> None:
    """The network answers for it, so that nothing but a limit of one's own ends the wait."""
    sent = StoppingTheServer(store.path.with_name("sent.db"), clock())
    sent.stopped = []
    engine = fleet.connect(SHIPPER)
    note_processes(engine, sent.stopped)
    shipper = Shipper(store.path, engine, sent, "a", clock, answer_limit_s=1.0)
    try:
        with pytest.raises(FleetUnreachableError):
            shipper.ship_new()
    finally:
        for pid in sent.stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    sent.close()
    ship_from(fleet, store.path, clock).ship_new()
    assert fleet.count("flags") == 1


def note_processes(engine: Engine, pids: list[int]) -> None:
    """Note the server's process of each connection."""

    @event.listens_for(engine, "connect")
    def note(connection: Any, _: object) -> None:
        pids.append(connection.info.backend_pid)


def test_ids_that_begin_again_after_a_job_was_forgotten_hide_nothing(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    shipper = ship_from(fleet, store.path, clock)
    shipper.ship_new()
    store.delete_job("night", "night/")
    with store.turn(at(200)):
        store.record_flag("day", 1, replace(flag("loss_spike"), at=at(200)))
    shipper.ship_new()
    assert [record.rule for record in read(fleet).flags("day")] == ["loss_spike"]
    assert [record.rule for record in read(fleet).flags("night")] == ["stall"]


def test_nodes_do_not_see_each_others_rows(fleet: FleetDatabase, store: Store, tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "other").mkdir()
    other = open_store(tmp_path / "other")
    ship_from(fleet, store.path, clock, "a").ship_new()
    ship_from(fleet, other.path, clock, "b").ship_new()
    assert read(fleet, "b").incidents() == ()
    assert read(fleet, "a").incidents() == (incident(),)
    assert [(node.name, node.copied_unix_s is not None) for node in list_nodes(fleet.connect(READER))] == [
        ("a", True),
        ("b", True),
    ]


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (SHIPPER, "UPDATE rocm_supervisor.incidents SET outcome = 'resumed'"),
        (SHIPPER, "DELETE FROM rocm_supervisor.incidents"),
        (SHIPPER, "SELECT * FROM rocm_supervisor.incidents"),
        (SHIPPER, "INSERT INTO rocm_supervisor.revision VALUES ('9')"),
        (READER, "INSERT INTO rocm_supervisor.beats VALUES ('a', 1)"),
        (READER, "DELETE FROM rocm_supervisor_node.incidents"),
    ],
)
def test_a_role_can_do_nothing_but_its_work(fleet: FleetDatabase, role: str, statement: str) -> None:
    with (
        pytest.raises(DBAPIError, match=r"permission denied|cannot delete"),
        fleet.connect(role).begin() as connection,
    ):
        connection.execute(text(statement))


def test_rights_outlast_an_upgrade(fleet: FleetDatabase, store: Store, clock: Clock) -> None:
    create(fleet.connect())
    ship_from(fleet, store.path, clock).ship_new()
    assert read(fleet).incidents() == (incident(),)


def test_a_role_without_rights_and_a_schema_of_another_version_name_what_to_do(
    fleet: FleetDatabase, store: Store, clock: Clock
) -> None:
    sent = Sent(store.path.with_name("sent.db"), clock())
    with pytest.raises(FleetError, match="permission denied") as refused:
        Shipper(store.path, fleet.connect("nobody"), sent, "a", clock).ship_new()
    assert "fleet init --shipper" in refused.value.remedy
    with fleet.connect().begin() as connection:
        connection.execute(text("UPDATE rocm_supervisor.revision SET version_num = '9999_later'"))
    with pytest.raises(FleetError, match="9999_later") as refused:
        ship_from(fleet, store.path, clock).ship_new()
    assert refused.value.remedy == "upgrade rocm-supervisor on this node"
    with fleet.connect().begin() as connection:
        connection.execute(text("DROP SCHEMA rocm_supervisor CASCADE"))
    with pytest.raises(FleetError) as refused:
        ship_from(fleet, store.path, clock).ship_new()
    assert refused.value.remedy.startswith("supervisorctl fleet init")


def test_the_migrations_build_the_tables_that_the_code_knows(fleet: FleetDatabase) -> None:
    from alembic.autogenerate import compare_metadata  # noqa: PLC0415 - this test's alone
    from alembic.migration import MigrationContext  # noqa: PLC0415

    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        return name == schema.SCHEMA if kind == "schema" else name != schema.VERSION_TABLE

    with fleet.connect().connect() as connection:
        options = {"include_schemas": True, "include_name": is_ours, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
