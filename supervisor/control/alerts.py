"""The answer to GET /v1/alerts, from the database: receivers with their counts, and the newest alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from supervisor.control import types
from supervisor.store.archive import Archive
from supervisor.store.outbox import DELIVERED, FAILED, WAITING
from supervisor.store.records import AlertCount, AlertRecord


def alerts_report(
    archive: Archive, floors: Mapping[str, str], problems: Mapping[str, str], limit: int
) -> types.AlertsReport:
    """Return each configured receiver with its counts, and the `limit` newest alerts.

    `floors` has the lowest severity that each receiver wants, by its name; `problems` why one cannot be sent to.
    """
    counts = archive.alert_counts()
    return types.AlertsReport(
        receivers=[_summarize_receiver(name, floors[name], problems.get(name), counts) for name in sorted(floors)],
        alerts=[_build_entry(alert) for alert in archive.alerts(limit=limit)],
    )


def _summarize_receiver(
    name: str, floor: str, problem: str | None, counts: tuple[AlertCount, ...]
) -> types.AlertReceiver:
    by_state = {count.state: count for count in counts if count.sink == name}
    waiting = by_state.get(WAITING)
    error = waiting.error if waiting else None
    state: Literal["ok", "failing", "unusable"] = "ok"
    if problem is not None:
        state = "unusable"
    elif error is not None:
        state = "failing"
    return types.AlertReceiver(
        name=name,
        state=state,
        min_severity=floor,
        waiting=waiting.count if waiting else 0,
        delivered=by_state[DELIVERED].count if DELIVERED in by_state else 0,
        given_up=by_state[FAILED].count if FAILED in by_state else 0,
        last_delivered_at=by_state[DELIVERED].tried_unix_s if DELIVERED in by_state else None,
        problem=problem or error,
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
