"""Queues the alerts of what changed and hands out those that are due; words and delivery are the alerts room's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.payload import alert_id, notices
from supervisor.alerts.schedule import next_try_s
from supervisor.alerts.sink import Sink
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.store.store import NewAlert, Store

DUE_AT_ONCE = 20


@dataclass(slots=True, kw_only=True)
class Announcer:
    """Works in the deciding thread."""

    store: Store
    sinks: Mapping[str, Sink]
    host: str

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        """Queue what a decision is worth telling."""
        self._queue(before, after, decision, decision.at)

    def job(self, before: Job, after: Job, at: Moment) -> None:
        """Queue what an event's change of a job is worth telling."""
        self._queue(before, after, None, at)

    def tried(self, event: ev.AlertTried) -> None:
        """Keep how a delivery went."""
        self.store.alert_tried(event, next_try_s)

    def send_due(self, sender: AlertSender, now: Moment) -> None:
        """Hand out what is due."""
        for alert in self.store.due_alerts(now, DUE_AT_ONCE):
            sender.offer(alert)

    def _queue(self, before: Job, after: Job, decision: de.Decision | None, at: Moment) -> None:
        for notice in notices(before, after, decision, at, self.host):
            for name, sink in self.sinks.items():
                if notice.wanted(sink.floor):
                    alert = NewAlert(
                        id=alert_id(notice, name), sink=name, type=notice.type, job=notice.job, body=notice.body()
                    )
                    self.store.queue_alert(alert, at)
