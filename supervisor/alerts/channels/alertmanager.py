"""Prometheus Alertmanager: alerts by its API v2; an incident that is over resolves the alert that it opened."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import ClassVar

from supervisor.alerts.channel import KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import fit
from supervisor.alerts.http_channel import HttpChannel, read_token
from supervisor.alerts.message import compose, parse_time
from supervisor.alerts.settings import (
    AlertSettings,
    HttpSettings,
    PathText,
    Text,
)
from supervisor.core.flags import Severity
from supervisor.json_bytes import encode_json

PATH = "/api/v2/alerts"
NAMES = {
    "incident.opened": "TrainingIncident",
    "incident.triaged": "TrainingIncident",
    "incident.resumed": "TrainingIncident",
    "job.gave_up": "TrainingGaveUp",
    "job.finished": "TrainingFinished",
    "job.last_resort": "TrainingLastResort",
    "flag.critical": "TrainingNeedsAttention",
    "flag.warning": "TrainingWarning",
    "report": "TrainingReport",
    "test": "TestAlert",
}
LASTS = {
    Severity.INFO: timedelta(minutes=10),
    Severity.WARNING: timedelta(hours=1),
    Severity.CRITICAL: timedelta(days=1),
}
"""How long an alert stays open where nothing resolves it: Alertmanager expects alerts to be sent again and again, and
without an end it would resolve each after five minutes."""
EPOCH = datetime.fromtimestamp(0, timezone.utc)
"""Time of a notice whose own cannot be read."""
LABEL_LIMIT = 200
TEXT_LIMIT = 4000


class AlertmanagerSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "alertmanager"; the address is that of Alertmanager, without a path."""

    secret_file: PathText | None = None
    """Holds a bearer token, where a proxy before Alertmanager wants one."""
    secret_env: Text | None = None


class Alertmanager(HttpChannel):
    """Sends notices to Alertmanager."""

    settings_type: ClassVar[type[AlertSettings]] = AlertmanagerSettings

    @classmethod
    def from_settings(cls, name: str, settings: AlertmanagerSettings) -> Alertmanager:
        """Read address and token; raise ReceiverError, which never holds either."""
        endpoint = Endpoint.from_settings(name, settings)
        token = read_token(name, settings)
        target = endpoint.target.rstrip("/") + PATH
        return cls(endpoint=replace(endpoint, target=target, confidential=(token,) if token else ()), token=token)

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of its alerts: labels without ids, so that what belongs together has the same labels."""
        at = parse_time(notice.timestamp, timezone.utc) or EPOCH
        ends = at if notice.type == "incident.resumed" else at + LASTS[notice.severity]
        alerts = [_build_alert(notice, NAMES.get(notice.type, "TrainingAlert"), at, ends)]
        if notice.type == "job.gave_up":
            alerts.append(_build_alert(notice, NAMES["incident.opened"], at, at))
        return encode_json(alerts)


def _build_alert(notice: KeptNotice, name: str, starts: datetime, ends: datetime) -> dict[str, object]:
    message = compose(notice, timezone.utc)
    labels = {"alertname": name, "severity": notice.severity.label}
    for label, key in (("training", "job"), ("host", "host"), ("rule", "rule"), ("gpu", "subject")):
        value = fit(str(notice.data.get(key) or ""), LABEL_LIMIT)
        if value:
            labels[label] = value
    return {
        "labels": labels,
        "annotations": {"summary": fit(message.title, TEXT_LIMIT), "description": fit(message.body, TEXT_LIMIT)},
        "startsAt": starts.isoformat(),
        "endsAt": ends.isoformat(),
    }
