"""Slack: two blocks of plain text by incoming webhook (docs.slack.dev: Block Kit, formatting)."""

from __future__ import annotations

from typing import ClassVar

from supervisor.alerts.channel import KeptNotice
from supervisor.alerts.fit import fit
from supervisor.alerts.http_channel import HttpChannel
from supervisor.alerts.message import compose
from supervisor.alerts.settings import AlertSettings, HttpSettings
from supervisor.json_bytes import encode_json

HEADER_LIMIT = 150
SECTION_LIMIT = 3000
TEXT_LIMIT = 3000
ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class SlackSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "slack"; the address is that of an incoming webhook."""

    digest: bool = True


class Slack(HttpChannel):
    """Sends notices to a channel of a Slack workspace."""

    settings_type: ClassVar[type[AlertSettings]] = SlackSettings

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message; `text` is what a notification shows, the blocks are shown in the channel."""
        message = compose(notice, self.zone)
        blocks = [
            {"type": "header", "text": _plain_text(message.title, HEADER_LIMIT)},
            {"type": "section", "text": _plain_text(message.body or message.title, SECTION_LIMIT)},
        ]
        text = fit(f"{message.title}\n{message.body}", TEXT_LIMIT, escape=escape)
        return encode_json(
            {"text": text, "mrkdwn": False, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}
        )


def _plain_text(text: str, limit: int) -> dict[str, object]:
    """Return a text object in which Slack looks for no markup."""
    return {"type": "plain_text", "text": fit(text, limit, escape=escape), "emoji": False}


def escape(character: str) -> str:
    """Return a character of a text so that Slack takes it for no mention and no link."""
    return ESCAPES.get(character, character)
