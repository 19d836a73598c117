"""The file is brought to the present schema before anything is written, or refused; nothing in it is lost."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from record_by_hand import START, at, incident, job, open_store, trial
from sqlalchemy import create_engine

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.core.job import Job, Limits
from supervisor.core.remedies.budget import Ledger
from supervisor.core.remedies.context import Experience
from supervisor.core.remedies.spec import InForce
from supervisor.core.remedies.trials import Course
from supervisor.json_bytes import encode_json
from supervisor.replay.folder import event_types
from supervisor.shipped import shipped
from supervisor.store import schema, sql
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.jobs import decode_incident, decode_job, encode
from supervisor.store.prune import OF_JOB
from supervisor.store.store import Store, StoreError
from supervisor.store.tables import as_sql, metadata
from supervisor.store.upgrade import upgrade

ROOT = Path(__file__).resolve().parents[2]
DATABASES = Path(__file__).parent / "databases"
"""One database of each revision, as SQL."""


def layout(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    layouts = {name: re.sub(r"\s+", "", sql) for name, sql in rows}
    # A column that was added since is the last one: these tables are written and read by the names of their columns.
    return layouts | {name: ",".join(sorted(layouts[name].split(","))) for name in schema.MEASURED}


def database_of(folder: Path, revision: str) -> Path:
    """Build the database that a version with this revision wrote."""
    path = folder / "supervisor.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DATABASES / f"{revision}.sql").read_text(encoding="utf-8"))
    return path


def test_the_migrations_build_what_the_tables_say(tmp_path: Path) -> None:
    migrated, created = tmp_path / "migrated.db", tmp_path / "created.db"
    upgrade(migrated, shipped("migrations"))
    schema.add_measured_columns(migrated)
    schema.create(created)
    assert layout(migrated) == layout(created)
    engine = create_engine(f"sqlite:///{migrated}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_what_the_daemon_knows_of_the_tables_is_what_they_say() -> None:
    assert schema.TABLES.read_text(encoding="utf-8") == as_sql(), "run `make frozen-names`"
    assert {name: tuple(table.primary_key.columns.keys()) for name, table in metadata.tables.items()} == sql.KEYS
    of_job = {name for name, table in metadata.tables.items() if "job" in table.columns}
    assert of_job == {*OF_JOB, "alerts"}


@pytest.mark.parametrize("made_by", ["create", "upgrade"])
def test_a_new_file_gives_freed_pages_back(tmp_path: Path, made_by: str) -> None:
    path = tmp_path / "supervisor.db"
    if made_by == "create":
        schema.create(path)
    else:
        upgrade(path, shipped("migrations"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_the_revisions_in_the_code_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(shipped("migrations")))
    script = ScriptDirectory.from_config(config)
    assert tuple(reversed([revision.revision for revision in script.walk_revisions()])) == schema.REVISIONS
    assert script.get_current_head() == schema.HEAD


@pytest.mark.slow
@pytest.mark.parametrize("revision", schema.REVISIONS)
def test_a_database_of_every_revision_opens_and_keeps_jobs_budgets_and_remedies(tmp_path: Path, revision: str) -> None:
    path = database_of(tmp_path, revision)
    store = open_store(tmp_path)
    assert store.problem is None
    assert store.load_jobs(START) == (recorded_job(),)
    assert store.experience() == (Experience(cause="gpu_hang", remedy="restart", helped=1, failed=0),)
    assert [(checkpoint.epoch, checkpoint.verdict) for checkpoint in store.checkpoints("night") or ()] == [
        (3, Verdict.PROVEN)
    ]
    assert store.cursors("night", 1).recorder == {0: 19}
    assert [alert.id for alert in store.due_alerts(START.plus(3600), 10)] == ["msg_one"]
    assert store.note("kernel log") == "5c2a 1234"
    store.close(START)
    archive = Archive(path)
    archive.check()
    assert archive.incidents() == (incident(),)
    assert [metric.steps for metric in archive.step_metrics("night")] == [9, 10]
    assert [(decision.kind, decision.rule) for decision in archive.decisions("night")] == [
        ("stop", "stall"),
        ("launch", None),
    ]
    with closing(sqlite3.connect(path)) as connection:
        for table in tables_of(revision):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0, table


def recorded_job() -> Job:
    """The job in `databases/`: in the midst of a stop, with a budget that is half spent and a remedy in force."""
    ledger = Ledger(
        total=4,
        in_a_row=2,
        causes=(("gpu_hang", 2),),
        free_in_a_row=1,
        recent_unix_s=(at(5).unix_s, at(40).unix_s),
        furthest_step=411,
        proven_step=400,
    )
    lower_lr = InForce(remedy="lower_lr", cause="non_finite", attempt=1, step=300, applied="lr 0.005")
    course = Course(trials=(trial(),), in_force=(lower_lr,), returns=1)
    return replace(job(), limits=recorded_limits(), ledger=ledger, course=course)


def recorded_limits() -> Limits:
    """The limits of that job: ladders are recorded as they were, without the rungs that came later."""
    limits = job().limits
    environment = dict.fromkeys(("crash", "miopen", "no_kernel_image"), ("other_environment",))
    hosts = dict.fromkeys(("slow_start", "stall"), ("ranks_host", "other_environment"))
    came_later = {"oom_gpu": ("xla_memory",), **environment, **hosts}
    ladders: dict[str, Any] = {
        cause: tuple(rung for rung in limits.remedies.ladder(cause) if rung not in later)
        for cause, later in came_later.items()
    }
    return replace(limits, remedies=replace(limits.remedies, **ladders))


@pytest.fixture(params=schema.REVISIONS)
def opened(request: pytest.FixtureRequest, make_folder_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A database of each revision after a store has opened, so upgraded, and closed it; tests only read it."""
    revision = str(request.param)

    def fill(folder: Path) -> None:
        database_of(folder, revision)
        open_store(folder).close(START)

    return make_folder_once(f"database of {revision}", fill) / "supervisor.db"


@pytest.mark.slow
def test_no_key_of_a_recorded_state_is_unknown(opened: Path) -> None:
    """Decoding ignores unknown keys: a renamed field would take its default, and what was recorded be forgotten."""
    with closing(sqlite3.connect(opened)) as connection:
        (state,) = connection.execute("SELECT state FROM jobs").fetchone()
        (incident_state,) = connection.execute("SELECT state FROM incidents").fetchone()
    assert keys_of(json.loads(state)) <= keys_of(json.loads(encode(decode_job(state))))
    assert keys_of(json.loads(incident_state)) <= keys_of(json.loads(encode(decode_incident(incident_state))))


@pytest.mark.slow
def test_events_that_were_recorded_under_former_names_lose_no_field(opened: Path) -> None:
    with closing(sqlite3.connect(opened)) as connection:
        recorded = dict(connection.execute("SELECT kind, body FROM events").fetchall())
    events: dict[str, Any] = {
        kind: msgspec.json.decode(body, type=event_types()[kind]) for kind, body in recorded.items()
    }
    assert events["agent_reported"].agent_event is ev.AgentEvent.PLAN
    assert events["agent_reported"].facts == {"epochs": 3, "word": "its own"}
    assert events["stage_entered"].stages_complete
    assert [finding.about for finding in events["kernel_reported"].findings] == ["gpu"]
    changed = events["supervision_changed"]
    assert (changed.place, changed.recovered, changed.persistent) == ("rule stall", False, False)
    assert changed.error == 'ValueError: "mended": no'
    for kind, body in recorded.items():
        assert keys_of(json.loads(body)) <= keys_of(json.loads(encode_json(events[kind]))), kind


def keys_of(value: object, path: str = "") -> set[str]:
    """Return the path of every key in decoded JSON; items of a list share one."""
    if isinstance(value, dict):
        return {f"{path}.{key}" for key in value}.union(
            *(keys_of(item, f"{path}.{key}") for key, item in value.items())
        )
    if isinstance(value, list):
        return set().union(*(keys_of(item, f"{path}[]") for item in value))
    return set()


def tables_of(revision: str) -> set[str]:
    text = (DATABASES / f"{revision}.sql").read_text(encoding="utf-8")
    return set(re.findall(r'CREATE TABLE "?(\w+)"?', text))


def test_the_database_of_a_revision_has_a_row_in_every_table() -> None:
    """So that the next migration is tried on all of them."""
    for revision in schema.REVISIONS:
        text = (DATABASES / f"{revision}.sql").read_text(encoding="utf-8")
        assert tables_of(revision) - set(re.findall(r'INSERT INTO "?(\w+)"?', text)) == set()
    assert tables_of(schema.HEAD) >= set(metadata.tables)


def test_an_older_file_is_copied_then_upgraded_in_a_child(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.db"
    migrations = with_second_revision(tmp_path, "op.add_column('notes', sa.Column('colour', sa.Text()))")
    database_of(tmp_path, schema.HEAD)
    upgrade(path, migrations)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("next",)
        assert connection.execute("SELECT colour FROM notes").fetchall() == [(None,)]


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    body = "op.add_column('notes', sa.Column('colour', sa.Text()))\n    raise RuntimeError('half way')"
    migrations = with_second_revision(tmp_path, body)
    path = database_of(tmp_path, schema.HEAD)
    before = layout(path)
    with pytest.raises(RuntimeError, match="half way"):
        upgrade(path, migrations)
    assert layout(path) == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (schema.HEAD,)


def with_second_revision(folder: Path, body: str) -> Path:
    migrations = folder / "100 % migrations"
    shutil.copytree(shipped("migrations"), migrations, ignore=shutil.ignore_patterns("__pycache__"))
    (migrations / "versions" / "next.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\nrevision = 'next'\n"
        f"down_revision = '{schema.HEAD}'\ndef upgrade() -> None:\n    {body}\n",
        encoding="utf-8",
    )
    return migrations


@pytest.mark.slow
def test_the_upgrade_runs_in_a_child_after_a_copy_and_three_copies_are_kept(tmp_path: Path) -> None:
    path = database_of(tmp_path, schema.HEAD)
    before = layout(path)
    for number in range(4):
        (tmp_path / f"supervisor.db.before-x{number}").write_bytes(b"older")
    done = schema.upgrade(path, "0000")
    assert f"supervisor.db.before-{schema.HEAD}" in done
    kept = {item.name for item in tmp_path.glob("supervisor.db.before-*")}
    assert len(kept) == 3
    assert f"supervisor.db.before-{schema.HEAD}" in kept
    assert layout(tmp_path / f"supervisor.db.before-{schema.HEAD}") == before


@pytest.mark.slow
def test_an_upgrade_that_cannot_run_is_reported_with_the_way_back(tmp_path: Path) -> None:
    path = database_of(tmp_path, schema.HEAD)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'lost'")
    with pytest.raises(StoreError, match=rf"could not be upgraded.*lost.*before-{schema.HEAD}"):
        schema.upgrade(path, "lost")


@pytest.mark.parametrize("revision", ["0001", "0003_generations", "9999"])
def test_a_file_of_an_unknown_revision_is_refused_unchanged(tmp_path: Path, revision: str) -> None:
    path = database_of(tmp_path, schema.HEAD)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    before = path.read_bytes()
    message = (
        f"{re.escape(str(path))} has schema {revision}, .* reads {', '.join(schema.REVISIONS)}.*move the file away"
    )
    with pytest.raises(StoreError, match=message):
        open_store(tmp_path)
    with pytest.raises(ArchiveError, match=message):
        Archive(path).check()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_after_a_refused_file_was_moved_away_a_new_one_is_created(tmp_path: Path) -> None:
    path = database_of(tmp_path, schema.HEAD)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0002_remedies'")
    with pytest.raises(StoreError, match="schema 0002_remedies"):
        open_store(tmp_path)
    path.rename(tmp_path / "earlier.db")
    store = open_store(tmp_path)
    assert store.problem is None
    assert store.load_jobs(START) == ()
    store.close(START)
    with closing(sqlite3.connect(tmp_path / "earlier.db")) as connection:
        assert connection.execute("SELECT name FROM jobs").fetchall() == [("night",)]


def test_a_file_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="bookmarks"):
        open_store(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "url", ["postgresql://db/supervisor", "mysql+pymysql://db/x", "sqlite://", "sqlite:///:memory:", "supervisor.db"]
)
def test_a_database_that_is_not_supported_is_named_with_what_is(url: str) -> None:
    with pytest.raises(StoreError, match="sqlite:////absolute/path/"):
        Store.open(url, START, "boot")
