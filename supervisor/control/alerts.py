"""The answer to GET /v1/alerts, from the database: receivers with their counts, and the newest alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from supervisor.control import types
from supervisor.store.archive import Archive
from supervisor.store.outbox import DELIVERED, FAILED, WAITING
from supervisor.store.records import AlertCount, AlertRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverState:
    """A configured receiver of alerts."""

    kind: str
    """Its channel."""
    min_severity: str
    """The lowest severity that it wants, in words."""
    problem: str | None = None
    """Why it cannot be sent to; None too where that was not tried."""
    warning: str | None = None
    """Why it does not work as configured."""
    muted_until: float | None = None
    """End of its mute, Unix seconds; None too where no daemon runs."""
    quiet: bool = False
    """Whether it has quiet hours now."""


def alerts_report(archive: Archive, receivers: Mapping[str, ReceiverState], limit: int) -> types.AlertsReport:
    """Return each configured receiver, by its name, with its counts, and the `limit` newest alerts."""
    counts = archive.alert_counts()
    return types.AlertsReport(
        receivers=[_summarize_receiver(name, receivers[name], counts) for name in sorted(receivers)],
        alerts=[_build_entry(alert) for alert in archive.alerts(limit=limit)],
    )


def _summarize_receiver(name: str, receiver: ReceiverState, counts: tuple[AlertCount, ...]) -> types.AlertReceiver:
    by_state = {count.state: count for count in counts if count.sink == name}
    waiting = by_state.get(WAITING)
    error = waiting.error if waiting else None
    state: Literal["ok", "failing", "unusable"] = "ok"
    if receiver.problem is not None:
        state = "unusable"
    elif error is not None:
        state = "failing"
    return types.AlertReceiver(
        name=name,
        state=state,
        kind=receiver.kind,
        min_severity=receiver.min_severity,
        waiting=waiting.count if waiting else 0,
        delivered=by_state[DELIVERED].count if DELIVERED in by_state else 0,
        given_up=by_state[FAILED].count if FAILED in by_state else 0,
        last_delivered_at=by_state[DELIVERED].tried_unix_s if DELIVERED in by_state else None,
        problem=receiver.problem or error,
        warning=receiver.warning,
        muted_until=receiver.muted_until,
        quiet=receiver.quiet,
    )


def _build_entry(alert: AlertRecord) -> types.AlertEntry:
    return types.AlertEntry(
        id=alert.id,
        receiver=alert.sink,
        type=alert.type,
        job=alert.job,
        state=alert.state,
        tries=alert.tries,
        queued_at=alert.queued_unix_s,
        tried_at=alert.tried_unix_s,
        next_at=alert.next_unix_s,
        error=alert.error,
    )
