"""Generations: of what a kept checkpoint is the copy, how good it is, and which limit keeps it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_generations"
down_revision = "0002_remedies"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; a checkpoint that was known before is no generation."""
    for column in (
        sa.Column("kind", sa.Text()),
        sa.Column("source", sa.Text()),
        sa.Column("fitness", sa.Float()),
        sa.Column("kept_by", sa.Text()),
    ):
        op.add_column("checkpoints", column)


def downgrade() -> None:
    """Old versions refuse a newer file; going back is done with the copy that was made before."""
    raise NotImplementedError("put back the copy that was made before the upgrade")
