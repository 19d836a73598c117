"""A channel that posts each notice to one HTTP endpoint; what is sent and how it looks is left to each service."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, ClassVar

from typing_extensions import Self

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.http import Request, exchange
from supervisor.alerts.settings import AlertSettings, HttpSettings, ReceiverError, find_zone, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpChannel:
    """The parts of `Channel` that do not depend on the service: all but `settings_type` and `render`."""

    settings_type: ClassVar[type[AlertSettings]]
    endpoint: Endpoint
    token: str | None = field(default=None, repr=False)
    """Sent as a bearer token."""
    zone: tzinfo | None = None

    @classmethod
    def from_settings(cls, name: str, settings: Any) -> Self:
        """Read the address; raise ReceiverError, which never holds it."""
        return cls(endpoint=Endpoint.from_settings(name, settings), zone=find_zone(settings))

    @property
    def destination(self) -> str:
        """Host and port."""
        return self.endpoint.authority

    def build_request(self, notice: KeptNotice, content: bytes, unix_s: float) -> Request:
        """Return what is posted."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return Request(body=content, headers=headers)

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        """Post it."""
        return exchange(self.endpoint, self.build_request(notice, content, unix_s), unix_s)


def read_token(name: str, settings: HttpSettings) -> str | None:
    """Return the secret as a bearer token, None where none is set; raise ReceiverError, which never holds it."""
    token = read_text(name, "secret", settings)
    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise ReceiverError(f"alerts.{name}: the secret is not an access token")
    return token
