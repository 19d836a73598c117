"""The tables of the database, as migrations/ builds them.

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

from supervisor.core.measured import measures_of
from supervisor.core.readings import GpuReading, HostReading

SQL_TYPES = {int: Integer, float: Float, str: Text}
"""The types that a measured field may have where it is recorded."""

metadata = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"},
)


def _text(name: str, *, required: bool = False) -> Column[str]:
    return Column(name, Text, nullable=not required)


def _integer(name: str, *, required: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=not required)


def _real(name: str, *, required: bool = False) -> Column[float]:
    return Column(name, Float, nullable=not required)


def _measured(reading: type) -> tuple[Column[Any], ...]:
    """Return a column for each field that a reading declares as recorded, in that order."""
    recorded = (measure for measure in measures_of(reading).values() if measure.record)
    return tuple(Column(measure.name, SQL_TYPES[measure.type]) for measure in recorded)


jobs = Table(
    "jobs",
    metadata,
    _text("name", required=True),
    _text("phase", required=True),
    _text("desired_state", required=True),
    _integer("attempt", required=True),
    _text("reason"),
    _real("since_unix_s", required=True),
    _text("state", required=True),  # the Job as JSON
    _text("boot_id", required=True),
    _real("saved_monotonic_s", required=True),
    _real("saved_unix_s", required=True),
    PrimaryKeyConstraint("name"),
)

attempts = Table(
    "attempts",
    metadata,
    _text("job", required=True),
    _integer("number", required=True),
    _real("launched_unix_s"),
    _real("ended_unix_s"),
    _text("folder"),
    _text("resume_from"),
    _integer("resume_epoch"),
    _integer("resume_step"),
    _text("reason"),
    _integer("exit_code"),
    _integer("exit_signal"),
    _text("error"),
    _text("host_lost"),
    _integer("max_rss_bytes"),
    _integer("last_step"),
    _integer("last_epoch"),
    Column("cursors", JSON),  # {"RANK": records read of that recorder}
    _integer("lost_records"),
    _integer("output_bytes"),
    _integer("agent_log_bytes"),
    PrimaryKeyConstraint("job", "number"),
)

incidents = Table(
    "incidents",
    metadata,
    _text("id", required=True),
    _text("job", required=True),
    _integer("attempt", required=True),
    _real("opened_unix_s", required=True),
    _text("rule", required=True),
    _text("fault"),
    _text("message", required=True),
    _text("decision", required=True),
    _text("outcome", required=True),
    _integer("last_step"),
    _text("resumed_from"),
    _real("resumed_unix_s"),
    _integer("lost_steps"),
    _real("downtime_s"),
    _text("evidence"),
    _text("reason"),
    Column("closed", Boolean, nullable=False),
    _text("state", required=True),  # the Incident as JSON
    PrimaryKeyConstraint("id"),
    Index(None, "opened_unix_s"),
)

flags = Table(
    "flags",
    metadata,
    Column("id", Integer, nullable=False),
    _text("job", required=True),
    _integer("attempt", required=True),
    _real("at_unix_s", required=True),
    _text("rule", required=True),
    _text("severity", required=True),
    _text("subject"),
    _text("fault"),
    _text("message", required=True),
    _real("since_unix_s"),
    _integer("since_step"),
    Column("can_save", Boolean),
    PrimaryKeyConstraint("id"),
    Index(None, "job", "attempt"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Integer, nullable=False),
    _text("job", required=True),
    _integer("attempt", required=True),
    _real("at_unix_s", required=True),
    _text("kind", required=True),
    _text("reason"),
    _text("rule"),
    _text("body", required=True),  # the Decision as JSON
    PrimaryKeyConstraint("id"),
    Index(None, "job", "attempt"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _text("job", required=True),
    _text("path", required=True),
    _integer("size_bytes", required=True),
    _integer("modified_ns", required=True),
    _integer("inode", required=True),
    _integer("attempt", required=True),
    _integer("epoch"),
    _integer("step"),
    _text("verdict"),
    _text("reason"),
    _real("first_seen_unix_s", required=True),
    _real("judged_unix_s"),
    _text("kind"),
    _text("source"),  # of a generation: the file that it was captured from
    _real("fitness"),
    _text("kept_by"),  # of a generation: empty once it was pruned
    PrimaryKeyConstraint("job", "path", "size_bytes", "modified_ns", "inode"),
)

remedies = Table(
    "remedies",
    metadata,
    _text("job", required=True),
    _integer("attempt", required=True),  # the first that had it
    _real("at_unix_s", required=True),
    _text("cause", required=True),
    _text("remedy", required=True),
    _integer("step"),
    _text("reason"),
    _text("outcome", required=True),  # open, helped, failed, unclear
    _real("settled_unix_s"),
    PrimaryKeyConstraint("job", "attempt"),
)

alerts = Table(
    "alerts",
    metadata,
    _text("id", required=True),
    _text("sink", required=True),
    _text("type", required=True),
    _text("job"),
    _text("body", required=True),
    _real("queued_unix_s", required=True),
    _text("state", required=True),  # waiting, delivered, failed
    _integer("tries", required=True),
    _real("next_unix_s"),
    _real("tried_unix_s"),
    _text("error"),
    PrimaryKeyConstraint("id"),
    Index(None, "state"),
)

step_metrics = Table(
    "step_metrics",
    metadata,
    _text("job", required=True),
    _integer("attempt", required=True),
    _integer("rank", required=True),
    _integer("bucket_unix_s", required=True),  # start of ten seconds
    _integer("steps", required=True),
    _integer("step_first", required=True),
    _integer("step_last", required=True),
    _real("first_unix_s", required=True),
    _real("last_unix_s", required=True),
    _integer("epoch"),
    _integer("loss_known", required=True),
    _real("loss_min"),
    _real("loss_mean"),
    _real("loss_max"),
    _real("loss_last"),
    _real("lr_last"),
    _real("grad_norm_max"),
    _integer("data_wait_known", required=True),
    _real("data_wait_mean_s"),
    _integer("gpu_memory_max_bytes"),
    _real("steps_per_s"),
    _integer("non_finite", required=True),
    PrimaryKeyConstraint("job", "attempt", "rank", "bucket_unix_s"),
    Index(None, "bucket_unix_s"),
    sqlite_with_rowid=False,
)

gpus = Table(
    "gpus",
    metadata,
    _text("gpu", required=True),
    _text("name"),
    _text("unique_id"),
    _text("gfx_version"),
    _integer("vram_total_bytes"),
    _integer("gtt_total_bytes"),
    _real("seen_unix_s", required=True),
    PrimaryKeyConstraint("gpu"),
)

gpu_samples = Table(
    "gpu_samples",
    metadata,
    _real("at_unix_s", required=True),
    _text("gpu", required=True),
    _text("source", required=True),
    *_measured(GpuReading),
    PrimaryKeyConstraint("at_unix_s", "gpu", "source"),
    sqlite_with_rowid=False,
)

host_samples = Table(
    "host_samples",
    metadata,
    _real("at_unix_s", required=True),
    *_measured(HostReading),
    Column("disks", JSON),  # [{"path", "free_bytes", "total_bytes"}]
    PrimaryKeyConstraint("at_unix_s"),
    sqlite_with_rowid=False,
)

process_samples = Table(
    "process_samples",
    metadata,
    _real("at_unix_s", required=True),
    _text("job", required=True),
    _integer("attempt", required=True),
    _integer("processes", required=True),
    _integer("rss_bytes"),
    _real("cpu_percent"),
    _integer("uninterruptible", required=True),
    PrimaryKeyConstraint("at_unix_s", "job"),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, nullable=False),
    _real("at_unix_s", required=True),
    _text("kind", required=True),
    _text("job"),
    _integer("attempt"),
    _text("body", required=True),
    PrimaryKeyConstraint("id"),
    Index(None, "at_unix_s"),
)

notes = Table(
    "notes",
    metadata,
    _text("key", required=True),
    _text("value", required=True),
    _real("at_unix_s", required=True),
    PrimaryKeyConstraint("key"),
)
