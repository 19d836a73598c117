"""ntfy: publishes as JSON to a topic; the name of the topic is a password (docs.ntfy.sh/publish)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

from supervisor.alerts.channel import KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import count_bytes, fit
from supervisor.alerts.http_channel import HttpChannel, read_token
from supervisor.alerts.incident_messages import thread_of
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.settings import (
    AlertSettings,
    HttpSettings,
    PathText,
    ReceiverError,
    Text,
    find_zone,
)
from supervisor.json_bytes import encode_json

TOPIC = re.compile(r"[-_A-Za-z0-9]{1,64}")
TITLE_BYTES = 250
MESSAGE_BYTES = 4000
"""A message of more than 4,096 bytes becomes a file."""
PRIORITIES = {Urgency.CALM: 2, Urgency.NORMAL: 3, Urgency.HIGH: 4, Urgency.URGENT: 5}
TAGS = {Urgency.CALM: "white_check_mark", Urgency.NORMAL: "warning", Urgency.HIGH: "wrench", Urgency.URGENT: "sos"}


class NtfySettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "ntfy"; the address is that of the topic, `https://ntfy.sh/TOPIC`."""

    digest: bool = True
    edit: bool = True
    secret_file: PathText | None = None
    """Holds an access token, `tk_...`; not needed where everybody may publish to the topic."""
    secret_env: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ntfy(HttpChannel):
    """Sends notices to the ntfy application."""

    settings_type: ClassVar[type[AlertSettings]] = NtfySettings
    topic: str = field(repr=False)
    edits: bool = False

    @classmethod
    def from_settings(cls, name: str, settings: NtfySettings) -> Ntfy:
        """Read the topic's address and the token; raise ReceiverError, which never holds either."""
        endpoint = Endpoint.from_settings(name, settings)
        folder, _, topic = endpoint.target.rpartition("/")
        if TOPIC.fullmatch(topic) is None:
            raise ReceiverError(f"alerts.{name}: the address does not end in a topic; write https://ntfy.sh/TOPIC")
        token = read_token(name, settings)
        confidential = (topic, *([token] if token else []))
        endpoint = replace(endpoint, target=f"{folder}/", confidential=confidential)
        zone = find_zone(settings)
        return cls(endpoint=endpoint, topic=topic, token=token, zone=zone, edits=settings.edit)

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message; without `markdown`, ntfy shows its text as it is."""
        message, thread = compose(notice, self.zone), thread_of(notice) if self.edits else None
        return encode_json(
            {
                "topic": self.topic,
                "title": fit(message.title, TITLE_BYTES, count_bytes),
                "message": fit(message.body or message.title, MESSAGE_BYTES, count_bytes),
                "priority": PRIORITIES[message.urgency],
                "tags": [TAGS[message.urgency]],
                **({} if thread is None else {"sequence_id": name_sequence(thread)}),
            }
        )


def name_sequence(incident: str) -> str:
    """Return the sequence of an incident: the application shows the newest message of it, in place of those before.

    Servers before 2.16 take no notice of it: there each message stands by itself.
    """
    return f"incident_{hashlib.sha256(incident.encode('utf-8', 'replace')).hexdigest()[:32]}"
