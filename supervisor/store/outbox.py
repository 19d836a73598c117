"""The alerts of the deciding thread, from being queued until they are delivered or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from supervisor.core.events import AlertTried
from supervisor.core.moments import Moment
from supervisor.store.encode import text
from supervisor.store.steps import Row

LONGEST_WAIT_S = 86400.0 * 2
WAITING_LIMIT = 1000
WAITING, DELIVERED, FAILED, WITHDRAWN = "waiting", "delivered", "failed", "withdrawn"
"""The states of an alert."""
GIVEN_UP_FIRST = frozenset({"flag.warning", "flag.info"})
"""Types of alerts of which the oldest are given up where too many wait."""
TEST = "test"
"""Type of an alert that a person waits for at a terminal: it is tried once."""

NextTry: TypeAlias = Callable[[str, int, AlertTried], "float | None"]
"""Seconds until an alert is tried again, from its id, its tries and the result of the last; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAlert:
    """An alert for one sink, before anything was tried."""

    id: str
    """Unique for an incident, type and sink: an id is never queued twice, and receivers get it too."""
    sink: str
    type: str
    job: str | None
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedAlert:
    """An alert for one sink and the state of its delivery."""

    id: str
    sink: str
    type: str
    job: str | None
    body: bytes
    queued_unix_s: float
    state: str = WAITING
    tries: int = 0
    due: Moment | None
    tried_unix_s: float | None = None
    error: str | None = None

    def tried(self, event: AlertTried, next_try_s: NextTry) -> QueuedAlert:
        """Return it after a delivery attempt."""
        tries, wait_s = self.tries + 1, None
        state = DELIVERED
        if not event.delivered:
            wait_s = None if event.final or self.type == TEST else next_try_s(self.id, tries, event)
            state = FAILED if wait_s is None else WAITING
        return replace(
            self,
            state=state,
            tries=tries,
            due=None if wait_s is None else event.at.plus(wait_s),
            tried_unix_s=event.at.unix_s,
            error=None if event.error is None else text(event.error, 500),
        )

    def withdrawn(self, why: str, now: Moment) -> QueuedAlert:
        """Return it as one that is no longer needed."""
        return replace(self, state=WITHDRAWN, due=None, tried_unix_s=now.unix_s, error=text(why, 500))

    def row(self) -> Row:
        """Return its row."""
        return {
            "id": self.id,
            "sink": self.sink,
            "type": self.type,
            "job": self.job,
            "body": self.body.decode("utf-8", "replace"),
            "queued_unix_s": self.queued_unix_s,
            "state": self.state,
            "tries": self.tries,
            "next_unix_s": None if self.due is None else self.due.unix_s,
            "tried_unix_s": self.tried_unix_s,
            "error": self.error,
        }


def alert_of(row: Row, now: Moment) -> QueuedAlert:
    """Return the alert of a row; its next try is computed from now, at most two days ahead, whatever the clock did."""
    due = None
    if row["next_unix_s"] is not None:
        due = now.plus(min(max(0.0, row["next_unix_s"] - now.unix_s), LONGEST_WAIT_S))
    return QueuedAlert(
        id=row["id"],
        sink=row["sink"],
        type=row["type"],
        job=row["job"],
        body=row["body"].encode(),
        queued_unix_s=row["queued_unix_s"],
        state=row["state"],
        tries=row["tries"],
        due=due,
        tried_unix_s=row["tried_unix_s"],
        error=row["error"],
    )


class Outbox:
    """The waiting alerts, each handed out once until its delivery attempt is reported."""

    def __init__(self, waiting: dict[str, QueuedAlert] | None = None) -> None:
        self._waiting = waiting or {}
        self._handed_out: set[str] = set()

    def __contains__(self, alert_id: object) -> bool:
        return alert_id in self._waiting

    def add(self, alert: QueuedAlert) -> QueuedAlert | None:
        """Add an alert to be tried; return the oldest warning, now failed, where too many wait.

        Outcomes and critical alerts are never given up for newer ones.
        """
        self._waiting[alert.id] = alert
        if len(self._waiting) <= WAITING_LIMIT:
            return None
        oldest = next((waiting for waiting in self._waiting.values() if waiting.type in GIVEN_UP_FIRST), None)
        if oldest is None:
            return None
        del self._waiting[oldest.id]
        return replace(oldest, state=FAILED, due=None, error=f"given up: {WAITING_LIMIT} newer alerts wait")

    def due(self, now: Moment, limit: int) -> tuple[QueuedAlert, ...]:
        """Return at most `limit` due alerts, the longest due first."""
        ready = [
            (alert.due.monotonic_s, alert)
            for alert in self._waiting.values()
            if alert.due is not None and alert.id not in self._handed_out and now.seconds_since(alert.due) >= 0
        ]
        chosen = tuple(alert for _, alert in sorted(ready, key=lambda pair: pair[0])[:limit])
        self._handed_out.update(alert.id for alert in chosen)
        return chosen

    def put_back(self, alert_ids: Iterable[str]) -> None:
        """Take back alerts that were handed out and not tried."""
        self._handed_out.difference_update(alert_ids)

    def tried(self, event: AlertTried, next_try_s: NextTry) -> QueuedAlert | None:
        """Record the result of a delivery attempt; return the alert as it is now, None where it is not known here."""
        self._handed_out.discard(event.alert)
        alert = self._waiting.pop(event.alert, None)
        if alert is None:
            return None
        after = alert.tried(event, next_try_s)
        if after.state == WAITING:
            self._waiting[alert.id] = after
        return after

    def withdraw(self, alert_id: str, why: str, now: Moment) -> QueuedAlert | None:
        """Stop trying an alert that is no longer needed; return it, None where it does not wait."""
        self._handed_out.discard(alert_id)
        alert = self._waiting.pop(alert_id, None)
        return None if alert is None else alert.withdrawn(why, now)

    def hasten(self, sink: str, now: Moment) -> None:
        """Make the waiting alerts of a receiver due now."""
        for alert in list(self._waiting.values()):
            if alert.sink == sink and alert.due is not None and alert.due.seconds_since(now) > 0:
                self._waiting[alert.id] = replace(alert, due=now)

    def waiting(self) -> tuple[QueuedAlert, ...]:
        """Return the alerts that are not delivered yet, in the order in which they were queued or tried."""
        return tuple(self._waiting.values())

    def copy(self) -> Outbox:
        """Return a copy that later changes do not touch."""
        twin = Outbox(dict(self._waiting))
        twin._handed_out = set(self._handed_out)
        return twin
