"""Slack: two blocks of plain text by incoming webhook (docs.slack.dev: Block Kit, formatting)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import ClassVar

import msgspec

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import fit
from supervisor.alerts.http import Request, exchange
from supervisor.alerts.message import compose
from supervisor.alerts.settings import AlertSettings, HttpSettings, find_zone

HEADER_LIMIT = 150
SECTION_LIMIT = 3000
TEXT_LIMIT = 3000
ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class SlackSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "slack"; the address is that of an incoming webhook."""

    digest: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """Sends notices to a channel of a Slack workspace."""

    settings_type: ClassVar[type[AlertSettings]] = SlackSettings
    endpoint: Endpoint
    zone: tzinfo | None = None

    @classmethod
    def from_settings(cls, name: str, settings: SlackSettings) -> Slack:
        """Read the address; raise ReceiverError, which never holds it."""
        return cls(endpoint=Endpoint.from_settings(name, settings), zone=find_zone(name, settings))

    @property
    def destination(self) -> str:
        """Host and port."""
        return self.endpoint.authority

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message; `text` is what a notification shows, the blocks are shown in the channel."""
        message = compose(notice, self.zone)
        blocks = [
            {"type": "header", "text": _plain_text(message.title, HEADER_LIMIT)},
            {"type": "section", "text": _plain_text(message.body or message.title, SECTION_LIMIT)},
        ]
        text = fit(f"{message.title}\n{message.body}", TEXT_LIMIT, escape=escape)
        return msgspec.json.encode(
            {"text": text, "mrkdwn": False, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}
        )

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        """Post it."""
        return exchange(self.endpoint, Request(body=content), unix_s)


def _plain_text(text: str, limit: int) -> dict[str, object]:
    """Return a text object in which Slack looks for no markup."""
    return {"type": "plain_text", "text": fit(text, limit, escape=escape), "emoji": False}


def escape(character: str) -> str:
    """Return a character of a text so that Slack takes it for no mention and no link."""
    return ESCAPES.get(character, character)
