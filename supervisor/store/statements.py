"""Every kind of write with its statement, its urgency and the number of rows kept while nothing can be written.

Rows replace an earlier row of their key or are merged with it, so a queue of them can be written at any later time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.store import sql, steps
from supervisor.store.steps import Row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """One kind of row on its way into the database."""

    name: str
    table: str
    changes: Mapping[str, str] | None = None
    """What is set where the table has a row of that key: expressions by column (`sql.upsert`); None: all columns."""
    replaces: bool = True
    """Whether a row changes the one of its key at all; one that does not is dropped."""
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

    def statement(self, columns: Sequence[str]) -> str:
        """Return the statement that writes a row of these columns."""
        if not self.replaces:
            return sql.insert_or_ignore(self.table, columns)
        others = (name for name in columns if name not in sql.KEYS[self.table])
        return sql.upsert(self.table, columns, _take_over(*others) if self.changes is None else self.changes)


def _take_over(*columns: str) -> dict[str, str]:
    """Return the changes that set only these columns of the existing row."""
    return {name: f"excluded.{name}" for name in columns}


_KNOWN = ("epoch", "step", "verdict", "reason", "judged_unix_s", "kind", "source", "fitness", "kept_by")


def newer_knowledge(old: Row, new: Row) -> Row:
    """Known columns of a checkpoint are kept: a later row may lack them."""
    known = {name: value for name, value in new.items() if value is not None}
    return {**old, **known, "first_seen_unix_s": old["first_seen_unix_s"], "attempt": old["attempt"]}


def _step_changes() -> dict[str, str]:
    """Return what `steps.merged` does, as SQL."""

    def mean(name: str, known: str) -> str:
        # Weights before products: the sum of large finite numbers may overflow.
        count = f"(nullif({known} + excluded.{known}, 0) * 1.0)"
        old = f"coalesce({name}, 0.0) * ({known} / {count})"
        return f"{old} + coalesce(excluded.{name}, 0.0) * (excluded.{known} / {count})"

    def extreme(choose: str, name: str) -> str:
        return f"{choose}(coalesce({name}, excluded.{name}), coalesce(excluded.{name}, {name}))"

    first, last = "min(first_unix_s, excluded.first_unix_s)", "max(last_unix_s, excluded.last_unix_s)"
    added = ("steps", "loss_known", "data_wait_known", "non_finite")
    lowest = ("step_first", "first_unix_s", "loss_min")
    highest = ("step_last", "last_unix_s", "loss_max", "grad_norm_max", "gpu_memory_max_bytes")
    return {
        **{name: f"{name} + excluded.{name}" for name in added},
        **{name: f"coalesce({name} + excluded.{name}, excluded.{name}, {name})" for name in ("samples", "tokens")},
        **{name: extreme("min", name) for name in lowest},
        **{name: extreme("max", name) for name in highest},
        **{name: f"coalesce(excluded.{name}, {name})" for name in ("epoch", "loss_last", "lr_last")},
        "loss_mean": mean("loss_mean", "loss_known"),
        "data_wait_mean_s": mean("data_wait_mean_s", "data_wait_known"),
        "steps_per_s": f"CASE WHEN {last} > {first} THEN (steps + excluded.steps - 1) / ({last} - {first}) END",
    }


_OPENED = ("launched_unix_s", "folder", "resume_from", "resume_epoch", "resume_step", "reason")
_CLOSED = ("ended_unix_s", "exit_code", "exit_signal", "error", "host_lost", "max_rss_bytes")
_PROGRESS = ("last_step", "last_epoch", "cursors", "lost_records", "output_bytes", "agent_log_bytes")
_TRIED = ("state", "tries", "next_unix_s", "tried_unix_s", "error")

JOB = Kind(name="job", table="jobs", urgent=True, keep=1000)
ATTEMPT_OPENED = Kind(
    name="attempt opened", table="attempts", changes=_take_over(*_OPENED), urgent=True, durable=True, keep=10_000
)
ATTEMPT_CLOSED = Kind(
    name="attempt closed", table="attempts", changes=_take_over(*_CLOSED), urgent=True, durable=True, keep=10_000
)
PROGRESS = Kind(name="progress", table="attempts", changes=_take_over(*_PROGRESS), keep=10_000)
INCIDENT = Kind(name="incident", table="incidents", urgent=True, durable=True, keep=10_000)
DECISION = Kind(name="decision", table="decisions", replaces=False, urgent=True, durable=True, keep=10_000)
FLAG = Kind(name="flag", table="flags", replaces=False, urgent=True, keep=10_000)
CHECKPOINT = Kind(
    name="checkpoint",
    table="checkpoints",
    changes={name: f"coalesce(excluded.{name}, {name})" for name in _KNOWN},
    urgent=True,
    durable=True,
    keep=10_000,
    merge=newer_knowledge,
)
REMEDY = Kind(name="remedy", table="remedies", urgent=True, durable=True, keep=10_000)
ALERT = Kind(name="alert", table="alerts", changes=_take_over(*_TRIED), urgent=True, durable=True, keep=2000)
EVENT = Kind(name="event", table="events", replaces=False, urgent=True, keep=5000)
NOTE = Kind(name="note", table="notes", keep=1000)
STEPS = Kind(name="steps", table="step_metrics", changes=_step_changes(), keep=20_000, merge=steps.merged)
GPU = Kind(name="gpu", table="gpus", keep=100)
GPU_SAMPLE = Kind(name="gpu sample", table="gpu_samples", replaces=False, keep=2000)
HOST_SAMPLE = Kind(name="host sample", table="host_samples", replaces=False, keep=1000)
PROCESS_SAMPLE = Kind(name="process sample", table="process_samples", replaces=False, keep=1000)

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
