"""Healthchecks: a ping for as long as the daemon works, so that its silence is reported (healthchecks.io/docs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import count_bytes, fit
from supervisor.alerts.http import Request, exchange
from supervisor.alerts.http_channel import HttpChannel
from supervisor.alerts.message import compose
from supervisor.alerts.settings import AlertSettings, HttpSettings, find_zone

BODY_BYTES = 10_000
"""Of a longer body the service keeps the beginning alone."""
FAIL = "/fail"
LOG = "/log"


class HealthchecksSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "healthchecks"; the address is the ping URL of a check."""

    ping_every_s: Annotated[float, Meta(ge=10, le=86_400)] = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthchecks(HttpChannel):
    """Pings a check; a training that was given up is a failure, every other notice is a line of its log."""

    settings_type: ClassVar[type[AlertSettings]] = HealthchecksSettings
    ping_every_s: float = 300.0

    @classmethod
    def from_settings(cls, name: str, settings: HealthchecksSettings) -> Healthchecks:
        """Read the address; raise ReceiverError, which never holds it."""
        endpoint = Endpoint.from_settings(name, settings)
        return cls(endpoint=endpoint, ping_every_s=settings.ping_every_s, zone=find_zone(settings))

    def render(self, notice: KeptNotice) -> bytes:
        """Return the text that the check shows."""
        message = compose(notice, self.zone)
        return fit(f"{message.title}\n{message.body}", BODY_BYTES, count_bytes).encode()

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        """Post it to the check's address of failures or of log lines."""
        return self._post_signal(FAIL if notice.type == "job.gave_up" else LOG, content, unix_s)

    def ping(self, status: str, unix_s: float) -> Answer:
        """Report that the daemon works, with a line on how."""
        return self._post_signal("", fit(status, BODY_BYTES, count_bytes).encode(), unix_s)

    def _post_signal(self, signal: str, content: bytes, unix_s: float) -> Answer:
        path, mark, query = self.endpoint.target.partition("?")
        target = f"{path.rstrip('/')}{signal}{mark}{query}"
        request = Request(body=content, target=target, content_type="text/plain; charset=utf-8")
        return exchange(self.endpoint, request, unix_s)
