"""Telegram: `sendMessage` of the Bot API without a parse mode (core.telegram.org/bots/api)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta
from urllib3.filepost import encode_multipart_formdata

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.endpoint import Endpoint
from supervisor.alerts.fit import count_utf16, fit
from supervisor.alerts.http import Request, exchange, read_field
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
from supervisor.json_bytes import encode_json

SERVER = "https://api.telegram.org"
TOKEN = re.compile(r"[0-9]{3,20}:[A-Za-z0-9_-]{20,100}")
TEXT_LIMIT = 4096
"""UTF-16 code units of a message."""
CAPTION_LIMIT = 1024
"""The same of a text with a picture; a longer one is sent without it."""
METHOD, PICTURE_METHOD = "sendMessage", "sendPhoto"
EDITS = {"text": "editMessageText", "picture": "editMessageCaption"}
"""What changes a message, by what it was sent as."""
MESSAGE = re.compile(r"telegram (text|picture) ([0-9]{1,20}) ([@\w-]+)")
"""How a message is named in `edit`: what it was sent as, the id that Telegram gave it, and the chat."""
REFUSED = (400, 403, 404, 410)
"""Answers to an edit of a message that was deleted, or may not be changed."""
NOT_MODIFIED = "message is not modified"
"""What Telegram says, with status 400, of an edit that changes nothing."""
ChatId = Annotated[
    str, Meta(pattern=r"^(-?[0-9]{1,20}|@[A-Za-z0-9_]{4,40})$", extra={"allowed": 'a number or "@channel", as text'})
]


class TelegramSettings(HttpSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "telegram"; an address only for a Bot API server of one's own."""

    digest: bool = True
    picture: bool = True
    edit: bool = True
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
    edits: bool = False

    @classmethod
    def from_settings(cls, name: str, settings: TelegramSettings) -> Telegram:
        """Read the token; raise ReceiverError, which never holds it."""
        endpoint = Endpoint.from_settings(name, settings, default=SERVER)
        token = require_text(name, "secret", settings)
        if TOKEN.fullmatch(token) is None:
            raise ReceiverError(f"alerts.{name}: the secret is not a bot token (NUMBER:LETTERS)")
        target = f"{endpoint.target.rstrip('/')}/bot{token}/{METHOD}"
        endpoint = replace(endpoint, target=target, confidential=(token,))
        zone = find_zone(settings)
        return cls(
            endpoint=endpoint,
            chat_id=settings.chat_id,
            zone=zone,
            picture=settings.picture,
            edits=settings.edit,
        )

    def render(self, notice: KeptNotice) -> bytes:
        """Return the JSON of a message; without a parse mode nothing in it is markup."""
        message = compose(notice, self.zone)
        return encode_json(
            {
                "chat_id": self.chat_id,
                "text": fit(f"{message.title}\n{message.body}".strip(), TEXT_LIMIT, count_utf16),
                "link_preview_options": {"is_disabled": True},
                "disable_notification": message.urgency is Urgency.CALM,
            }
        )

    def build_request(self, notice: KeptNotice, content: bytes, unix_s: float) -> Request:
        """Return what is posted; the token is in the endpoint's path."""
        return Request(body=content, retry_after=_read_retry_after, message=self._reads_message("text"))

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
        request = Request(
            body=body,
            content_type=content_type,
            target=self._target_of(PICTURE_METHOD),
            retry_after=_read_retry_after,
            message=self._reads_message("picture"),
        )
        return exchange(self.endpoint, request, unix_s)

    def edit(
        self, notice: KeptNotice, content: bytes, picture: bytes | None, message: str, unix_s: float
    ) -> Answer | None:
        """Write it into a message of this chat: its text, or the caption of a picture, which stays as it was."""
        known = MESSAGE.fullmatch(message)
        if not self.edits or known is None or known[3] != self.chat_id:
            return None
        sent = msgspec.json.decode(content)
        changed = {"chat_id": self.chat_id, "message_id": int(known[2])}
        if known[1] == "text":
            changed |= {"text": sent["text"], "link_preview_options": sent["link_preview_options"]}
        elif count_utf16(sent["text"]) <= CAPTION_LIMIT:
            changed["caption"] = sent["text"]
        else:
            return None
        target, body = self._target_of(EDITS[known[1]]), encode_json(changed)
        answer = exchange(self.endpoint, Request(body=body, target=target, retry_after=_read_retry_after), unix_s)
        if answer.status == 400 and NOT_MODIFIED in (answer.error or ""):
            return Answer(delivered=True, message=message)
        return None if answer.status in REFUSED else replace(answer, message=message)

    def _target_of(self, method: str) -> str:
        return f"{self.endpoint.target.removesuffix(METHOD)}{method}"

    def _reads_message(self, sent_as: str) -> Callable[[bytes], str | None] | None:
        """Return what names the message that Telegram answers with; None where messages are not edited."""

        def read(body: bytes) -> str | None:
            named = f"telegram {sent_as} {read_field(body, 'result', 'message_id')} {self.chat_id}"
            return named if MESSAGE.fullmatch(named) else None

        return read if self.edits else None


def _read_retry_after(body: bytes) -> float | None:
    """Return `parameters.retry_after` of a refusal, seconds."""
    wait_s = read_field(body, "parameters", "retry_after")
    return float(wait_s) if isinstance(wait_s, int | float) and wait_s >= 0 else None
