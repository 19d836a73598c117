"""The tables of the fleet's database: those of a node's record with a column `node`, as migrations/fleet builds them.

Rows are only ever inserted. What changes in a node's record (an open incident, a living attempt) is inserted again
with the next `version`; the schema `NODE_SCHEMA` has a view for each table that shows the newest version of one node's
rows, in the columns of that node's own database, so that the same queries answer for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, BigInteger, Column, Float, Integer, MetaData, PrimaryKeyConstraint, Table, Text

from supervisor.store import tables
from supervisor.store.tiers import MINUTE_S

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

SCHEMA = "rocm_supervisor"
NODE_SCHEMA = "rocm_supervisor_node"
NODE_SETTING = "rocm_supervisor.node"
"""The setting of a connection that names the node whose rows the views show."""
REVISION = "0001_fleet"
"""The newest revision in migrations/fleet."""
VERSION_TABLE = "revision"
"""Alembic's own table."""

metadata = MetaData(schema=SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A table of a node's record with its copy here."""

    local: Table
    fleet: Table
    versioned: bool = False
    """Whether its rows change in the node's record; the others are written once."""
    restless: tuple[str, ...] = ()
    """Columns that change all the time: a row in which nothing else did is copied again after minutes only."""
    restful: str = ""
    """SQL condition of the rows that are complete, and hardly change any more; "" where all may change."""

    @property
    def name(self) -> str:
        """The name that both tables have."""
        return self.local.name

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row within its node."""
        return tuple(column.name for column in self.local.primary_key.columns)


def _copy_columns(local: Table) -> list[Column[Any]]:
    """Return the columns of a table, in the types of the rows that its file gives."""
    return [Column(column.name, _copy_type(column.type), nullable=column.nullable) for column in local.columns]


def _copy_type(local: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return a type here: SQLite's integers have 64 bits, and its JSON is text."""
    if isinstance(local, Integer):
        return BigInteger()
    return Text() if isinstance(local, JSON) else local


def _ship(
    local: Table,
    *,
    versioned: bool = False,
    also: tuple[str, ...] = (),
    restless: tuple[str, ...] = (),
    restful: str = "",
) -> Shipped:
    """Declare the copy of a table; `also`: columns that its key needs here besides."""
    key = ("node", *(column.name for column in local.primary_key.columns), *also, *(("version",) if versioned else ()))
    versions = (
        [Column("version", BigInteger, nullable=False), Column("read_unix_s", Float, nullable=False)]
        if versioned
        else []
    )
    fleet = Table(
        local.name,
        metadata,
        Column("node", Text, nullable=False),
        *_copy_columns(local),
        *versions,
        PrimaryKeyConstraint(*key, name=f"pk_{local.name}"),
    )
    return Shipped(local=local, fleet=fleet, versioned=versioned, restless=restless, restful=restful)


# A job that is forgotten takes its rows out of the node's record, whose ids begin again: the time tells them apart.
FLAGS = _ship(tables.flags, also=("at_unix_s",))
DECISIONS = _ship(tables.decisions, also=("at_unix_s",))
EVENTS = _ship(tables.events, also=("at_unix_s",))
NUMBERED = (FLAGS, DECISIONS, EVENTS)
"""Written once, in the order of their id."""
JOBS = _ship(tables.jobs, versioned=True, restless=("state", "saved_monotonic_s", "saved_unix_s"))
ATTEMPTS = _ship(
    tables.attempts,
    versioned=True,
    restless=("max_rss_bytes", "last_step", "cursors", "lost_records", "output_bytes", "agent_log_bytes"),
    restful="ended_unix_s IS NOT NULL",
)
INCIDENTS = _ship(tables.incidents, versioned=True, restful="closed")
REMEDIES = _ship(tables.remedies, versioned=True, restful="settled_unix_s IS NOT NULL")
CHECKPOINTS = _ship(tables.checkpoints, versioned=True, restful="judged_unix_s IS NOT NULL")
GPUS = _ship(tables.gpus, versioned=True, restless=("seen_unix_s",))
VERSIONED = (ATTEMPTS, INCIDENTS, REMEDIES, CHECKPOINTS, GPUS, JOBS)
STEP_MINUTES = _ship(tables.step_tiers)
GPU_MINUTES = _ship(tables.gpu_tiers)
PROCESS_MINUTES = _ship(tables.process_tiers)
MINUTES = (STEP_MINUTES, GPU_MINUTES, PROCESS_MINUTES)
"""Metrics aggregated over a minute; the coarser rows stay behind."""

beats = Table(
    "beats",
    metadata,
    Column("node", Text, nullable=False),
    Column("at_unix_s", BigInteger, nullable=False),  # whole minutes
    PrimaryKeyConstraint("node", "at_unix_s", name="pk_beats"),
)
"""That a node's record was copied completely, once a minute."""

_STEPS_OF_A_MINUTE = {
    "loss_last": "CAST(NULL AS double precision)",
    "lr_last": "lr_max",
    "steps_per_s": "CASE WHEN paced_s > 0 THEN paced_steps / paced_s END",
    "samples": "CAST(NULL AS bigint)",
    "tokens": "CAST(NULL AS bigint)",
}
"""The columns of `step_metrics` that a minute's row has under another name, or not at all."""


def views() -> dict[str, str]:
    """Return the query of each view by its name: a table of one node's record."""
    of_node = f"node = current_setting('{NODE_SETTING}')"
    found = {}
    for shipped in (*NUMBERED, *VERSIONED):
        key, columns = ", ".join(shipped.key), ", ".join(shipped.local.columns.keys())
        newest, order = (f"DISTINCT ON ({key}) ", f" ORDER BY {key}, version DESC") if shipped.versioned else ("", "")
        found[shipped.name] = f"SELECT {newest}{columns} FROM {SCHEMA}.{shipped.name} WHERE {of_node}{order}"  # noqa: S608 - our own names
    steps = ", ".join(
        f"{_STEPS_OF_A_MINUTE[name]} AS {name}" if name in _STEPS_OF_A_MINUTE else name
        for name in tables.step_metrics.columns.keys()  # noqa: SIM118 - a collection of columns, not a dictionary
    )
    of_minutes = f"{SCHEMA}.{STEP_MINUTES.name} WHERE width_s = {MINUTE_S} AND {of_node}"
    found[tables.step_metrics.name] = f"SELECT {steps} FROM {of_minutes}"  # noqa: S608 - the same
    return found
