"""Tiers of the metrics: rows of a minute, five minutes and an hour; the daemon writes them, also of what is there."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004_tiers"
down_revision = "0003_samples"
branch_labels = None
depends_on = None


def _integer(name: str, *, required: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=not required)


def _real(name: str, *, required: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Float(), nullable=not required)


def _create(table: str, keys: list[sa.Column[Any]], *columns: sa.Column[Any]) -> None:
    op.create_table(
        table,
        _integer("width_s"),
        _integer("bucket_unix_s"),
        *keys,
        _real("first_unix_s", required=True),
        _real("last_unix_s", required=True),
        *columns,
        sa.PrimaryKeyConstraint("width_s", "bucket_unix_s", *(key.name for key in keys), name=f"pk_{table}"),
        sqlite_with_rowid=False,
    )


def upgrade() -> None:
    """Create the tables; they are filled while the daemon runs, oldest first."""
    job = sa.Column("job", sa.Text(), nullable=False)
    _create(
        "step_tiers",
        [job, _integer("attempt"), _integer("rank")],
        *(_integer(name) for name in ("steps", "step_first", "step_last", "paced_steps")),
        _real("paced_s", required=True),
        _integer("epoch", required=False),
        _integer("loss_known"),
        *(_real(name) for name in ("loss_min", "loss_mean", "loss_max", "lr_max", "grad_norm_max")),
        _integer("data_wait_known"),
        _real("data_wait_mean_s"),
        _integer("gpu_memory_max_bytes", required=False),
        _integer("non_finite"),
    )
    _create(
        "gpu_tiers",
        [sa.Column("gpu", sa.Text(), nullable=False)],
        _integer("memory_bytes", required=False),
        _real("temperature_c"),
        _integer("power_known"),
        _real("power_w"),
        _integer("busy_known"),
        _real("busy_percent"),
    )
    _create(
        "process_tiers",
        [sa.Column("job", sa.Text(), nullable=False)],
        _integer("rss_bytes", required=False),
        _integer("cpu_known"),
        _real("cpu_percent"),
    )


def downgrade() -> None:
    """Not supported: an older version reads a copy that the upgrade keeps."""
    raise NotImplementedError("put back the copy that the upgrade kept next to the database")
