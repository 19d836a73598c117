"""Every kind of write with its statement, its urgency and the number of rows kept while nothing can be written.

Rows replace an earlier row of their key or are merged with it, so a queue of them can be written at any later time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Insert, Table, case, func
from sqlalchemy.dialects.sqlite import insert

from supervisor.core.lean_dataclass import dataclass
from supervisor.store import steps, tables
from supervisor.store.steps import Row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """One kind of row on its way into the database."""

    name: str
    statement: Insert
    urgent: bool = False
    """Whether it is committed at the end of its turn; other rows wait for the next commit or flush."""
    durable: bool = False
    """Whether its commit waits for the disk (synchronous=FULL).

    True for rows whose loss in a power failure would change what the next daemon does: an attempt number used twice, a
    budget not spent, an alert sent again. Other rows may lose the last seconds (NORMAL), but not their consistency.
    """
    keep: int
    """Rows kept in memory while nothing can be written; beyond that, the oldest are dropped."""
    merge: Callable[[Row, Row], Row] | None = None
    """Merges a waiting row with a later one of the same key; None: the later one replaces it."""


def _insert_or_ignore(table: Table) -> Insert:
    return insert(table).on_conflict_do_nothing()


def _upsert(table: Table, *columns: str) -> Insert:
    """Insert, or set only these columns of the existing row."""
    statement = insert(table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={name: statement.excluded[name] for name in columns}
    )


def _all_but(table: Table, *fixed: str) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if not column.primary_key and column.name not in fixed)


def _upsert_checkpoints() -> Insert:
    table = tables.checkpoints
    statement = insert(table)
    known = ("epoch", "step", "verdict", "reason", "judged_unix_s", "kind", "source", "fitness", "kept_by")
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={name: func.coalesce(statement.excluded[name], table.c[name]) for name in known},
    )


def newer_knowledge(old: Row, new: Row) -> Row:
    """Known columns of a checkpoint are kept: a later row may lack them."""
    known = {name: value for name, value in new.items() if value is not None}
    return {**old, **known, "first_seen_unix_s": old["first_seen_unix_s"], "attempt": old["attempt"]}


def _step_metrics() -> Insert:
    table = tables.step_metrics
    statement = insert(table)
    old, new = table.c, statement.excluded

    def extreme(choose: Callable[..., ColumnElement[Any]], name: str) -> ColumnElement[Any]:
        return choose(func.coalesce(old[name], new[name]), func.coalesce(new[name], old[name]))

    def mean(name: str, known: str) -> ColumnElement[Any]:
        # Weights before products: the sum of large finite numbers may overflow.
        count = func.nullif(old[known] + new[known], 0) * 1.0
        return func.coalesce(old[name], 0.0) * (old[known] / count) + func.coalesce(new[name], 0.0) * (
            new[known] / count
        )

    def total(name: str) -> ColumnElement[Any]:
        return func.coalesce(old[name] + new[name], new[name], old[name])

    count = old.steps + new.steps
    first, last = func.min(old.first_unix_s, new.first_unix_s), func.max(old.last_unix_s, new.last_unix_s)
    added = ("steps", "loss_known", "data_wait_known", "non_finite")
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={
            **{name: old[name] + new[name] for name in added},
            **{name: total(name) for name in ("samples", "tokens")},
            **{name: extreme(func.min, name) for name in ("step_first", "first_unix_s", "loss_min")},
            **{name: extreme(func.max, name) for name in ("step_last", "last_unix_s", "loss_max")},
            **{name: extreme(func.max, name) for name in ("grad_norm_max", "gpu_memory_max_bytes")},
            **{name: func.coalesce(new[name], old[name]) for name in ("epoch", "loss_last", "lr_last")},
            "loss_mean": mean("loss_mean", "loss_known"),
            "data_wait_mean_s": mean("data_wait_mean_s", "data_wait_known"),
            "steps_per_s": case((last > first, (count - 1) / (last - first)), else_=None),
        },
    )


_OPENED = ("launched_unix_s", "folder", "resume_from", "resume_epoch", "resume_step", "reason")
_CLOSED = ("ended_unix_s", "exit_code", "exit_signal", "error", "host_lost", "max_rss_bytes")
_PROGRESS = ("last_step", "last_epoch", "cursors", "lost_records", "output_bytes", "agent_log_bytes")

JOB = Kind(name="job", statement=_upsert(tables.jobs, *_all_but(tables.jobs)), urgent=True, keep=1000)
ATTEMPT_OPENED = Kind(
    name="attempt opened", statement=_upsert(tables.attempts, *_OPENED), urgent=True, durable=True, keep=10_000
)
ATTEMPT_CLOSED = Kind(
    name="attempt closed", statement=_upsert(tables.attempts, *_CLOSED), urgent=True, durable=True, keep=10_000
)
PROGRESS = Kind(name="progress", statement=_upsert(tables.attempts, *_PROGRESS), keep=10_000)
INCIDENT = Kind(
    name="incident",
    statement=_upsert(tables.incidents, *_all_but(tables.incidents)),
    urgent=True,
    durable=True,
    keep=10_000,
)
DECISION = Kind(name="decision", statement=_insert_or_ignore(tables.decisions), urgent=True, durable=True, keep=10_000)
FLAG = Kind(name="flag", statement=_insert_or_ignore(tables.flags), urgent=True, keep=10_000)
CHECKPOINT = Kind(
    name="checkpoint", statement=_upsert_checkpoints(), urgent=True, durable=True, keep=10_000, merge=newer_knowledge
)
REMEDY = Kind(
    name="remedy",
    statement=_upsert(tables.remedies, *_all_but(tables.remedies)),
    urgent=True,
    durable=True,
    keep=10_000,
)
ALERT = Kind(
    name="alert",
    statement=_upsert(tables.alerts, "state", "tries", "next_unix_s", "tried_unix_s", "error"),
    urgent=True,
    durable=True,
    keep=2000,
)
EVENT = Kind(name="event", statement=_insert_or_ignore(tables.events), urgent=True, keep=5000)
NOTE = Kind(name="note", statement=_upsert(tables.notes, "value", "at_unix_s"), keep=1000)
STEPS = Kind(name="steps", statement=_step_metrics(), keep=20_000, merge=steps.merged)
GPU = Kind(name="gpu", statement=_upsert(tables.gpus, *_all_but(tables.gpus)), keep=100)
GPU_SAMPLE = Kind(name="gpu sample", statement=_insert_or_ignore(tables.gpu_samples), keep=2000)
HOST_SAMPLE = Kind(name="host sample", statement=_insert_or_ignore(tables.host_samples), keep=1000)
PROCESS_SAMPLE = Kind(name="process sample", statement=_insert_or_ignore(tables.process_samples), keep=1000)

KINDS: tuple[Kind, ...] = (
    JOB,
    ATTEMPT_OPENED,
    PROGRESS,
    ATTEMPT_CLOSED,
    INCIDENT,
    DECISION,
    FLAG,
    CHECKPOINT,
    REMEDY,
    ALERT,
    EVENT,
    NOTE,
    STEPS,
    GPU,
    GPU_SAMPLE,
    HOST_SAMPLE,
    PROCESS_SAMPLE,
)
"""In the order in which a commit writes them."""
