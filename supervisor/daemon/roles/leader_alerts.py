"""Alerts of a training on several nodes: one for an incident, whatever number of nodes report it.

They go to the receivers of the leader's configuration ([alerts.NAME]); nodes send none. What a receiver did not take is
tried again by the schedule of every alert, from memory: a leader that ends meanwhile leaves it in its record alone.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.payload import NAME_LIMIT, Notice, alert_id, clean
from supervisor.alerts.schedule import next_try_s
from supervisor.alerts.settings import AlertSettings
from supervisor.core.events import AlertTried
from supervisor.core.flags import Severity
from supervisor.core.fleet import leading as le
from supervisor.core.moments import Moment
from supervisor.daemon.alerts.alerting import read_receivers
from supervisor.daemon.clock import Clock

log = logging.getLogger(__name__)

END_LIMIT_S = 5.0
"""How long the end of the leader waits for the last alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An alert for one receiver that is not delivered yet."""

    id: str
    sink: str
    body: bytes
    tries: int = 0
    due_s: float = 0.0


class LeaderAlerts:
    """Implements `cluster.leader.Announcer`."""

    def __init__(self, configured: Mapping[str, AlertSettings], training: str, host: str, clock: Clock) -> None:
        self._training, self._host, self._clock = training, host, clock
        self._floors = {name: Severity[settings.min_severity.upper()] for name, settings in configured.items()}
        read = read_receivers(configured)
        for name, problem in read.problems.items():
            log.error("alert.receiver_unusable", extra={"fields": {"sink": name, "problem": problem}})
        for name, warning in read.warnings.items():
            log.warning("alert.time_zone_unknown", extra={"fields": {"sink": name, "problem": warning}})
        self._tried: queue.SimpleQueue[AlertTried] = queue.SimpleQueue()
        self._waiting: dict[str, Waiting] = {}
        self._under_way: dict[str, Waiting] = {}
        self._sender = AlertSender(read.usable, self._tried.put, clock)
        self._usable = set(read.usable)
        self._sender.start()

    def announce(self, command: le.Command, leading: le.Leading) -> None:
        """Queue what the receivers are told of; to be delivered by threads of their own."""
        notice = make_notice(command, leading, self._training, self._host, self._clock.now())
        if notice is None:
            return
        for name in sorted(self._usable):
            if notice.wanted(self._floors[name]):
                waiting = Waiting(id=alert_id(notice, name), sink=name, body=notice.body())
                self._waiting.setdefault(waiting.id, waiting)
        self.tick()

    def tick(self) -> None:
        """Hand over what is due, and take what became of the rest."""
        while not self._tried.empty():
            self._take(self._tried.get())
        now_s = self._clock.now().monotonic_s
        for waiting in [item for item in self._waiting.values() if item.due_s <= now_s]:
            self._under_way[waiting.id] = self._waiting.pop(waiting.id)
            self._sender.offer(waiting)

    def _take(self, tried: AlertTried) -> None:
        waiting = self._under_way.pop(tried.alert, None)
        if waiting is None:
            return
        wait_s = next_try_s(waiting.id, waiting.tries + 1, tried)
        if wait_s is not None:
            due_s = self._clock.now().monotonic_s + wait_s
            self._waiting[waiting.id] = replace(waiting, tries=waiting.tries + 1, due_s=due_s)

    def close(self) -> None:
        """Wait for what is being sent, for a bounded time."""
        self.tick()
        self._sender.stop(END_LIMIT_S, replaced=False)


def make_notice(command: le.Command, leading: le.Leading, training: str, host: str, at: Moment) -> Notice | None:
    """Return what is worth an alert; None for what is not."""
    common: dict[str, object] = {"host": clean(host, NAME_LIMIT), "job": clean(training, NAME_LIMIT)}
    match command:
        case le.Record(incident=incident, closed=True):  # a second or two after its begin, when its culprit is named
            return Notice(
                type="incident.opened",
                severity=Severity.CRITICAL,
                key=f"incident {incident.id}",
                job=training,
                at=at,
                data={**common, **_describe(incident, leading.steps)},
            )
        case le.Over(finished=finished, reason=reason):
            if reason == "stopped":
                return None  # its user knows
            return Notice(
                type="job.finished" if finished else "job.gave_up",
                severity=Severity.INFO if finished else Severity.CRITICAL,
                key=f"training {leading.epoch}",
                job=training,
                at=at,
                data={**common, "reason": clean(reason), "restarts": leading.epoch.relaunch - 1},
                outcome=True,
            )
        case _:
            return None


def _describe(incident: le.Incident, steps: int | None) -> dict[str, object]:
    culprit = "" if incident.culprit is None else f"; at fault: {incident.culprit.reason}"
    then = "" if incident.rung is None else f"; then: {incident.rung.value}"
    without = f", without {', '.join(incident.excluded)}" if incident.excluded else ""
    facts: dict[str, object | None] = {
        "incident": clean(incident.id, NAME_LIMIT),
        "rule": clean(incident.kind, NAME_LIMIT),
        "message": clean(f"{incident.node}: {incident.reason}{culprit}{then}{without}"),
        "step_before": steps,
    }
    return {name: value for name, value in facts.items() if value is not None}
