"""A real SMTP server that enforces RFC 5321's limits, offers STARTTLS and a login, and answers as it is asked to."""

from __future__ import annotations

import base64
import re
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

LINE_BYTES = 1000
"""With the two that end it (4.5.3.1.6)."""


@dataclass
class Mail:
    """One message that was taken."""

    sender: str
    recipients: list[str]
    content: bytes
    encrypted: bool
    login: str | None


class MailServer(socketserver.ThreadingTCPServer):
    """`answers` has what to say to a command in place of what is usual, by its first word; used up one a command."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, certificate: str | None, *, implicit_tls: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.context: ssl.SSLContext | None = None
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate)
        self.implicit_tls = implicit_tls
        self.taken: list[Mail] = []
        self.answers: dict[str, list[str]] = {}
        self.broken_rules: list[str] = []
        self.released = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """The other side going away is what these tests are about."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Conversation(socketserver.StreamRequestHandler):
    """One connection."""

    server: MailServer

    def setup(self) -> None:
        if self.server.implicit_tls:
            assert self.server.context is not None
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()
        self.encrypted = self.server.implicit_tls
        self.login: str | None = None
        self.sender, self.recipients = "", list[str]()

    def handle(self) -> None:
        if self.server.answers.get("GREETING") and not self.answer_otherwise(self.server.answers["GREETING"].pop(0)):
            return
        self.say("220 mail.example")
        while (line := self.read_line()) is not None:
            word = line.split(b" ")[0].decode("ascii", "replace").upper()
            waiting = self.server.answers.get(word)
            if waiting:
                if not self.answer_otherwise(waiting.pop(0)):
                    return
            elif not self.take(word, line):
                return

    def answer_otherwise(self, text: str) -> bool:
        if text == "drip":
            while not self.server.released.wait(0.05):
                self.wfile.write(b"2")
        if text == "hang":
            self.server.released.wait(30)
        if text == "flood":
            with suppress(OSError):
                while not self.server.released.is_set():
                    self.wfile.write(b"250-and more\r\n" * 1000)
        if text in ("drip", "hang", "close", "flood"):
            return False
        self.say(text)
        return True

    def take(self, word: str, line: bytes) -> bool:
        match word:
            case "EHLO":
                offers = ["250-mail.example"]
                offers += ["250-STARTTLS"] if self.server.context and not self.encrypted else []
                self.say("\r\n".join([*offers, "250 AUTH PLAIN"]))
            case "STARTTLS" if self.server.context is not None:
                self.say("220 go ahead")
                self.request = self.server.context.wrap_socket(self.request, server_side=True)
                super().setup()
                self.encrypted = True
            case "AUTH":
                self.login = base64.b64decode(line.split()[2]).decode()
                self.say("235 welcome" if self.encrypted else "538 encryption required")
            case "MAIL" | "RCPT":
                self.take_address(word, line)
            case "DATA":
                self.say("354 go on")
                return self.take_message()
            case "QUIT" | "RSET":
                self.say("250 ok")
            case _:
                self.say("500 what?")
        return True

    def take_address(self, word: str, line: bytes) -> None:
        found = re.fullmatch(rb"(?:MAIL FROM|RCPT TO):<([^<>\s]+@[^<>\s]+)>(?: SIZE=\d+)?", line, re.IGNORECASE)
        if found is None:
            self.server.broken_rules.append(f"no address: {line!r}")
            self.say("501 no address")
            return
        if word == "MAIL":
            self.sender = found[1].decode()
        else:
            self.recipients.append(found[1].decode())
        self.say("250 ok")

    def take_message(self) -> bool:
        lines = []
        while (line := self.read_line()) != b".":
            if line is None:
                return False
            lines.append(line.removeprefix(b"."))
        refusals = self.server.answers.get("MESSAGE")
        if refusals:
            self.say(refusals.pop(0))
            return True
        content = b"\r\n".join(lines)
        self.server.taken.append(Mail(self.sender, self.recipients, content, self.encrypted, self.login))
        self.say("250 taken")
        return True

    def read_line(self) -> bytes | None:
        with suppress(OSError):
            line = self.rfile.readline(LINE_BYTES * 20)
            if len(line) > LINE_BYTES or (line and not line.endswith(b"\r\n")) or b"\0" in line:
                self.server.broken_rules.append(f"a line of {len(line)} bytes")
            if line:
                return line.rstrip(b"\r\n")
        return None

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server(certificate: str | None = None, *, implicit_tls: bool = False) -> Iterator[MailServer]:
    """Run a server; `certificate` is a file with certificate and key."""
    server = MailServer(certificate, implicit_tls=implicit_tls)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
