"""The tables of the database, as migrations/ builds them; the daemon has them as `schema.sql`, without SQLAlchemy.

Times are Unix seconds. Monotonic time is stored in the state of a job only, with the boot that it belongs to.
Columns that repeat parts of a JSON column exist for queries. Samples are clustered by time (no rowid): they are
written, read and deleted in that order.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from supervisor.core.measured import measures_of
from supervisor.core.readings import GpuReading, HostReading

SQL_TYPES = {int: Integer, float: Float, str: Text}
"""The types that a measured field may have where it is recorded."""

metadata = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"},
)


def as_sql() -> str:
    """Return the statements that create every table and index, as `schema.sql` has them."""
    tables, dialect = metadata.sorted_tables, sqlite.dialect()
    created = [str(CreateTable(table).compile(dialect=dialect)) for table in tables]
    created += [str(CreateIndex(index).compile(dialect=dialect)) for table in tables for index in _list_indexes(table)]
    lines = ";\n".join(text.strip() for text in created).expandtabs(4).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines).rstrip() + ";\n"


def _list_indexes(table: Table) -> list[Index]:
    return sorted(table.indexes, key=lambda index: str(index.name))


def _text_column(name: str, *, required: bool = False) -> Column[str]:
    return Column(name, Text, nullable=not required)


def _integer_column(name: str, *, required: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=not required)


def _real_column(name: str, *, required: bool = False) -> Column[float]:
    return Column(name, Float, nullable=not required)


def _measured_columns(reading: type) -> tuple[Column[Any], ...]:
    """Return a column for each field that a reading declares as recorded, in that order."""
    recorded = (measure for measure in measures_of(reading).values() if measure.record)
    return tuple(Column(measure.name, SQL_TYPES[measure.type]) for measure in recorded)


jobs = Table(
    "jobs",
    metadata,
    _text_column("name", required=True),
    _text_column("phase", required=True),
    _text_column("desired_state", required=True),
    _integer_column("attempt", required=True),
    _text_column("reason"),
    _real_column("since_unix_s", required=True),
    _text_column("state", required=True),  # the Job as JSON
    _text_column("boot_id", required=True),
    _real_column("saved_monotonic_s", required=True),
    _real_column("saved_unix_s", required=True),
    PrimaryKeyConstraint("name"),
)

attempts = Table(
    "attempts",
    metadata,
    _text_column("job", required=True),
    _integer_column("number", required=True),
    _real_column("launched_unix_s"),
    _real_column("ended_unix_s"),
    _text_column("folder"),
    _text_column("resume_from"),
    _integer_column("resume_epoch"),
    _integer_column("resume_step"),
    _text_column("reason"),
    _integer_column("exit_code"),
    _integer_column("exit_signal"),
    _text_column("error"),
    _text_column("host_lost"),
    _integer_column("max_rss_bytes"),
    _integer_column("last_step"),
    _integer_column("last_epoch"),
    Column("cursors", JSON),  # {"RANK": records read of that recorder}
    _integer_column("lost_records"),
    _integer_column("output_bytes"),
    _integer_column("agent_log_bytes"),
    PrimaryKeyConstraint("job", "number"),
)

incidents = Table(
    "incidents",
    metadata,
    _text_column("id", required=True),
    _text_column("job", required=True),
    _integer_column("attempt", required=True),
    _real_column("opened_unix_s", required=True),
    _text_column("rule", required=True),
    _text_column("fault"),
    _text_column("message", required=True),
    _text_column("decision", required=True),
    _text_column("outcome", required=True),
    _integer_column("last_step"),
    _text_column("resumed_from"),
    _real_column("resumed_unix_s"),
    _integer_column("lost_steps"),
    _real_column("downtime_s"),
    _text_column("evidence"),
    _text_column("reason"),
    Column("closed", Boolean, nullable=False),
    _text_column("state", required=True),  # the Incident as JSON
    PrimaryKeyConstraint("id"),
    Index(None, "opened_unix_s"),
)

flags = Table(
    "flags",
    metadata,
    Column("id", Integer, nullable=False),
    _text_column("job", required=True),
    _integer_column("attempt", required=True),
    _real_column("at_unix_s", required=True),
    _text_column("rule", required=True),
    _text_column("severity", required=True),
    _text_column("subject"),
    _text_column("fault"),
    _text_column("message", required=True),
    _real_column("since_unix_s"),
    _integer_column("since_step"),
    Column("can_save", Boolean),
    PrimaryKeyConstraint("id"),
    Index(None, "job", "attempt"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Integer, nullable=False),
    _text_column("job", required=True),
    _integer_column("attempt", required=True),
    _real_column("at_unix_s", required=True),
    _text_column("kind", required=True),
    _text_column("reason"),
    _text_column("rule"),
    _text_column("body", required=True),  # the Decision as JSON
    PrimaryKeyConstraint("id"),
    Index(None, "job", "attempt"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _text_column("job", required=True),
    _text_column("path", required=True),
    _integer_column("size_bytes", required=True),
    _integer_column("modified_ns", required=True),
    _integer_column("inode", required=True),
    _integer_column("attempt", required=True),
    _integer_column("epoch"),
    _integer_column("step"),
    _text_column("verdict"),
    _text_column("reason"),
    _real_column("first_seen_unix_s", required=True),
    _real_column("judged_unix_s"),
    _text_column("kind"),
    _text_column("source"),  # of a generation: the file that it was captured from
    _real_column("fitness"),
    _text_column("kept_by"),  # of a generation: empty once it was pruned
    PrimaryKeyConstraint("job", "path", "size_bytes", "modified_ns", "inode"),
)

remedies = Table(
    "remedies",
    metadata,
    _text_column("job", required=True),
    _integer_column("attempt", required=True),  # the first with the remedy
    _real_column("at_unix_s", required=True),
    _text_column("cause", required=True),
    _text_column("remedy", required=True),
    _integer_column("step"),
    _text_column("reason"),
    _text_column("outcome", required=True),  # open, helped, failed, unclear, skipped
    _real_column("settled_unix_s"),
    PrimaryKeyConstraint("job", "attempt"),
)

alerts = Table(
    "alerts",
    metadata,
    _text_column("id", required=True),
    _text_column("sink", required=True),
    _text_column("type", required=True),
    _text_column("job"),
    _text_column("body", required=True),
    _real_column("queued_unix_s", required=True),
    _text_column("state", required=True),  # waiting, delivered, failed, withdrawn
    _integer_column("tries", required=True),
    _real_column("next_unix_s"),
    _real_column("tried_unix_s"),
    _text_column("error"),
    PrimaryKeyConstraint("id"),
    Index(None, "state"),
)

step_metrics = Table(
    "step_metrics",
    metadata,
    _text_column("job", required=True),
    _integer_column("attempt", required=True),
    _integer_column("rank", required=True),
    _integer_column("bucket_unix_s", required=True),  # start of ten seconds
    _integer_column("steps", required=True),
    _integer_column("step_first", required=True),
    _integer_column("step_last", required=True),
    _real_column("first_unix_s", required=True),
    _real_column("last_unix_s", required=True),
    _integer_column("epoch"),
    _integer_column("loss_known", required=True),
    _real_column("loss_min"),
    _real_column("loss_mean"),
    _real_column("loss_max"),
    _real_column("loss_last"),
    _real_column("lr_last"),
    _real_column("grad_norm_max"),
    _integer_column("data_wait_known", required=True),
    _real_column("data_wait_mean_s"),
    _integer_column("gpu_memory_max_bytes"),
    _real_column("steps_per_s"),
    _integer_column("non_finite", required=True),
    _integer_column("samples"),
    _integer_column("tokens"),
    PrimaryKeyConstraint("job", "attempt", "rank", "bucket_unix_s"),
    Index(None, "bucket_unix_s"),
    sqlite_with_rowid=False,
)


def _tier_columns(keys: tuple[Column[Any], ...]) -> tuple[Any, ...]:
    """Return what the rows of every tier have; clustered by time, as they are read and deleted."""
    return (
        _integer_column("width_s", required=True),
        _integer_column("bucket_unix_s", required=True),
        *keys,
        _real_column("first_unix_s", required=True),
        _real_column("last_unix_s", required=True),
        PrimaryKeyConstraint("width_s", "bucket_unix_s", *(key.name for key in keys)),
    )


step_tiers = Table(
    "step_tiers",
    metadata,
    *_tier_columns(
        (
            _text_column("job", required=True),
            _integer_column("attempt", required=True),
            _integer_column("rank", required=True),
        )
    ),
    _integer_column("steps", required=True),
    _integer_column("step_first", required=True),
    _integer_column("step_last", required=True),
    _integer_column("paced_steps", required=True),
    _real_column("paced_s", required=True),
    _integer_column("epoch"),
    _integer_column("loss_known", required=True),
    _real_column("loss_min"),
    _real_column("loss_mean"),
    _real_column("loss_max"),
    _real_column("lr_max"),
    _real_column("grad_norm_max"),
    _integer_column("data_wait_known", required=True),
    _real_column("data_wait_mean_s"),
    _integer_column("gpu_memory_max_bytes"),
    _integer_column("non_finite", required=True),
    sqlite_with_rowid=False,
)

gpu_tiers = Table(
    "gpu_tiers",
    metadata,
    *_tier_columns((_text_column("gpu", required=True),)),
    _integer_column("memory_bytes"),
    _real_column("temperature_c"),
    _integer_column("power_known", required=True),
    _real_column("power_w"),
    _integer_column("busy_known", required=True),
    _real_column("busy_percent"),
    sqlite_with_rowid=False,
)

process_tiers = Table(
    "process_tiers",
    metadata,
    *_tier_columns((_text_column("job", required=True),)),
    _integer_column("rss_bytes"),
    _integer_column("cpu_known", required=True),
    _real_column("cpu_percent"),
    sqlite_with_rowid=False,
)

gpus = Table(
    "gpus",
    metadata,
    _text_column("gpu", required=True),
    _text_column("name"),
    _text_column("unique_id"),
    _text_column("gfx_version"),
    _integer_column("vram_total_bytes"),
    _integer_column("gtt_total_bytes"),
    _real_column("seen_unix_s", required=True),
    PrimaryKeyConstraint("gpu"),
)

gpu_samples = Table(
    "gpu_samples",
    metadata,
    _real_column("at_unix_s", required=True),
    _text_column("gpu", required=True),
    _text_column("source", required=True),
    *_measured_columns(GpuReading),
    PrimaryKeyConstraint("at_unix_s", "gpu", "source"),
    sqlite_with_rowid=False,
)

host_samples = Table(
    "host_samples",
    metadata,
    _real_column("at_unix_s", required=True),
    *_measured_columns(HostReading),
    Column("disks", JSON),  # [{"path", "free_bytes", "total_bytes", "free_inodes", "total_inodes"}]
    PrimaryKeyConstraint("at_unix_s"),
    sqlite_with_rowid=False,
)

process_samples = Table(
    "process_samples",
    metadata,
    _real_column("at_unix_s", required=True),
    _text_column("job", required=True),
    _integer_column("attempt", required=True),
    _integer_column("processes", required=True),
    _integer_column("rss_bytes"),
    _real_column("cpu_percent"),
    _integer_column("uninterruptible", required=True),
    PrimaryKeyConstraint("at_unix_s", "job"),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, nullable=False),
    _real_column("at_unix_s", required=True),
    _text_column("kind", required=True),
    _text_column("job"),
    _integer_column("attempt"),
    _text_column("body", required=True),
    PrimaryKeyConstraint("id"),
    Index(None, "at_unix_s"),
)

notes = Table(
    "notes",
    metadata,
    _text_column("key", required=True),
    _text_column("value", required=True),
    _real_column("at_unix_s", required=True),
    PrimaryKeyConstraint("key"),
)
