"""The first schema of the fleet's database: the tables of a node's record, with the node that each row comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_fleet"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = "rocm_supervisor"


def _columns(kind: Any, names: tuple[str, ...], *, required: bool) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, kind(), nullable=not required) for name in names)


def _integer(*names: str, required: bool = False) -> Iterator[sa.Column[Any]]:
    return _columns(sa.BigInteger, names, required=required)


def _real(*names: str, required: bool = False) -> Iterator[sa.Column[Any]]:
    return _columns(sa.Float, names, required=required)


def _text(*names: str, required: bool = False) -> Iterator[sa.Column[Any]]:
    return _columns(sa.Text, names, required=required)


def _boolean(*names: str, required: bool = False) -> Iterator[sa.Column[Any]]:
    return _columns(sa.Boolean, names, required=required)


def _create(table: str, key: tuple[str, ...], *columns: sa.Column[Any]) -> None:
    node = sa.Column("node", sa.Text(), nullable=False)
    op.create_table(table, node, *columns, sa.PrimaryKeyConstraint(*key, name=f"pk_{table}"), schema=SCHEMA)


def upgrade() -> None:
    """Create the tables."""
    _create(
        "flags",
        ("node", "id", "at_unix_s"),
        *_integer("id", required=True),
        *_text("job", required=True),
        *_integer("attempt", required=True),
        *_real("at_unix_s", required=True),
        *_text("rule", "severity", required=True),
        *_text("subject", "fault"),
        *_text("message", required=True),
        *_real("since_unix_s"),
        *_integer("since_step"),
        *_boolean("can_save"),
    )
    _create(
        "decisions",
        ("node", "id", "at_unix_s"),
        *_integer("id", required=True),
        *_text("job", required=True),
        *_integer("attempt", required=True),
        *_real("at_unix_s", required=True),
        *_text("kind", required=True),
        *_text("reason", "rule"),
        *_text("body", required=True),
    )
    _create(
        "events",
        ("node", "id", "at_unix_s"),
        *_integer("id", required=True),
        *_real("at_unix_s", required=True),
        *_text("kind", required=True),
        *_text("job"),
        *_integer("attempt"),
        *_text("body", required=True),
    )
    _create(
        "jobs",
        ("node", "name", "version"),
        *_text("name", "phase", "desired_state", required=True),
        *_integer("attempt", required=True),
        *_text("reason"),
        *_real("since_unix_s", required=True),
        *_text("state", "boot_id", required=True),
        *_real("saved_monotonic_s", "saved_unix_s", required=True),
        *_integer("version", required=True),
        *_real("read_unix_s", required=True),
    )
    _create(
        "attempts",
        ("node", "job", "number", "version"),
        *_text("job", required=True),
        *_integer("number", required=True),
        *_real("launched_unix_s", "ended_unix_s"),
        *_text("folder", "resume_from"),
        *_integer("resume_epoch", "resume_step"),
        *_text("reason"),
        *_integer("exit_code", "exit_signal"),
        *_text("error", "host_lost"),
        *_integer("max_rss_bytes", "last_step", "last_epoch"),
        *_text("cursors"),
        *_integer("lost_records", "output_bytes", "agent_log_bytes"),
        *_integer("version", required=True),
        *_real("read_unix_s", required=True),
    )
    _create(
        "incidents",
        ("node", "id", "version"),
        *_text("id", "job", required=True),
        *_integer("attempt", required=True),
        *_real("opened_unix_s", required=True),
        *_text("rule", required=True),
        *_text("fault"),
        *_text("message", "decision", "outcome", required=True),
        *_integer("last_step"),
        *_text("resumed_from"),
        *_real("resumed_unix_s"),
        *_integer("lost_steps"),
        *_real("downtime_s"),
        *_text("evidence", "reason"),
        *_boolean("closed", required=True),
        *_text("state", required=True),
        *_integer("version", required=True),
        *_real("read_unix_s", required=True),
    )
    _create(
        "remedies",
        ("node", "job", "attempt", "version"),
        *_text("job", required=True),
        *_integer("attempt", required=True),
        *_real("at_unix_s", required=True),
        *_text("cause", "remedy", required=True),
        *_integer("step"),
        *_text("reason"),
        *_text("outcome", required=True),
        *_real("settled_unix_s"),
        *_integer("version", required=True),
        *_real("read_unix_s", required=True),
    )
    _create(
        "checkpoints",
        ("node", "job", "path", "size_bytes", "modified_ns", "inode", "version"),
        *_text("job", "path", required=True),
        *_integer("size_bytes", "modified_ns", "inode", "attempt", required=True),
        *_integer("epoch", "step"),
        *_text("verdict", "reason"),
        *_real("first_seen_unix_s", required=True),
        *_real("judged_unix_s"),
        *_text("kind", "source"),
        *_real("fitness"),
        *_text("kept_by"),
        *_integer("version", required=True),
        *_real("read_unix_s", required=True),
    )
    _create(
        "gpus",
        ("node", "gpu", "version"),
        *_text("gpu", required=True),
        *_text("name", "unique_id", "gfx_version"),
        *_integer("vram_total_bytes", "gtt_total_bytes"),
        *_real("seen_unix_s", required=True),
        *_integer("version", required=True),
        *_real("read_unix_s", required=True),
    )
    _create(
        "step_tiers",
        ("node", "width_s", "bucket_unix_s", "job", "attempt", "rank"),
        *_integer("width_s", "bucket_unix_s", required=True),
        *_text("job", required=True),
        *_integer("attempt", "rank", required=True),
        *_real("first_unix_s", "last_unix_s", required=True),
        *_integer("steps", "step_first", "step_last", "paced_steps", required=True),
        *_real("paced_s", required=True),
        *_integer("epoch"),
        *_integer("loss_known", required=True),
        *_real("loss_min", "loss_mean", "loss_max", "lr_max", "grad_norm_max"),
        *_integer("data_wait_known", required=True),
        *_real("data_wait_mean_s"),
        *_integer("gpu_memory_max_bytes"),
        *_integer("non_finite", required=True),
    )
    _create(
        "gpu_tiers",
        ("node", "width_s", "bucket_unix_s", "gpu"),
        *_integer("width_s", "bucket_unix_s", required=True),
        *_text("gpu", required=True),
        *_real("first_unix_s", "last_unix_s", required=True),
        *_integer("memory_bytes"),
        *_real("temperature_c"),
        *_integer("power_known", required=True),
        *_real("power_w"),
        *_integer("busy_known", required=True),
        *_real("busy_percent"),
    )
    _create(
        "process_tiers",
        ("node", "width_s", "bucket_unix_s", "job"),
        *_integer("width_s", "bucket_unix_s", required=True),
        *_text("job", required=True),
        *_real("first_unix_s", "last_unix_s", required=True),
        *_integer("rss_bytes"),
        *_integer("cpu_known", required=True),
        *_real("cpu_percent"),
    )
    _create(
        "beats",
        ("node", "at_unix_s"),
        *_integer("at_unix_s", required=True),
    )


def downgrade() -> None:
    """Refuse: rows of every node would be lost."""
    raise NotImplementedError("a fleet's database is not taken back to an older schema")
