"""Samples and tokens of the steps: what was drawn from the data, in each bucket of ten seconds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_samples"
down_revision = "0002_event_fields"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; steps that were recorded before have none."""
    op.add_column("step_metrics", sa.Column("samples", sa.Integer()))
    op.add_column("step_metrics", sa.Column("tokens", sa.Integer()))


def downgrade() -> None:
    """Not supported: an older version reads a copy that the upgrade keeps."""
    raise NotImplementedError("put back the copy that the upgrade kept next to the database")
