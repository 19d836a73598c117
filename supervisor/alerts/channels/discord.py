"""Discord: an embed by webhook, without mentions and with Markdown escaped (discord.com/developers/docs)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
from urllib3.filepost import encode_multipart_formdata

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import count_utf16, fit
from supervisor.alerts.http import Request, exchange, read_field
from supervisor.alerts.http_channel import HttpChannel
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.settings import AlertSettings, HttpSettings, find_zone
from supervisor.json_bytes import encode_json

TITLE_LIMIT = 256
DESCRIPTION_LIMIT = 4096
PICTURE_NAME = "loss.png"
COLORS = {Urgency.CALM: 0x2E7D32, Urgency.NORMAL: 0xF9A825, Urgency.HIGH: 0xEF6C00, Urgency.URGENT: 0xC62828}
MESSAGE = re.compile(r"discord ([0-9]{1,20})")
"""How a message is named in `edit`: by the id that Discord gave it."""
REFUSED = (400, 403, 404, 410)
"""Answers to an edit of a message that was deleted, or is not one of this webhook."""
MARKUP = frozenset("\\*_~`|<>@#:[]()-+=!.")
"""Characters of Markdown, mentions, emoji, time stamps and links; after a backslash Discord shows them as they are."""


class DiscordSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "discord"; the address is that of the channel's webhook."""

    digest: bool = True
    picture: bool = True
    edit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Discord(HttpChannel):
    """Sends notices to a channel of a Discord server."""

    settings_type: ClassVar[type[AlertSettings]] = DiscordSettings
    picture: bool = False
    edits: bool = False

    @classmethod
    def from_settings(cls, name: str, settings: DiscordSettings) -> Discord:
        """Read the address; raise ReceiverError, which never holds it."""
        endpoint = Endpoint.from_settings(name, settings)
        zone = find_zone(settings)
        return cls(endpoint=endpoint, zone=zone, picture=settings.picture, edits=settings.edit)

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message with one embed."""
        message = compose(notice, self.zone)
        embed = {
            "title": fit(message.title, TITLE_LIMIT, count_utf16, escape),
            "description": fit(message.body, DESCRIPTION_LIMIT, count_utf16, escape),
            "color": COLORS[message.urgency],
        }
        return encode_json({"embeds": [embed], "allowed_mentions": {"parse": []}})

    def build_request(self, notice: KeptNotice, content: bytes, unix_s: float) -> Request:
        """Return what is posted; where messages are edited Discord is to answer with the one that it made."""
        return self._ask_for_message(Request(body=content))

    def send_with_picture(self, notice: KeptNotice, content: bytes, picture: bytes, unix_s: float) -> Answer:
        """Post it as a form: the message, and the picture that its embed shows."""
        return exchange(
            self.endpoint, self._ask_for_message(_attach_picture(msgspec.json.decode(content), picture)), unix_s
        )

    def edit(
        self, notice: KeptNotice, content: bytes, picture: bytes | None, message: str, unix_s: float
    ) -> Answer | None:
        """Write it into a message of this webhook; its old picture is taken away."""
        known = MESSAGE.fullmatch(message)
        if not self.edits or known is None:
            return None
        changed = {**msgspec.json.decode(content), "attachments": []}
        request = Request(body=encode_json(changed)) if picture is None else _attach_picture(changed, picture)
        path, _, query = self.endpoint.target.partition("?")
        target = f"{path}/messages/{known[1]}{f'?{query}' if query else ''}"
        answer = exchange(self.endpoint, replace(request, method="PATCH", target=target), unix_s)
        return None if answer.status in REFUSED else replace(answer, message=message)

    def _ask_for_message(self, request: Request) -> Request:
        if not self.edits:
            return request
        target = self.endpoint.target
        target = f"{target}{'&' if '?' in target else '?'}wait=true"
        return replace(request, target=target, message=_read_message)


def _attach_picture(message: dict[str, Any], picture: bytes) -> Request:
    """Return a message as a form with the picture that its embed shows."""
    message["embeds"][0]["image"] = {"url": f"attachment://{PICTURE_NAME}"}
    if "attachments" in message:
        message["attachments"] = [{"id": 0, "filename": PICTURE_NAME}]
    body, content_type = encode_multipart_formdata(
        {
            "payload_json": encode_json(message),
            "files[0]": (PICTURE_NAME, picture, "image/png"),
        }
    )
    return Request(body=body, content_type=content_type)


def _read_message(body: bytes) -> str | None:
    """Return how the message is named that Discord answers with."""
    named = f"discord {read_field(body, 'id')}"
    return named if MESSAGE.fullmatch(named) else None


def escape(character: str) -> str:
    """Return a character of a text so that Discord shows it as it is."""
    return f"\\{character}" if character in MARKUP else character
