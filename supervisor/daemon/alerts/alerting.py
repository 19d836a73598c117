"""The receivers of alerts that can be sent to, and the queue of alerts that are due.

A receiver never decides whether trainings are watched. Where its address cannot be read the daemon starts without it,
the reason is a standing problem (status, doctor, `supervisorctl alerts`), its alerts wait in the record, and the files
are read again each half minute.
"""

from __future__ import annotations

import logging
import math
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from supervisor.alerts.channel import Channel, KeptNotice, read_notice
from supervisor.alerts.incident_messages import OpenMessages, find_message, keep_message
from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.payload import Notice, alert_id, digest_id, notices, self_test
from supervisor.alerts.pipeline import Pending, Policy, Situation, build_digest, plan, policy_of, routes
from supervisor.alerts.schedule import next_try_s
from supervisor.alerts.settings import AlertSettings, ReceiverError, explain_zone
from supervisor.children.path_looks import PathLooks, SilentPathError
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.events import AlertTried
from supervisor.core.flags import Severity
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.alerts.limits import ReceiverLimits
from supervisor.daemon.alerts.reminders import Reminders
from supervisor.daemon.clock import Clock
from supervisor.json_bytes import encode_json
from supervisor.store.outbox import WAITING_LIMIT, QueuedAlert
from supervisor.store.store import NewAlert, Store

log = logging.getLogger(__name__)

READ_AGAIN_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReceivers:
    """The receivers of one configuration as they could be read."""

    usable: dict[str, Channel] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Why a receiver cannot be sent to, by its name."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Why a receiver does not work as configured, by its name."""


def read_receivers(configured: Mapping[str, AlertSettings]) -> ReadReceivers:
    """Read address and secret of each receiver from where the settings say; a file that hangs is not waited for."""
    read = ReadReceivers()
    if not configured:
        return read
    from supervisor.alerts.channels import CHANNELS  # noqa: PLC0415  # libraries of HTTP and mail take 2 MB

    with PathLooks() as looks:
        unreadable = {name: _find_unreadable_file(name, settings, looks) for name, settings in configured.items()}
    for name, settings in configured.items():
        problem = unreadable[name]
        if problem is not None:
            read.problems[name] = problem
            continue
        warning = explain_zone(name, settings)
        if warning is not None:
            read.warnings[name] = warning
        try:
            read.usable[name] = CHANNELS[settings.kind].from_settings(name, settings)
        except ReceiverError as error:
            read.problems[name] = str(error)
    return read


def _find_unreadable_file(name: str, settings: AlertSettings, looks: PathLooks) -> str | None:
    """Return why a file of an address or secret cannot be opened without waiting for it, None where it can."""
    for key in settings.__struct_fields__:
        file = getattr(settings, key) if key.endswith("_file") else None
        if file is None:
            continue
        try:
            if not stat.S_ISREG(looks.look(file).mode):
                return f"alerts.{name}.{key}: {file} is not a regular file"
        except SilentPathError as silent:
            return f"alerts.{name}.{key}: {silent.explanation}; it is read once it answers"
        except OSError:
            continue  # opening it will say what is wrong
    return None


class Receivers:
    """Made, replaced and asked in the deciding thread; only `read_again` runs elsewhere."""

    def __init__(
        self,
        configured: Mapping[str, AlertSettings],
        put: Callable[[AlertTried], None],
        clock: Clock,
        hasten: Callable[[str], None],
        draw: Callable[[KeptNotice], bytes | None] = lambda _: None,
    ) -> None:
        """`hasten` makes the waiting alerts of a receiver due at once; called when it has become usable.

        `draw` returns the picture of a notice, None where there is none; called in a receiver's thread.
        """
        self._draw = draw
        self._put = put
        self._clock = clock
        self._hasten = hasten
        self._started = False
        self._configured = dict(configured)
        self._policies = {name: policy_of(settings) for name, settings in configured.items()}
        self._read = read_receivers(configured)
        self.sender = AlertSender(self._read.usable, put, clock, draw)
        self._log_problems(ReadReceivers())

    @property
    def floors(self) -> dict[str, Severity]:
        """The lowest severity that each configured receiver wants, usable or not."""
        return {
            name: Severity[alert_settings.min_severity.upper()] for name, alert_settings in self._configured.items()
        }

    @property
    def policies(self) -> Mapping[str, Policy]:
        """What each configured receiver wants to be sent, and when."""
        return self._policies

    @property
    def problems(self) -> Mapping[str, str]:
        """Why a configured receiver cannot be sent to, by its name."""
        return self._read.problems

    @property
    def warnings(self) -> Mapping[str, str]:
        """Why a configured receiver does not work as configured, by its name."""
        return self._read.warnings

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
        self._policies = {name: policy_of(settings) for name, settings in configured.items()}
        if read.usable != before.usable:
            old, self.sender = self.sender, AlertSender(read.usable, self._put, self._clock, self._draw)
            if self._started:
                self.sender.start()
            old.stop(0.0, replaced=True)
        self._log_problems(before)
        for name in before.problems.keys() & read.usable.keys():
            log.info("alerts.receiver_usable", extra={"fields": {"receiver": name}})
            self._hasten(name)

    def read_again(self, later: Callable[[Callable[[], None]], None]) -> None:
        """Read the receivers again where one could not be read, or has a time zone that was not known.

        For a thread that may wait for a file system.
        `later` has the replacement done in the deciding thread.
        """
        if not (self._read.problems or self._read.warnings):
            return
        configured = self._configured
        read = read_receivers(configured)

        def replace() -> None:
            if self._configured is configured:  # no reload came in between
                self.replace(configured, read)

        if read != self._read:
            later(replace)

    def _log_problems(self, known: ReadReceivers) -> None:
        for name, why in self._read.problems.items():
            if known.problems.get(name) != why:
                log.error("alerts.receiver_unusable", extra={"fields": {"receiver": name, "reason": why}})
        for name, why in self._read.warnings.items():
            if known.warnings.get(name) != why:
                log.warning("alerts.time_zone_unknown", extra={"fields": {"receiver": name, "reason": why}})


MUTED = "alerts muted until"
"""Key of the note that has the end of each mute by the name of the receiver, Unix seconds."""
MUTE_LIMIT_S = 86_400.0
MESSAGES = "alerts messages of open incidents"
"""Key of the note that has, by the name of the receiver and the incident, the message that reports it."""
NOT_NEEDED = "acknowledged, started again, or followed by a newer reminder"
"""Why a reminder is withdrawn before it could be delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parcel:
    """A message that stands for several alerts."""

    id: str
    sink: str
    body: bytes


@dataclass(slots=True, kw_only=True)
class Announcer:
    """Works in the deciding thread."""

    store: Store
    host: str
    floors: Callable[[], Mapping[str, Severity]] = dict
    """The lowest severity that each configured receiver wants."""
    policies: Callable[[], Mapping[str, Policy]] = dict
    """What each configured receiver wants besides; every notice by itself for one that is not in it."""
    problems: Callable[[], Mapping[str, str]] = dict
    """Why a receiver cannot be sent to, by its name."""
    warnings: Callable[[], Mapping[str, str]] = dict
    """Why a receiver does not work as configured, by its name."""
    jobs: Callable[[], Iterable[Job]] = tuple
    """The trainings as they are now: which are given up, and which have an open incident, is read from them."""
    _tests: int = field(default=0, init=False)
    _limits: ReceiverLimits = field(init=False)
    _reminders: Reminders = field(init=False)
    _reminded: frozenset[str] = field(default=frozenset(), init=False)
    """The newest reminders, by the ids of their alerts: what else is a reminder is withdrawn."""
    _notices: dict[str, KeptNotice] = field(default_factory=dict, init=False)
    """What waits, read once."""

    def __post_init__(self) -> None:
        """Read the limits of the receivers from the record."""
        self._limits = ReceiverLimits(self.store)
        self._reminders = Reminders(store=self.store, host=self.host, jobs=lambda: self.jobs())  # noqa: PLW0108 - replaced

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        """Queue what a decision is worth telling."""
        self._queue_notices(before, after, decision, decision.at)

    def job(self, before: Job, after: Job, at: Moment) -> None:
        """Queue what an event's change of a job is worth telling."""
        self._queue_notices(before, after, None, at)

    def tried(self, event: ev.AlertTried) -> None:
        """Keep how a delivery went."""
        alert = self.store.alert_tried(event, next_try_s)
        if alert is None:
            return
        if event.retry_after_s is not None and not event.delivered:
            self._limits.pause(alert.sink, event.retry_after_s, event.at)
        if event.delivered:
            self._keep_message(alert, event.message)
        if alert.due is None:
            self._notices.pop(alert.id, None)

    def send_due(self, sender: AlertSender, now: Moment) -> None:
        """Hand out what is due, and report to the receivers that expect it that the daemon works."""
        self._queue_reminders(now)
        problems = self.problems()
        by_sink: dict[str, list[QueuedAlert]] = {}
        for alert in self.store.due_alerts(now, WAITING_LIMIT):
            why = problems.get(alert.sink)
            if self._is_outdated(alert):
                self.store.withdraw_alert(alert.id, NOT_NEEDED, now)
                self._notices.pop(alert.id, None)
            elif why is None:
                by_sink.setdefault(alert.sink, []).append(alert)
            else:
                self.tried(ev.AlertTried(at=now, alert=alert.id, delivered=False, error=why))
        for sink, alerts in by_sink.items():
            self._send_planned(sender, sink, alerts, now)
        # A training that was given up, and a record that cannot be written, are to be noticed by a missing ping.
        if self.store.problem is None and not any(job.phase is Phase.FAILED for job in self.jobs()):
            sender.ping_due(f"rocm-supervisor on {self.host}; alerts waiting: {len(self.store.waiting_alerts())}", now)

    def _send_planned(self, sender: AlertSender, sink: str, alerts: Sequence[QueuedAlert], now: Moment) -> None:
        """Send one receiver what its policy allows now; the rest stays due."""
        by_id = {alert.id: alert for alert in alerts}
        policy = self.policies().get(sink, Policy())
        open_jobs = frozenset(job.name for job in self.jobs() if job.incident is not None and not job.incident.closed)
        situation = Situation(now=now, muted=self.muted_until(sink, now) is not None, open_jobs=open_jobs)
        pending = [] if self._limits.is_paused(sink, now) else [self._build_pending(alert, now) for alert in alerts]
        planned = plan(pending, policy, self._limits.budget(sink, now), situation)
        self._limits.spend(sink, planned.budget, now, sent=bool(planned.messages))
        for message in planned.messages:
            ids = tuple(item.id for item in message)
            if len(ids) == 1:
                sender.offer(by_id[ids[0]], message=find_message(self._read_messages(), sink, message[0].notice))
            else:
                body = build_digest([item.notice for item in message], self.host, now, policy.zone)
                sender.offer(_Parcel(id=digest_id(ids), sink=sink, body=body), covers=ids)
            for sent in ids:
                del by_id[sent]
        self.store.put_back_alerts(by_id)

    def _keep_message(self, alert: QueuedAlert, message: str | None) -> None:
        """Keep the message of an alert that was delivered, as long as its incident is open."""
        before = self._read_messages()
        after = keep_message(before, alert.sink, self._read_notice(alert), message)
        if after != before:
            self.store.set_note(MESSAGES, encode_json(after).decode())

    def _read_messages(self) -> OpenMessages:
        try:
            return msgspec.json.decode(self.store.note(MESSAGES) or "{}", type=dict[str, dict[str, str]])
        except msgspec.MsgspecError:
            return {}

    def _build_pending(self, alert: QueuedAlert, now: Moment) -> Pending:
        notice = self._read_notice(alert)
        waited_s = math.inf if alert.tries or alert.due is None else now.seconds_since(alert.due)
        return Pending(id=alert.id, notice=notice, waited_s=waited_s)

    def _read_notice(self, alert: QueuedAlert) -> KeptNotice:
        notice = self._notices.get(alert.id)
        if notice is None:
            notice = self._notices[alert.id] = read_notice(alert.id, alert.body)
        return notice

    def _queue_reminders(self, now: Moment) -> None:
        due, policies = self._reminders.list_due(now), self.policies()
        receivers = [name for name in self.floors() if policies.get(name, Policy()).remind]
        before = self._reminded
        self._reminded = frozenset(alert_id(notice, name) for notice in due for name in receivers)
        if not self._reminded <= before:
            for notice in due:
                self._queue(notice, receivers, now)

    def _is_outdated(self, alert: QueuedAlert) -> bool:
        """Whether it is a reminder that is no longer needed."""
        return "reminder" in self._read_notice(alert).data and alert.id not in self._reminded

    def acknowledge(self, given: str) -> Job | None:
        """End the reminders of the training with this incident or name, and return it; None where there is none.

        Nothing is changed for a training that does not stand given up.
        """
        jobs = list(self.jobs())
        by_incident = [job for job in jobs if job.incident is not None and job.incident.id == given]
        found = next(iter(by_incident), None) or next((job for job in jobs if job.name == given), None)
        if found is not None and found.phase is Phase.FAILED:
            self._reminders.acknowledge(found)
        return found

    def queue_report(self, receiver: str, report: Notice) -> None:
        """Queue a morning report for a receiver that is still configured."""
        if receiver in self.floors():
            self._queue_for(receiver, report, report.at)

    def mute(self, receivers: Iterable[str], until_unix_s: float) -> None:
        """Send these receivers nothing until then; a time that has passed ends their mute."""
        muted = {**self._read_mutes(), **dict.fromkeys(receivers, until_unix_s)}
        self.store.set_note(MUTED, encode_json(muted).decode())

    def muted_until(self, receiver: str, now: Moment) -> float | None:
        """Return the end of a receiver's mute, Unix seconds, None where it is not muted.

        A mute that would last longer than the longest there is was made before the clock was set back: it is over.
        """
        until = self._read_mutes().get(receiver, 0.0)
        return until if 0 < until - now.unix_s <= MUTE_LIMIT_S else None

    def list_mutes(self, now: Moment) -> tuple[str, ...]:
        """Return a sentence for each receiver that is muted."""
        ends = {name: self.muted_until(name, now) for name in sorted(self.floors())}
        return tuple(
            f"alerts.{name}: muted for {(until - now.unix_s) / 60:.0f} min more; supervisorctl alerts unmute"
            for name, until in ends.items()
            if until is not None
        )

    def _read_mutes(self) -> dict[str, float]:
        try:
            return msgspec.json.decode(self.store.note(MUTED) or "{}", type=dict[str, float])
        except msgspec.MsgspecError:
            return {}

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
        counts = Counter(alert.sink for alert in waiting)
        newest = {alert.sink: alert for alert in sorted(waiting, key=lambda alert: alert.tried_unix_s or 0.0)}
        for sink, alert in newest.items():
            problems.setdefault(sink, f"alerts.{sink}: {alert.error}; {counts[sink]} not delivered yet")
        return tuple(problems[name] for name in sorted(problems))

    def _queue_notices(self, before: Job, after: Job, decision: de.Decision | None, at: Moment) -> None:
        for notice in notices(before, after, decision, at, self.host):
            self._queue(notice, self.floors(), at)

    def _queue(self, notice: Notice, receivers: Iterable[str], at: Moment) -> None:
        """Queue a notice for those of the receivers that want it; one that was queued before is not queued again."""
        floors, policies = self.floors(), self.policies()
        for name in receivers:
            if notice.wanted(floors[name]) and routes(policies.get(name, Policy()), notice.type, notice.job):
                self._queue_for(name, notice, at)

    def _queue_for(self, receiver: str, notice: Notice, at: Moment) -> None:
        body, queued_id = notice.body(), alert_id(notice, receiver)
        self.store.queue_alert(NewAlert(id=queued_id, sink=receiver, type=notice.type, job=notice.job, body=body), at)
