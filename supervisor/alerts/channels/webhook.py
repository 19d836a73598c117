"""Standard Webhooks: the notice as the record keeps it, JSON by POST, signed where there is a secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.alerts.channel import KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.http import Request
from supervisor.alerts.http_channel import HttpChannel
from supervisor.alerts.settings import AlertSettings, HttpSettings, PathText, ReceiverError, Text, read_text
from supervisor.alerts.signing import Secret, headers, read_secrets


class WebhookSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "webhook"."""

    secret_file: PathText | None = None
    secret_env: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(HttpChannel):
    """Sends notices to programs."""

    settings_type: ClassVar[type[AlertSettings]] = WebhookSettings
    secrets: tuple[Secret, ...] = ()

    @classmethod
    def from_settings(cls, name: str, settings: WebhookSettings) -> Webhook:
        """Read address and secrets; raise ReceiverError, which never holds either."""
        endpoint = Endpoint.from_settings(name, settings)
        secret = read_text(name, "secret", settings)
        try:
            return cls(endpoint=endpoint, secrets=() if secret is None else read_secrets(secret))
        except ValueError as error:
            raise ReceiverError(f"alerts.{name}: {error}") from None

    def render(self, notice: KeptNotice) -> bytes:
        """Return the notice as the record keeps it."""
        return notice.content

    def build_request(self, notice: KeptNotice, content: bytes, unix_s: float) -> Request:
        """Return what is posted, signed over id, time and body."""
        return Request(body=content, headers=headers(self.secrets, notice.id, int(unix_s), content))
