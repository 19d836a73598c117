"""Plain names in recorded events: `agent_event`, `stages_complete`, `supervision_changed`, findings about a `gpu`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_event_fields"
down_revision = "0001_initial"
branch_labels = None
depends_on = None

REPLACED = (
    ("stage_entered", '"whole":', '"stages_complete":'),
    ("supervision_degraded", '"mended":', '"recovered":'),
    ("supervision_degraded", '"standing":', '"persistent":'),
    ("kernel_reported", '"about":"card"', '"about":"gpu"'),
)
"""Kind of event, what its body has, what it has from now on; quotes inside a string are escaped and do not match."""


events = sa.table("events", sa.column("kind"), sa.column("body"))


def upgrade() -> None:
    """Rename the fields in every recorded event."""
    for kind, former, now in REPLACED:
        body = events.c.body
        op.execute(events.update().where(events.c.kind == kind).values(body=sa.func.replace(body, former, now)))
    op.execute("UPDATE events SET kind = 'supervision_changed' WHERE kind = 'supervision_degraded'")
    # What the agent reported may have any keys of its own below `facts`.
    op.execute(
        "UPDATE events SET body = json_remove(json_set(body, '$.agent_event', json_extract(body, '$.word')), '$.word') "
        "WHERE kind = 'agent_reported' AND json_type(body, '$.word') = 'text'"
    )
