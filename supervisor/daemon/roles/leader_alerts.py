"""Alerts of a training on several nodes: one for an incident, whatever number of nodes report it.

They go to the receivers of the leader's configuration ([alerts.NAME]); nodes send none. What a receiver did not take is
tried again by the schedule of every alert, and kept in the leader's record until then: the leader that is started after
this one goes on with it. An alert that was delivered just before this one was killed comes again, under the same id.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.payload import LARGEST_BODY_BYTES, NAME_LIMIT, Notice, alert_id, clean
from supervisor.alerts.schedule import next_try_s
from supervisor.alerts.settings import AlertSettings
from supervisor.core.events import AlertTried
from supervisor.core.flags import Severity
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import Command, Incident, Over, Record
from supervisor.core.foreign_values import as_int, as_text
from supervisor.core.moments import Moment
from supervisor.daemon.alerts.alerting import read_receivers
from supervisor.daemon.clock import Clock

log = logging.getLogger(__name__)

END_LIMIT_S = 5.0
"""How long the end of the leader waits for the last alerts."""
WAITING_MAX = 512
"""Alerts that wait for all receivers; a receiver that is away for long loses the oldest."""
BODY_CHARS_MAX = LARGEST_BODY_BYTES
TRIES_MAX = 100

Keep = Callable[[Sequence[Mapping[str, object]]], None]
"""Writes what is still to be delivered; returns at once."""


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

    def __init__(  # noqa: PLR0913 - whom to tell, of what, and what was left
        self,
        configured: Mapping[str, AlertSettings],
        training: str,
        host: str,
        clock: Clock,
        *,
        keep: Keep = lambda _: None,
        left: Iterable[Mapping[str, object]] = (),
    ) -> None:
        """`left` is what `keep` was given last by the leader before this one."""
        self._keep, self._kept = keep, dict[str, Waiting]()
        self._warned_of_record: str | None = None
        self._warnings = 0
        self._training, self._host, self._clock = training, host, clock
        self._floors = {name: Severity[settings.min_severity.upper()] for name, settings in configured.items()}
        read = read_receivers(configured)
        for name, problem in read.problems.items():
            log.error("alert.receiver_unusable", extra={"fields": {"sink": name, "problem": problem}})
        for name, warning in read.warnings.items():
            log.warning("alert.time_zone_unknown", extra={"fields": {"sink": name, "problem": warning}})
        self._tried: queue.SimpleQueue[AlertTried] = queue.SimpleQueue()
        self._waiting: dict[str, Waiting] = {item.id: item for item in map(read_waiting, left) if item is not None}
        self._under_way: dict[str, Waiting] = {}
        self._sender = AlertSender(read.usable, self._tried.put, clock)
        self._usable = set(read.usable)
        self._sender.start()

    def announce(self, command: Command, leading: Leading) -> None:
        """Queue what the receivers are told of; to be delivered by threads of their own."""
        notice = make_notice(command, leading, self._training, self._host, self._clock.now())
        if notice is not None:
            self._queue(notice)

    def warn_of_record(self, problem: str) -> None:
        """Tell once of each reason why the leader's record cannot be written."""
        if problem == self._warned_of_record:
            return
        self._warned_of_record, self._warnings = problem, self._warnings + 1
        at = self._clock.now()
        text = f"the leader's record cannot be written: {problem}; the training goes on, its incidents wait in memory"
        self._queue(
            Notice(
                type="flag.warning",
                severity=Severity.WARNING,
                key=f"leader record {self._training} {at.unix_s} {self._warnings}",
                job=self._training,
                at=at,
                data={**self._common(), "rule": "leader_record", "message": clean(text)},
            )
        )

    def _common(self) -> dict[str, object]:
        return {"host": clean(self._host, NAME_LIMIT), "job": clean(self._training, NAME_LIMIT)}

    def _queue(self, notice: Notice) -> None:
        for name in sorted(self._usable):
            if notice.wanted(self._floors[name]):
                waiting = Waiting(id=alert_id(notice, name), sink=name, body=notice.body())
                if waiting.id not in self._under_way:
                    self._waiting.setdefault(waiting.id, waiting)
        while len(self._waiting) > WAITING_MAX:
            shed = self._waiting.pop(next(iter(self._waiting)))
            log.error("alert.shed", extra={"fields": {"sink": shed.sink, "id": shed.id, "waiting": WAITING_MAX}})
        self.tick()

    def tick(self) -> None:
        """Hand over what is due, take what became of the rest, and have written down what is left."""
        while not self._tried.empty():
            self._take(self._tried.get())
        now_s = self._clock.now().monotonic_s
        for waiting in [item for item in self._waiting.values() if item.due_s <= now_s]:
            self._under_way[waiting.id] = self._waiting.pop(waiting.id)
            self._sender.offer(waiting)
        left = {**self._under_way, **self._waiting}
        if left != self._kept:
            self._kept = left
            self._keep([write_waiting(waiting) for waiting in left.values()])

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
        self.tick()


def write_waiting(waiting: Waiting) -> Mapping[str, object]:
    """Return an alert for the leader's record."""
    body = waiting.body.decode("utf-8", "replace")
    return {"id": waiting.id, "sink": waiting.sink, "body": body, "tries": waiting.tries}


def read_waiting(facts: Mapping[str, object]) -> Waiting | None:
    """Return an alert of the leader's record, due at once; None for anything else."""
    name, sink = as_text(facts.get("id")), as_text(facts.get("sink"))
    body = as_text(facts.get("body"), BODY_CHARS_MAX)
    if name is None or sink is None or body is None:
        return None
    return Waiting(id=name, sink=sink, body=body.encode(), tries=as_int(facts.get("tries"), maximum=TRIES_MAX) or 0)


def make_notice(command: Command, leading: Leading, training: str, host: str, at: Moment) -> Notice | None:
    """Return what is worth an alert; None for what is not."""
    common: dict[str, object] = {"host": clean(host, NAME_LIMIT), "job": clean(training, NAME_LIMIT)}
    match command:
        case Record(incident=incident, closed=True):  # a second or two after its begin, when its culprit is named
            return Notice(
                type="incident.opened",
                severity=Severity.CRITICAL,
                key=f"incident {incident.id}",
                job=training,
                at=at,
                data={**common, **_describe(incident, leading.progress.steps)},
            )
        case Over(finished=finished, reason=reason):
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


def _describe(incident: Incident, steps: int | None) -> dict[str, object]:
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
