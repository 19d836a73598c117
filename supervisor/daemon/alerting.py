"""The receivers of alerts that can be sent to, and the queue of alerts that are due.

A receiver never decides whether trainings are watched. Where its address cannot be read the daemon starts without it,
the reason is a standing problem (status, doctor, `supervisorctl alerts`), its alerts wait in the record, and the files
are read again each half minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from supervisor.alerts.channel import Channel
from supervisor.alerts.channels import CHANNELS
from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.payload import alert_id, notices, self_test
from supervisor.alerts.schedule import next_try_s
from supervisor.alerts.settings import AlertSettings, ReceiverError
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.events import AlertTried
from supervisor.core.flags import Severity
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.clock import Clock
from supervisor.store.store import NewAlert, Store

log = logging.getLogger(__name__)

READ_AGAIN_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReceivers:
    """The receivers of one configuration as they could be read."""

    usable: dict[str, Channel] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Why a receiver cannot be sent to, by its name."""


def read_receivers(configured: Mapping[str, AlertSettings]) -> ReadReceivers:
    """Read address and secret of each receiver from where the configuration says."""
    read = ReadReceivers()
    for name, settings in configured.items():
        try:
            read.usable[name] = CHANNELS[settings.kind].from_settings(name, settings)
        except ReceiverError as error:
            read.problems[name] = str(error)
    return read


class Receivers:
    """Made, replaced and asked in the deciding thread; only `read_again` runs elsewhere."""

    def __init__(
        self,
        configured: Mapping[str, AlertSettings],
        put: Callable[[AlertTried], None],
        clock: Clock,
        hasten: Callable[[str], None],
    ) -> None:
        """`hasten` makes the waiting alerts of a receiver due at once; called when it has become usable."""
        self._put = put
        self._clock = clock
        self._hasten = hasten
        self._started = False
        self._configured = dict(configured)
        self._read = read_receivers(configured)
        self.sender = AlertSender(self._read.usable, put, clock)
        self._log_problems({})

    @property
    def floors(self) -> dict[str, Severity]:
        """The lowest severity that each configured receiver wants, usable or not."""
        return {
            name: Severity[alert_settings.min_severity.upper()] for name, alert_settings in self._configured.items()
        }

    @property
    def problems(self) -> Mapping[str, str]:
        """Why a configured receiver cannot be sent to, by its name."""
        return self._read.problems

    @property
    def hosts(self) -> Mapping[str, str]:
        """The host or program that each usable receiver is reached by; what may be a password is not shown."""
        return {name: channel.destination for name, channel in self._read.usable.items()}

    def start(self) -> None:
        """Begin to send."""
        self._started = True
        self.sender.start()

    def stop(self, timeout_s: float) -> None:
        """Finish what is being sent; the rest waits in the record."""
        self.sender.stop(timeout_s)

    def replace(self, configured: Mapping[str, AlertSettings], read: ReadReceivers) -> None:
        """Send to these receivers from now on; what is under way to the old ones is finished."""
        before, self._configured, self._read = self._read, dict(configured), read
        if read.usable != before.usable:
            old, self.sender = self.sender, AlertSender(read.usable, self._put, self._clock)
            if self._started:
                self.sender.start()
            old.stop(0.0)
        self._log_problems(before.problems)
        for name in before.problems.keys() & read.usable.keys():
            log.info("alerts.receiver_usable", extra={"fields": {"receiver": name}})
            self._hasten(name)

    def read_again(self, later: Callable[[Callable[[], None]], None]) -> None:
        """Read the receivers again that could not be read; for a thread that may wait for a file system.

        `later` has the replacement done in the deciding thread.
        """
        if not self._read.problems:
            return
        configured = self._configured
        read = read_receivers(configured)

        def replace() -> None:
            if self._configured is configured:  # no reload came in between
                self.replace(configured, read)

        if read != self._read:
            later(replace)

    def _log_problems(self, known: Mapping[str, str]) -> None:
        for name, why in self._read.problems.items():
            if known.get(name) != why:
                log.error("alerts.receiver_unusable", extra={"fields": {"receiver": name, "reason": why}})


DUE_AT_ONCE = 20


@dataclass(slots=True, kw_only=True)
class Announcer:
    """Works in the deciding thread."""

    store: Store
    host: str
    floors: Callable[[], Mapping[str, Severity]] = dict
    """The lowest severity that each configured receiver wants."""
    problems: Callable[[], Mapping[str, str]] = dict
    """Why a receiver cannot be sent to, by its name."""
    _tests: int = field(default=0, init=False)
    _given_up: set[str] = field(default_factory=set, init=False)
    """Trainings that were given up since the daemon started and not started again."""

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
        """Hand out what is due, and report to the receivers that expect it that the daemon works."""
        problems = self.problems()
        for alert in self.store.due_alerts(now, DUE_AT_ONCE):
            why = problems.get(alert.sink)
            if why is None:
                sender.offer(alert)
            else:
                self.tried(ev.AlertTried(at=now, alert=alert.id, delivered=False, error=why))
        # A training that was given up, and a record that cannot be written, are to be noticed by a missing ping.
        if self.store.problem is None and not self._given_up:
            sender.ping_due(f"rocm-supervisor on {self.host}; alerts waiting: {len(self.store.waiting_alerts())}", now)

    def queue_test(self, receiver: str, now: Moment) -> str:
        """Queue a test alert for one receiver and return its id."""
        self._tests += 1
        notice = self_test(receiver, now, self.host, self._tests)
        alert = NewAlert(id=alert_id(notice, receiver), sink=receiver, type=notice.type, job=None, body=notice.body())
        self.store.queue_alert(alert, now)
        return alert.id

    def failing(self) -> tuple[str, ...]:
        """Return a sentence for each receiver whose alerts wait because they could not be delivered."""
        problems = dict(self.problems())
        waiting = [alert for alert in self.store.waiting_alerts() if alert.error is not None]
        for alert in sorted(waiting, key=lambda alert: alert.tried_unix_s or 0.0):
            count = sum(other.sink == alert.sink for other in waiting)
            if alert.sink not in self.problems():
                problems[alert.sink] = f"alerts.{alert.sink}: {alert.error}; {count} not delivered yet"
        return tuple(problems[name] for name in sorted(problems))

    def _queue(self, before: Job, after: Job, decision: de.Decision | None, at: Moment) -> None:
        (self._given_up.add if after.phase is Phase.FAILED else self._given_up.discard)(after.name)
        for notice in notices(before, after, decision, at, self.host):
            for name, floor in self.floors().items():
                if notice.wanted(floor):
                    alert = NewAlert(
                        id=alert_id(notice, name), sink=name, type=notice.type, job=notice.job, body=notice.body()
                    )
                    self.store.queue_alert(alert, at)
