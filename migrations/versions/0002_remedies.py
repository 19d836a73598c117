"""Remedies: what was tried against which cause, and what came of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_remedies"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of remedies."""
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


def downgrade() -> None:
    """Forget what was tried."""
    op.drop_table("remedies")
