"""The file is brought to the present schema before anything is written; nothing of it is lost on the way."""

from __future__ import annotations

import ast
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from record_by_hand import START, job, open_store, record_everything
from sqlalchemy import create_engine

from supervisor.core.checkpoints import Verdict
from supervisor.shipped import shipped
from supervisor.store import schema
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.store import Store, StoreError
from supervisor.store.tables import metadata
from supervisor.store.upgrade import upgrade

ROOT = Path(__file__).resolve().parents[2]
OLD = Path(__file__).parent / "old"


def layout(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: re.sub(r"\s+", "", sql) for name, sql in rows}


def old_file(folder: Path, revision: str) -> Path:
    path = folder / "supervisor.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((OLD / f"{revision}.sql").read_text(encoding="utf-8"))
    return path


def test_the_migrations_build_what_the_tables_say(tmp_path: Path) -> None:
    migrated, created = tmp_path / "migrated.db", tmp_path / "created.db"
    upgrade(migrated, shipped("migrations"))
    schema.create(created)
    assert layout(migrated) == layout(created)
    engine = create_engine(f"sqlite:///{migrated}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


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
    assert tuple(reversed([one.revision for one in script.walk_revisions()])) == schema.REVISIONS
    assert script.get_current_head() == schema.HEAD


@pytest.mark.parametrize("revision", schema.REVISIONS)
def test_every_old_file_opens_and_keeps_its_rows(tmp_path: Path, revision: str) -> None:
    path = old_file(tmp_path, revision)
    store = open_store(tmp_path)
    assert store.problem is None
    (loaded,) = store.load_jobs(START)
    assert loaded.name == "night"
    assert [(one.epoch, one.verdict) for one in store.checkpoints("night") or ()] == [(3, Verdict.PROVEN)]
    assert store.cursors("night", 1).recorder == {0: 19}
    assert [one.id for one in store.due_alerts(START.plus(3600), 10)] == ["msg_one"]
    assert store.note("kernel log") == "5c2a 1234"
    store.close(START)
    archive = Archive(path)
    archive.check()
    assert [one.id for one in archive.incidents()] == ["night-1"]
    assert [one.steps for one in archive.step_metrics("night")] == [9, 10]
    with closing(sqlite3.connect(path)) as connection:
        for table in tables_of(revision):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0, table


def tables_of(revision: str) -> set[str]:
    text = (OLD / f"{revision}.sql").read_text(encoding="utf-8")
    return set(re.findall(r'CREATE TABLE "?(\w+)"?', text))


def test_the_old_file_has_a_row_in_every_table_of_its_time() -> None:
    """So that the next migration is tried on all of them."""
    for revision in schema.REVISIONS:
        text = (OLD / f"{revision}.sql").read_text(encoding="utf-8")
        assert tables_of(revision) - set(re.findall(r'INSERT INTO "?(\w+)"?', text)) == set()
    assert tables_of(schema.HEAD) >= set(metadata.tables)


def test_an_older_file_is_copied_then_upgraded_in_a_child(tmp_path: Path) -> None:
    """Tried with a step back of our own making: the fixture's schema is the head of today."""
    path = tmp_path / "supervisor.db"
    migrations = with_second_revision(tmp_path, "op.add_column('notes', sa.Column('colour', sa.Text()))")
    old_file(tmp_path, schema.HEAD)
    upgrade(path, migrations)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("next",)
        assert connection.execute("SELECT colour FROM notes").fetchall() == [(None,)]


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    body = "op.add_column('notes', sa.Column('colour', sa.Text()))\n    raise RuntimeError('half way')"
    migrations = with_second_revision(tmp_path, body)
    path = old_file(tmp_path, schema.HEAD)
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


def test_the_upgrade_runs_in_a_child_after_a_copy_and_three_copies_are_kept(tmp_path: Path) -> None:
    path = old_file(tmp_path, "0001")
    before = layout(path)
    for number in range(4):
        (tmp_path / f"supervisor.db.before-x{number}").write_bytes(b"older")
    done = schema.upgrade(path, "0000")
    assert f"supervisor.db.before-{schema.HEAD}" in done
    kept = {one.name for one in tmp_path.glob("supervisor.db.before-*")}
    assert len(kept) == 3
    assert f"supervisor.db.before-{schema.HEAD}" in kept
    assert layout(tmp_path / f"supervisor.db.before-{schema.HEAD}") == before


def test_an_upgrade_that_cannot_run_is_told_with_the_way_back(tmp_path: Path) -> None:
    path = old_file(tmp_path, "0001")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'lost'")
    with pytest.raises(StoreError, match=rf"could not be upgraded.*lost.*before-{schema.HEAD}"):
        schema.upgrade(path, "lost")


def test_a_newer_file_is_refused_untouched(tmp_path: Path) -> None:
    path = old_file(tmp_path, "0001")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer version \(schema 9999"):
        open_store(tmp_path)
    assert path.read_bytes() == before
    with pytest.raises(ArchiveError, match="newer version"):
        Archive(path).check()


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


def test_the_daemon_imports_neither_alembic_nor_the_orm() -> None:
    code = (
        "import sys; import supervisor.store.store, supervisor.store.archive;"
        "print([one for one in ('alembic', 'mako', 'sqlalchemy.orm') if one in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ast.literal_eval(told.stdout) == []


def test_the_dump_is_what_the_store_writes_today(tmp_path: Path) -> None:
    """It was made by record_everything; the head's tables have the columns of the newest dump."""
    store = open_store(tmp_path)
    record_everything(store)
    store.close(START)
    again = open_store(tmp_path)
    assert [one.name for one in again.load_jobs(START)] == [job().name]
    again.close(START)
