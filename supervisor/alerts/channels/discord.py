"""Discord: an embed by webhook, without mentions and with Markdown escaped (discord.com/developers/docs)."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from urllib3.filepost import encode_multipart_formdata

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import count_utf16, fit
from supervisor.alerts.http import Request, exchange
from supervisor.alerts.http_channel import HttpChannel
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.settings import AlertSettings, HttpSettings, find_zone
from supervisor.core.lean_dataclass import dataclass

TITLE_LIMIT = 256
DESCRIPTION_LIMIT = 4096
PICTURE_NAME = "loss.png"
COLORS = {Urgency.CALM: 0x2E7D32, Urgency.NORMAL: 0xF9A825, Urgency.HIGH: 0xEF6C00, Urgency.URGENT: 0xC62828}
MARKUP = frozenset("\\*_~`|<>@#:[]()-+=!.")
"""Characters of Markdown, mentions, emoji, time stamps and links; after a backslash Discord shows them as they are."""


class DiscordSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "discord"; the address is that of the channel's webhook."""

    digest: bool = True
    picture: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Discord(HttpChannel):
    """Sends notices to a channel of a Discord server."""

    settings_type: ClassVar[type[AlertSettings]] = DiscordSettings
    picture: bool = False

    @classmethod
    def from_settings(cls, name: str, settings: DiscordSettings) -> Discord:
        """Read the address; raise ReceiverError, which never holds it."""
        endpoint = Endpoint.from_settings(name, settings)
        return cls(endpoint=endpoint, zone=find_zone(name, settings), picture=settings.picture)

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message with one embed."""
        message = compose(notice, self.zone)
        embed = {
            "title": fit(message.title, TITLE_LIMIT, count_utf16, escape),
            "description": fit(message.body, DESCRIPTION_LIMIT, count_utf16, escape),
            "color": COLORS[message.urgency],
        }
        return msgspec.json.encode({"embeds": [embed], "allowed_mentions": {"parse": []}})

    def send_with_picture(self, notice: KeptNotice, content: bytes, picture: bytes, unix_s: float) -> Answer:
        """Post it as a form: the message, and the picture that its embed shows."""
        message = msgspec.json.decode(content)
        message["embeds"][0]["image"] = {"url": f"attachment://{PICTURE_NAME}"}
        body, content_type = encode_multipart_formdata(
            {
                "payload_json": msgspec.json.encode(message),
                "files[0]": (PICTURE_NAME, picture, "image/png"),
            }
        )
        return exchange(self.endpoint, Request(body=body, content_type=content_type), unix_s)


def escape(character: str) -> str:
    """Return a character of a text so that Discord shows it as it is."""
    return f"\\{character}" if character in MARKUP else character
