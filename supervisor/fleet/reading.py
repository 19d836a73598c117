"""Reads the fleet's database: its nodes, and the record of each as if it were a database file of this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sqlalchemy import Engine, func, select, text

from supervisor.control.alerts import ReceiverState
from supervisor.core.job import Job
from supervisor.fleet import schema
from supervisor.fleet.database import check_revision, explained
from supervisor.store.archive import Archive
from supervisor.store.sql import Statement
from supervisor.store.steps import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that has sent its record."""

    name: str
    copied_unix_s: int | None
    """When its record was last copied completely; None: never."""


def list_nodes(engine: Engine) -> tuple[Node, ...]:
    """Return every node by name. Raises FleetError."""
    jobs, beats = schema.JOBS.fleet, schema.beats
    copied = select(beats.c.node, func.max(beats.c.at_unix_s)).group_by(beats.c.node)
    with explained(), engine.connect() as connection:
        check_revision(connection)
        found: dict[str, int | None] = dict.fromkeys(connection.execute(select(jobs.c.node).distinct()).scalars())
        found.update((row[0], row[1]) for row in connection.execute(copied))
    return tuple(Node(name=name, copied_unix_s=at) for name, at in sorted(found.items()))


class NodeRows:
    """The rows of one node; implements `store.archive.Rows`. Raises FleetError."""

    def __init__(self, engine: Engine, node: str) -> None:
        self._engine = engine
        self._node = node

    def check(self) -> None:
        """Raise FleetError unless the database has the schema that this version reads."""
        with explained(), self._engine.connect() as connection:
            check_revision(connection)

    def read(self, query: Statement) -> list[Row]:
        """Return the rows of a query of the tables of a node's own database; its parameters are question marks."""
        with explained(), self._engine.connect() as connection:
            setting = {"name": schema.NODE_SETTING, "node": self._node, "path": schema.NODE_SCHEMA}
            connection.execute(text("SELECT set_config(:name, :node, true)"), setting)
            connection.execute(text("SELECT set_config('search_path', :path, true)"), setting)
            found = connection.exec_driver_sql(query.text.replace("?", "%s"), tuple(query.values))
            return [dict(row) for row in found.mappings()]


def open_node(engine: Engine, node: str) -> Archive:
    """Return the record of a node."""
    return Archive(Path(f"the fleet's record of {node}"), NodeRows(engine, node))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of a node besides its rows; implements `control.record_view.Facts`."""

    unreadable_hint: ClassVar[str] = "it lies on that node"

    archive: Archive
    now: Callable[[], float]

    def now_unix_s(self) -> float:
        """Return the time, in Unix seconds."""
        return self.now()

    def job_names(self) -> Collection[str]:
        """Return the names of the jobs that the node recorded."""
        return {job.name for job in self.archive.jobs()}

    def jobs(self) -> Sequence[Job]:
        """Return the jobs as last copied."""
        return self.archive.jobs()

    def receivers(self) -> Mapping[str, ReceiverState]:
        """Return nothing: the receivers of a node's alerts are its own affair."""
        return {}
