"""Services that keep the messages they were sent, let them be edited as they document it, and forget deleted ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import strict_services as services
from strict_services import Handler, Service, Strict, require, run_service

DISCORD_PATH = "/api/webhooks/1208435/xD3f-9qW_7"
UNKNOWN_MESSAGE = (404, b'{"message": "Unknown Message", "code": 10008}')
NOT_FOUND = (400, b'{"ok":false,"error_code":400,"description":"Bad Request: message to edit not found"}')
NOT_MODIFIED = (400, b'{"ok":false,"error_code":400,"description":"Bad Request: message is not modified: the same"}')


class Editable(Strict):
    """A service with its messages; `shown` has the text of each by its number."""

    def __init__(self, service: Service, handler: type[Handler]) -> None:
        super().__init__(service, handler)
        self.shown: dict[int, str] = {}
        self.made = 1_400_000_000
        self.pictured: set[int] = set()

    def make(self, text: str) -> int:
        self.made += 1
        self.shown[self.made] = text
        return self.made


class Discord(Handler):
    """Execute Webhook, whose answer has the message with `?wait=true` alone, and Edit Webhook Message."""

    server: Editable

    def act(self, body: bytes) -> tuple[int, bytes]:
        path, _, query = self.path.partition("?")
        settings = query.split("&") if query else []
        if self.command == "PATCH":
            return self.change(path, settings, body)
        require(path == DISCORD_PATH, "path")
        require(set(settings) <= {"wait=true", "thread_id=9"}, "query")
        text = self.server.service(path, self.sent_headers, body)
        number = self.server.make(text)
        return (200, self.describe(number, text)) if "wait=true" in settings else (204, b"")

    def change(self, path: str, settings: list[str], body: bytes) -> tuple[int, bytes]:
        require(set(settings) <= {"thread_id=9"}, "query")
        number = int(path.removeprefix(f"{DISCORD_PATH}/messages/"))
        if number not in self.server.shown:
            return UNKNOWN_MESSAGE
        self.server.shown[number] = text = services.discord(path, self.sent_headers, body, edited=True)
        return 200, self.describe(number, text)

    def describe(self, number: int, text: str) -> bytes:
        """Return a message as Discord does: its id comes after all that was sent."""
        embed = {"type": "rich", "description": text}
        return json.dumps({"type": 0, "content": "", "embeds": [embed], "id": str(number), "pinned": False}).encode()


class Telegram(Handler):
    """`sendMessage`, `sendPhoto`, `editMessageText` and `editMessageCaption` of the Bot API."""

    server: Editable

    def act(self, body: bytes) -> tuple[int, bytes]:
        method = self.path.rpartition("/")[2]
        if method in ("editMessageText", "editMessageCaption"):
            return self.change(method, json.loads(body))
        text = self.server.service(self.path, self.sent_headers, body)
        number = self.server.make(text)
        if method == "sendPhoto":
            self.server.pictured.add(number)
        return 200, json.dumps({"ok": True, "result": {"message_id": number, "text": text}}).encode()

    def change(self, method: str, sent: dict[str, Any]) -> tuple[int, bytes]:
        require(re.fullmatch(r"/bot[0-9]+:[\w-]+/\w+", self.path), "path")
        number, of_picture = sent["message_id"], method == "editMessageCaption"
        services.require_keys(sent, {"chat_id", "message_id", *(("caption",) if of_picture else TEXT_KEYS)})
        if number not in self.server.shown:
            return NOT_FOUND
        require(of_picture == (number in self.server.pictured), "there is no such text in the message to edit")
        text = sent["caption" if of_picture else "text"]
        require(1 <= services.utf16(text) <= (1024 if of_picture else 4096), "length")
        if self.server.shown[number] == text:
            return NOT_MODIFIED
        self.server.shown[number] = text
        return 200, json.dumps({"ok": True, "result": {"message_id": number, "text": text}}).encode()


TEXT_KEYS = ("text", "link_preview_options")


@contextmanager
def editable(kind: str) -> Iterator[Editable]:
    """Run Discord or Telegram."""
    service, handler = {"discord": (services.discord, Discord), "telegram": (services.telegram, Telegram)}[kind]
    with run_service(Editable(service, handler)) as server:
        assert isinstance(server, Editable)
        yield server
