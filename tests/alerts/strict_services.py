"""Receivers that enforce what each service documents, and refuse with 400 whatever breaks it.

`Strict` is a real HTTP server; `accepted` has the texts that a person would see, without the escapes of the service.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from email import message_from_bytes
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class BrokenRuleError(Exception):
    """What the service would refuse, or show as markup."""


Service = Callable[[str, dict[str, str], bytes], str]
"""Checks path, headers and body of a request; returns the text that is shown."""


class Strict(ThreadingHTTPServer):
    """One service on the loopback."""

    daemon_threads = True

    def __init__(self, service: Service, handler: type[Handler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.service = service
        self.accepted: list[str] = []
        self.refusals: list[tuple[int, bytes, dict[str, str]]] = []
        """Answers to give in place of an acceptance, used up one a request."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Strict

    @property
    def sent_headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            status, answered = self.act(body)
        except (BrokenRuleError, ValueError, KeyError, TypeError) as error:
            self.answer(400, f"{type(error).__name__}: {error}".encode(), {})
            return
        if self.server.refusals:
            self.answer(*self.server.refusals.pop(0))
            return
        self.answer(status, answered, {})

    def do_PATCH(self) -> None:
        self.do_POST()

    def act(self, body: bytes) -> tuple[int, bytes]:
        """Do what the request asks; return status and body of the answer."""
        require(self.command == "POST", "method")
        shown = self.server.service(self.path, self.sent_headers, body)
        if not self.server.refusals:
            self.server.accepted.append(shown)
        return 200, b"ok"

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Stay silent."""


@contextmanager
def strict(service: Service) -> Iterator[Strict]:
    """Run a service."""
    with run_service(Strict(service)) as server:
        yield server


@contextmanager
def run_service(server: Strict) -> Iterator[Strict]:
    """Answer requests until the end."""
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def require(condition: object, rule: str) -> None:
    """Refuse where a rule is broken."""
    if not condition:
        raise BrokenRuleError(rule)


def utf16(text: str) -> int:
    """Count as JavaScript does."""
    return len(text.encode("utf-16-le")) // 2


def read_json(headers: dict[str, str], body: bytes) -> Any:
    require(headers["content-type"].startswith("application/json"), "content type")
    return json.loads(body.decode())


def require_keys(record: dict[str, Any], allowed: set[str]) -> None:
    require(set(record) <= allowed, f"unknown keys {set(record) - allowed}")


def ntfy(path: str, headers: dict[str, str], body: bytes) -> str:
    """docs.ntfy.sh: publish as JSON to the root; a message of more than 4,096 bytes becomes an attachment."""
    sent = read_json(headers, body)
    require(path == "/", "JSON is published to the root")
    require_keys(sent, {"topic", "title", "message", "priority", "tags", "sequence_id"})
    require(re.fullmatch(r"[-_A-Za-z0-9]{1,64}", sent.get("sequence_id", "none")), "sequence_id")
    require(re.fullmatch(r"[-_A-Za-z0-9]{1,64}", sent["topic"]), "topic")
    require(1 <= len(sent["message"].encode()) <= 4096, "message of 1 to 4,096 bytes")
    require(1 <= len(sent["title"].encode()) <= 256 and "\n" not in sent["title"], "title")
    require(sent["priority"] in range(1, 6), "priority from 1 to 5")
    require(all(re.fullmatch(r"\w+", tag) for tag in sent["tags"]), "tags")
    return f"{sent['title']}\n{sent['message']}"


def read_form(headers: dict[str, str], body: bytes) -> dict[str, tuple[str | None, bytes]]:
    """Return the parts of a form by name, with their file names, as the standard library reads mail."""
    require(headers["content-type"].startswith("multipart/form-data; boundary="), "a form")
    header = f"Content-Type: {headers['content-type']}\r\n\r\n".encode()
    parts = message_from_bytes(header + body, policy=HTTP).iter_parts()
    found: dict[str, tuple[str | None, bytes]] = {}
    for part in parts:
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        require(isinstance(content, bytes), "content")
        assert isinstance(content, bytes)
        found[str(name)] = part.get_filename(), content
    return found


def require_png(file: tuple[str | None, bytes]) -> None:
    name, content = file
    require(name is not None and name.endswith(".png"), "a file name")
    require(content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82"), "a whole PNG")


def discord(path: str, headers: dict[str, str], body: bytes, *, edited: bool = False) -> str:
    """Title 256, description 4,096, together 6,000; no mentions; nothing that Markdown would read.

    An edit names the attachments that the message is to have afterwards.
    """
    pictures = []
    if headers["content-type"].startswith("multipart/"):
        form = read_form(headers, body)
        require_keys(form, {"payload_json", "files[0]"})
        require_png(form["files[0]"])
        sent = json.loads(form["payload_json"][1])
        image = sent["embeds"][0].pop("image")
        require(image == {"url": f"attachment://{form['files[0]'][0]}"}, "the attached picture")
        pictures = [{"id": 0, "filename": form["files[0]"][0]}]
    else:
        sent = read_json(headers, body)
    require(sent.pop("attachments", None) == (pictures if edited else None), "attachments")
    require_keys(sent, {"embeds", "allowed_mentions"})
    require(sent["allowed_mentions"] == {"parse": []}, "mentions")
    require(len(sent["embeds"]) == 1, "one embed")
    embed = sent["embeds"][0]
    require_keys(embed, {"title", "description", "color"})
    require(1 <= utf16(embed["title"]) <= 256, "title of 1 to 256")
    require(utf16(embed["description"]) <= 4096, "description of at most 4,096")
    require(utf16(embed["title"] + embed["description"]) <= 6000, "embed of at most 6,000")
    require(0 <= embed["color"] <= 0xFFFFFF, "color")
    return f"{show_markdown(embed['title'])}\n{show_markdown(embed['description'])}"


def show_markdown(text: str) -> str:
    """Return what Discord shows; refuse what would be markup, a mention, an emoji or a link."""
    bare = re.sub(r"\\[^0-9A-Za-z\s]", "", text)
    require(not re.search(r"[\\*_~`|<>@#\[\]():]", bare), "markup")
    require(not re.search(r"(?m)^\s*([-+]|\d+\.)", bare), "a list")
    return re.sub(r"\\([^0-9A-Za-z\s])", r"\1", text)


def slack(path: str, headers: dict[str, str], body: bytes) -> str:
    """Block Kit: header 150, section 3,000; `&`, `<` and `>` escaped; plain text alone."""
    sent = read_json(headers, body)
    require_keys(sent, {"text", "mrkdwn", "blocks", "unfurl_links", "unfurl_media"})
    require(sent["mrkdwn"] is False, "mrkdwn of the text")
    require(1 <= len(sent["text"]) <= 4000, "text of 1 to 4,000")
    show_entities(sent["text"])
    header, section = sent["blocks"]
    require((header["type"], section["type"]) == ("header", "section"), "blocks")
    for block, limit in ((header, 150), (section, 3000)):
        require_keys(block, {"type", "text"})
        require(block["text"]["type"] == "plain_text" and block["text"]["emoji"] is False, "plain text")
        require(1 <= len(block["text"]["text"]) <= limit, f"text of 1 to {limit}")
    return f"{show_entities(header['text']['text'])}\n{show_entities(section['text']['text'])}"


def show_entities(text: str) -> str:
    """Return what Slack shows; refuse what would be a mention or a link, and half an entity."""
    require(not re.search(r"[<>]|&(?!(amp|lt|gt);)", text), "unescaped characters")
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def telegram(path: str, headers: dict[str, str], body: bytes) -> str:
    """Bot API, without a parse mode: sendMessage with 1 to 4,096 characters (UTF-16), sendPhoto with at most 1,024."""
    if path.endswith("/sendPhoto"):
        form = read_form(headers, body)
        require_keys(form, {"chat_id", "caption", "photo", "disable_notification"})
        require_png(form["photo"])
        caption = form["caption"][1].decode()
        require(utf16(caption) <= 1024, "caption of at most 1,024")
        require(form["disable_notification"][1] in (b"true", b"false"), "disable_notification")
        return caption
    sent = read_json(headers, body)
    require(re.fullmatch(r"/bot[0-9]+:[\w-]+/sendMessage", path), "path")
    require_keys(sent, {"chat_id", "text", "link_preview_options", "disable_notification"})
    require(1 <= utf16(sent["text"].strip()) <= 4096, "text of 1 to 4,096")
    require(sent["link_preview_options"] == {"is_disabled": True}, "link preview")
    return str(sent["text"])


def alertmanager(path: str, headers: dict[str, str], body: bytes) -> str:
    """OpenAPI of version 2: names of labels, no empty values, a start that is not after the end."""
    sent = read_json(headers, body)
    require(path == "/api/v2/alerts", "path")
    require(isinstance(sent, list) and sent, "a list of alerts")
    for alert in sent:
        require_keys(alert, {"labels", "annotations", "startsAt", "endsAt"})
        for name, value in {**alert["labels"], **alert["annotations"]}.items():
            require(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name), "name of a label")
            value.encode()
        require(all(alert["labels"].values()), "an empty label")
        starts, ends = (datetime.fromisoformat(alert[key]) for key in ("startsAt", "endsAt"))
        require(starts.tzinfo is not None and starts <= ends, "a start after the end")
    return f"{sent[0]['annotations']['summary']}\n{sent[0]['annotations']['description']}"


def healthchecks(path: str, headers: dict[str, str], body: bytes) -> str:
    """Pinging API: the check's address, /fail or /log; a body of at most 10 kB is kept whole."""
    require(re.fullmatch(r"/ping/[0-9a-f-]{36}(/fail|/log)?", path), "path")
    require(len(body) <= 10_000, "a body of at most 10,000 bytes")
    return body.decode()
