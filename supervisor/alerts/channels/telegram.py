"""Telegram: `sendMessage` of the Bot API without a parse mode (core.telegram.org/bots/api)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta
from urllib3.filepost import encode_multipart_formdata

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import count_utf16, fit
from supervisor.alerts.http import Request, exchange
from supervisor.alerts.http_channel import HttpChannel
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.settings import (
    AlertSettings,
    HttpSettings,
    PathText,
    ReceiverError,
    Text,
    find_zone,
    require_text,
)
from supervisor.core.lean_dataclass import dataclass

SERVER = "https://api.telegram.org"
TOKEN = re.compile(r"[0-9]{3,20}:[A-Za-z0-9_-]{20,100}")
TEXT_LIMIT = 4096
"""UTF-16 code units of a message."""
CAPTION_LIMIT = 1024
"""The same of a text with a picture; a longer one is sent without it."""
METHOD, PICTURE_METHOD = "sendMessage", "sendPhoto"
ChatId = Annotated[
    str, Meta(pattern=r"^(-?[0-9]{1,20}|@[A-Za-z0-9_]{4,40})$", extra={"allowed": 'a number or "@channel", as text'})
]


class TelegramSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "telegram"; an address only for a Bot API server of one's own."""

    digest: bool = True
    picture: bool = True
    REQUIRED: ClassVar[tuple[str, ...]] = ("secret",)

    chat_id: ChatId
    secret_file: PathText | None = None
    """Holds the bot's token."""
    secret_env: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Telegram(HttpChannel):
    """Sends notices to a chat."""

    settings_type: ClassVar[type[AlertSettings]] = TelegramSettings
    chat_id: str
    picture: bool = False

    @classmethod
    def from_settings(cls, name: str, settings: TelegramSettings) -> Telegram:
        """Read the token; raise ReceiverError, which never holds it."""
        endpoint = Endpoint.from_settings(name, settings, default=SERVER)
        token = require_text(name, "secret", settings)
        if TOKEN.fullmatch(token) is None:
            raise ReceiverError(f"alerts.{name}: the secret is not the token of a bot (NUMBER:LETTERS)")
        target = f"{endpoint.target.rstrip('/')}/bot{token}/{METHOD}"
        endpoint = replace(endpoint, target=target, confidential=(token,))
        zone = find_zone(name, settings)
        return cls(endpoint=endpoint, chat_id=settings.chat_id, zone=zone, picture=settings.picture)

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message; without a parse mode nothing in it is markup."""
        message = compose(notice, self.zone)
        return msgspec.json.encode(
            {
                "chat_id": self.chat_id,
                "text": fit(f"{message.title}\n{message.body}".strip(), TEXT_LIMIT, count_utf16),
                "link_preview_options": {"is_disabled": True},
                "disable_notification": message.urgency is Urgency.CALM,
            }
        )

    def build_request(self, notice: KeptNotice, content: bytes, unix_s: float) -> Request:
        """Return what is posted; the token is in the endpoint's path."""
        return Request(body=content, retry_after=_read_retry_after)

    def send_with_picture(self, notice: KeptNotice, content: bytes, picture: bytes, unix_s: float) -> Answer:
        """Post the picture with the text as its caption, where that is short enough."""
        message = msgspec.json.decode(content)
        if count_utf16(message["text"]) > CAPTION_LIMIT:
            return self.send(notice, content, unix_s)
        body, content_type = encode_multipart_formdata(
            {
                "chat_id": message["chat_id"],
                "caption": message["text"],
                "disable_notification": "true" if message["disable_notification"] else "false",
                "photo": ("loss.png", picture, "image/png"),
            }
        )
        target = f"{self.endpoint.target.removesuffix(METHOD)}{PICTURE_METHOD}"
        request = Request(body=body, content_type=content_type, target=target, retry_after=_read_retry_after)
        return exchange(self.endpoint, request, unix_s)


def _read_retry_after(body: bytes) -> float | None:
    """Return `parameters.retry_after` of a refusal, seconds."""
    try:
        wait_s = msgspec.json.decode(body)["parameters"]["retry_after"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return float(wait_s) if isinstance(wait_s, int | float) and wait_s >= 0 else None
