"""What an alert channel is: it renders a notice for its service and sends it, and reports how that went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from supervisor.alerts.settings import AlertSettings
from supervisor.core.flags import Severity

SEVERITIES = {severity.label: severity for severity in Severity}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one delivery attempt."""

    delivered: bool
    error: str | None = None
    retry_after_s: float | None = None
    final: bool = False
    message: str | None = None
    """The message that was made, as its channel names it in `edit`; None where it cannot be edited."""
    status: int | None = None
    """HTTP status of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNotice:
    """A notice as the record keeps it until it is delivered."""

    id: str
    """Unique for each notice and receiver: the same for every attempt to deliver it."""
    content: bytes
    """The notice as JSON; a webhook sends it as it is."""
    type: str
    severity: Severity
    timestamp: str
    """When it happened, RFC 3339 in UTC."""
    data: Mapping[str, Any]


def read_notice(notice_id: str, content: bytes) -> KeptNotice:
    """Return the notice that the record keeps as JSON.

    Where the severity cannot be read it is taken for critical, so that no limit of a receiver holds the notice back.
    """
    try:
        decoded = msgspec.json.decode(content)
    except msgspec.DecodeError:
        decoded = None
    fields = decoded if isinstance(decoded, dict) else {}
    data = fields["data"] if isinstance(fields.get("data"), dict) else {}
    return KeptNotice(
        id=notice_id,
        content=content,
        type=str(fields.get("type", "")),
        severity=SEVERITIES.get(str(data.get("severity")), Severity.CRITICAL),
        timestamp=str(fields.get("timestamp", "")),
        data=data,
    )


class Channel(Protocol):
    """One receiver, made from its settings; used by one thread at a time."""

    settings_type: ClassVar[type[AlertSettings]]
    """The keys of `[alerts.NAME]` with this kind."""

    @classmethod
    def from_settings(cls, name: str, settings: Any) -> Channel:
        """Read addresses and secrets from where the settings say; raise ReceiverError, which never holds either."""
        ...

    @property
    def destination(self) -> str:
        """Host or program that it sends to, without anything secret."""
        ...

    def render(self, notice: KeptNotice) -> bytes:
        """Return what is sent for a notice: pure, within the limits of the service, its markup escaped."""
        ...

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        """Send what was rendered for a notice, once, in bounded time; what goes wrong is in the answer."""
        ...


@runtime_checkable
class PicturedChannel(Protocol):
    """A channel whose service takes a picture with a message."""

    @property
    def picture(self) -> bool:
        """Whether its settings ask for one."""
        ...

    def send_with_picture(self, notice: KeptNotice, content: bytes, picture: bytes, unix_s: float) -> Answer:
        """Send what was rendered for a notice with a PNG, once, in bounded time; what goes wrong is in the answer."""
        ...


@runtime_checkable
class EditingChannel(Protocol):
    """A channel whose service lets a message be changed after it was sent."""

    def edit(
        self, notice: KeptNotice, content: bytes, picture: bytes | None, message: str, unix_s: float
    ) -> Answer | None:
        """Write what was rendered for a notice into a message sent before, once, in bounded time.

        `message` is that of an earlier `Answer`. Return None where the message is not there any more or cannot be
        edited: the notice is then sent as a new one.
        """
        ...


@runtime_checkable
class PingedChannel(Protocol):
    """A channel that also reports, at intervals, that the daemon works; the service reports its silence."""

    @property
    def ping_every_s(self) -> float:
        """Seconds from one ping to the next."""
        ...

    def ping(self, status: str, unix_s: float) -> Answer:
        """Report that the daemon works, with a line on how."""
        ...
