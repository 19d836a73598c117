"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Go from ${down_revision} to ${up_revision}."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Refuse: the way back is the copy that is made before each upgrade."""
    raise NotImplementedError("put back the copy supervisor.db.before-${up_revision}")
