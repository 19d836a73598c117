"""Makes the morning reports that are due, from the trainings as they are and from the record."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from supervisor.alerts.payload import Notice
from supervisor.alerts.pipeline import Policy
from supervisor.alerts.report import Day, TrainingDay, build_report, find_since, report_day
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.reports.account import account
from supervisor.daemon.clock import Clock
from supervisor.daemon.inbox import Inbox
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.outbox import FAILED, WAITING
from supervisor.store.timelines import read_lives

log = logging.getLogger(__name__)

READ_AT_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MorningReports:
    """Reads the record in the thread that calls `look`; trainings and queue are those of the deciding thread."""

    clock: Clock
    inbox: Inbox
    archive: Archive
    host: str
    jobs: Callable[[], Iterable[Job]]
    policies: Callable[[], Mapping[str, Policy]]
    queue: Callable[[str, Notice], None]
    """Takes a report for a receiver; one that was queued before is not queued again."""
    _made: dict[str, str] = field(default_factory=dict, init=False)
    """The date of the latest report of each receiver."""

    def look(self) -> None:
        """Make the reports that are due; to be called about once a minute."""
        now = self.clock.now()
        for receiver, policy in dict(self.policies()).items():
            date = None if policy.report_at is None else report_day(policy.report_at, policy.zone, now.unix_s)
            if date is not None and self._made.get(receiver) != date:
                self._make(receiver, policy, date, now)
                self._made[receiver] = date

    def _make(self, receiver: str, policy: Policy, date: str, now: Moment) -> None:
        jobs = self.inbox.ask(lambda: list(self.jobs()))
        wanted = [job for job in jobs if not policy.jobs or any(fnmatchcase(job.name, text) for text in policy.jobs)]
        since_unix_s = find_since(policy.report_at or "", policy.zone, now.unix_s)
        report = build_report(read_day(self.archive, wanted, since_unix_s, now), date, now, self.host)
        self.inbox.later(lambda: self.queue(receiver, report))


def read_day(archive: Archive, jobs: Sequence[Job], since_unix_s: float, now: Moment) -> Day:
    """Return what became of trainings since a time; where the record cannot be read, what is known without it."""
    try:
        return Day(
            trainings=[_read_training(archive, job, since_unix_s, now.unix_s) for job in jobs],
            undelivered=_list_undelivered(archive, since_unix_s),
        )
    except ArchiveError as error:
        log.warning("alerts.report_incomplete", extra={"fields": {"error": str(error)}})
        return Day(trainings=[_describe_present(job) for job in jobs], unreadable=str(error))


def _describe_present(job: Job) -> TrainingDay:
    attempt = job.attempt
    return TrainingDay(
        name=job.name,
        phase=job.phase.value,
        needs_person=job.phase is Phase.FAILED,
        has_open_incident=job.incident is not None and not job.incident.closed,
        reason=job.reason,
        epoch=attempt.epoch if attempt else None,
        loss=attempt.loss if attempt else None,
    )


def _read_training(archive: Archive, job: Job, since_unix_s: float, until_unix_s: float) -> TrainingDay:
    present = _describe_present(job)
    buckets = archive.step_metrics(job.name, since_unix_s=since_unix_s, until_unix_s=until_unix_s, bucket_s=600)
    found = archive.incidents(job.name, READ_AT_MOST)
    incidents = [incident for incident in found if incident.flag.at.unix_s >= since_unix_s]
    spent = account(read_lives(archive, job.name), until_unix_s, until_unix_s - since_unix_s)
    return TrainingDay(
        name=job.name,
        phase=present.phase,
        needs_person=present.needs_person,
        has_open_incident=present.has_open_incident,
        reason=present.reason,
        epoch_before=next((bucket.epoch for bucket in buckets if bucket.epoch is not None), None),
        epoch=present.epoch,
        loss_before=next((bucket.loss_mean for bucket in buckets if bucket.loss_mean is not None), None),
        loss=next((bucket.loss_mean for bucket in reversed(buckets) if bucket.loss_mean is not None), present.loss),
        steps=sum(bucket.steps for bucket in buckets),
        effective=spent.ettr,
        lost_s=sum(spent.cost_s.values()),
        incidents=len(incidents),
        resumed=sum(incident.resumed_at is not None for incident in incidents),
    )


def _list_undelivered(archive: Archive, since_unix_s: float) -> list[tuple[str, int, str]]:
    """Return each receiver with the alerts that were given up in the day, or wait after an error."""
    tried = [*archive.alerts(FAILED, READ_AT_MOST), *archive.alerts(WAITING, READ_AT_MOST)]
    alerts = [alert for alert in tried if alert.error is not None]
    alerts = [alert for alert in alerts if (alert.tried_unix_s or alert.queued_unix_s) >= since_unix_s]
    latest = {alert.sink: alert.error or "" for alert in sorted(alerts, key=lambda alert: alert.tried_unix_s or 0.0)}
    return [(sink, count, latest[sink]) for sink, count in Counter(alert.sink for alert in alerts).most_common()]
