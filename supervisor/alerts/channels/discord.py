"""Discord: an embed by webhook, without mentions and with Markdown escaped (discord.com/developers/docs)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from supervisor.alerts.channel import KeptNotice
from supervisor.alerts.fit import count_utf16, fit
from supervisor.alerts.http_channel import HttpChannel
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.settings import AlertSettings, HttpSettings

TITLE_LIMIT = 256
DESCRIPTION_LIMIT = 4096
COLORS = {Urgency.CALM: 0x2E7D32, Urgency.NORMAL: 0xF9A825, Urgency.HIGH: 0xEF6C00, Urgency.URGENT: 0xC62828}
MARKUP = frozenset("\\*_~`|<>@#:[]()-+=!.")
"""Characters of Markdown, mentions, emoji, time stamps and links; after a backslash Discord shows them as they are."""


class DiscordSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "discord"; the address is that of the channel's webhook."""

    digest: bool = True


class Discord(HttpChannel):
    """Sends notices to a channel of a Discord server."""

    settings_type: ClassVar[type[AlertSettings]] = DiscordSettings

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message with one embed."""
        message = compose(notice, self.zone)
        embed = {
            "title": fit(message.title, TITLE_LIMIT, count_utf16, escape),
            "description": fit(message.body, DESCRIPTION_LIMIT, count_utf16, escape),
            "color": COLORS[message.urgency],
        }
        return msgspec.json.encode({"embeds": [embed], "allowed_mentions": {"parse": []}})


def escape(character: str) -> str:
    """Return a character of a text so that Discord shows it as it is."""
    return f"\\{character}" if character in MARKUP else character
