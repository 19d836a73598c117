"""The initial schema: jobs, attempts, incidents, decisions, remedies, checkpoints, step metrics, samples, alerts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "alerts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sink", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("job", sa.Text()),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("queued_unix_s", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_unix_s", sa.Float()),
        sa.Column("tried_unix_s", sa.Float()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    op.create_index("ix_alerts_state", "alerts", ["state"])
    op.create_table(
        "attempts",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("launched_unix_s", sa.Float()),
        sa.Column("ended_unix_s", sa.Float()),
        sa.Column("folder", sa.Text()),
        sa.Column("resume_from", sa.Text()),
        sa.Column("resume_epoch", sa.Integer()),
        sa.Column("resume_step", sa.Integer()),
        sa.Column("reason", sa.Text()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("exit_signal", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("host_lost", sa.Text()),
        sa.Column("max_rss_bytes", sa.Integer()),
        sa.Column("last_step", sa.Integer()),
        sa.Column("last_epoch", sa.Integer()),
        sa.Column("cursors", sa.JSON()),
        sa.Column("lost_records", sa.Integer()),
        sa.Column("output_bytes", sa.Integer()),
        sa.Column("agent_log_bytes", sa.Integer()),
        sa.PrimaryKeyConstraint("job", "number", name="pk_attempts"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("modified_ns", sa.Integer(), nullable=False),
        sa.Column("inode", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer()),
        sa.Column("step", sa.Integer()),
        sa.Column("verdict", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("first_seen_unix_s", sa.Float(), nullable=False),
        sa.Column("judged_unix_s", sa.Float()),
        sa.Column("kind", sa.Text()),
        sa.Column("source", sa.Text()),
        sa.Column("fitness", sa.Float()),
        sa.Column("kept_by", sa.Text()),
        sa.PrimaryKeyConstraint("job", "path", "size_bytes", "modified_ns", "inode", name="pk_checkpoints"),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("rule", sa.Text()),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
    )
    op.create_index("ix_decisions_job_attempt", "decisions", ["job", "attempt"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("job", sa.Text()),
        sa.Column("attempt", sa.Integer()),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_at_unix_s", "events", ["at_unix_s"])
    op.create_table(
        "flags",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text()),
        sa.Column("fault", sa.Text()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("since_unix_s", sa.Float()),
        sa.Column("since_step", sa.Integer()),
        sa.Column("can_save", sa.Boolean()),
        sa.PrimaryKeyConstraint("id", name="pk_flags"),
    )
    op.create_index("ix_flags_job_attempt", "flags", ["job", "attempt"])
    op.create_table(
        "gpu_samples",
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("gpu_busy_percent", sa.Float()),
        sa.Column("memory_busy_percent", sa.Float()),
        sa.Column("vram_used_bytes", sa.Integer()),
        sa.Column("gtt_used_bytes", sa.Integer()),
        sa.Column("edge_c", sa.Float()),
        sa.Column("junction_c", sa.Float()),
        sa.Column("memory_c", sa.Float()),
        sa.Column("power_w", sa.Float()),
        sa.Column("power_cap_w", sa.Float()),
        sa.Column("fan_rpm", sa.Integer()),
        sa.Column("sclk_hz", sa.Integer()),
        sa.Column("mclk_hz", sa.Integer()),
        sa.Column("runtime_status", sa.Text()),
        sa.PrimaryKeyConstraint("at_unix_s", "gpu", "source", name="pk_gpu_samples"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "gpus",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("unique_id", sa.Text()),
        sa.Column("gfx_version", sa.Text()),
        sa.Column("vram_total_bytes", sa.Integer()),
        sa.Column("gtt_total_bytes", sa.Integer()),
        sa.Column("seen_unix_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("gpu", name="pk_gpus"),
    )
    op.create_table(
        "host_samples",
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("memory_total_bytes", sa.Integer()),
        sa.Column("memory_available_bytes", sa.Integer()),
        sa.Column("swap_used_bytes", sa.Integer()),
        sa.Column("load_1m", sa.Float()),
        sa.Column("cpu_percent", sa.Float()),
        sa.Column("disks", sa.JSON()),
        sa.PrimaryKeyConstraint("at_unix_s", name="pk_host_samples"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("opened_unix_s", sa.Float(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("last_step", sa.Integer()),
        sa.Column("resumed_from", sa.Text()),
        sa.Column("resumed_unix_s", sa.Float()),
        sa.Column("lost_steps", sa.Integer()),
        sa.Column("downtime_s", sa.Float()),
        sa.Column("evidence", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_incidents"),
    )
    op.create_index("ix_incidents_opened_unix_s", "incidents", ["opened_unix_s"])
    op.create_table(
        "jobs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("desired_state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("since_unix_s", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("saved_monotonic_s", sa.Float(), nullable=False),
        sa.Column("saved_unix_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_jobs"),
    )
    op.create_table(
        "notes",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_notes"),
    )
    op.create_table(
        "process_samples",
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("processes", sa.Integer(), nullable=False),
        sa.Column("rss_bytes", sa.Integer()),
        sa.Column("cpu_percent", sa.Float()),
        sa.Column("uninterruptible", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("at_unix_s", "job", name="pk_process_samples"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "remedies",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("remedy", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer()),
        sa.Column("reason", sa.Text()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("settled_unix_s", sa.Float()),
        sa.PrimaryKeyConstraint("job", "attempt", name="pk_remedies"),
    )
    op.create_table(
        "step_metrics",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("bucket_unix_s", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("step_first", sa.Integer(), nullable=False),
        sa.Column("step_last", sa.Integer(), nullable=False),
        sa.Column("first_unix_s", sa.Float(), nullable=False),
        sa.Column("last_unix_s", sa.Float(), nullable=False),
        sa.Column("epoch", sa.Integer()),
        sa.Column("loss_known", sa.Integer(), nullable=False),
        sa.Column("loss_min", sa.Float()),
        sa.Column("loss_mean", sa.Float()),
        sa.Column("loss_max", sa.Float()),
        sa.Column("loss_last", sa.Float()),
        sa.Column("lr_last", sa.Float()),
        sa.Column("grad_norm_max", sa.Float()),
        sa.Column("data_wait_known", sa.Integer(), nullable=False),
        sa.Column("data_wait_mean_s", sa.Float()),
        sa.Column("gpu_memory_max_bytes", sa.Integer()),
        sa.Column("steps_per_s", sa.Float()),
        sa.Column("non_finite", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", "rank", "bucket_unix_s", name="pk_step_metrics"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_step_metrics_bucket_unix_s", "step_metrics", ["bucket_unix_s"])


def downgrade() -> None:
    """Refuse: no schema precedes the initial one."""
    raise NotImplementedError("no schema precedes 0001_initial")
