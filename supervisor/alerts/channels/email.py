"""E-mail: one message by SMTP with TLS, plain text, the notices of an incident in one thread."""

from __future__ import annotations

import hashlib
import smtplib
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from supervisor.alerts.addresses import RefusedAddressError, Resolve, permitted
from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.confidential import quote_text
from supervisor.alerts.conversation_limits import BoundedLines, cut_after
from supervisor.alerts.fit import fit
from supervisor.alerts.message import compose, parse_time
from supervisor.alerts.settings import (
    AlertSettings,
    PathText,
    ReceiverError,
    Text,
    TimeoutS,
    find_zone,
    read_text,
)
from supervisor.core.sanitize import one_line

SUBJECT_LIMIT = 68
"""Short enough that a subject in ASCII stands on the line of its name."""
EPOCH = datetime.fromtimestamp(0, timezone.utc)
"""Date of a notice whose own cannot be read."""
BODY_LIMIT = 20_000
FINAL = 500
"""From this status on a server that has read the message will not take it at another time."""
REPLY_BYTES_MAX = 65_536
"""Of one reply: the longest that a server has to send are the extensions that it knows."""
DOMAIN = "rocm-supervisor.invalid"
"""Of message ids, which need a domain and are no addresses (RFC 2606)."""
MailAddress = Annotated[
    str,
    Meta(
        max_length=254,
        pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$",
        extra={"allowed": "an address, name@host"},
    ),
]


class EmailSettings(AlertSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "email"."""

    digest: bool = True
    picture: bool = True
    host: Text
    port: Annotated[int, Meta(ge=1, le=65_535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`none` only to a server on this machine."""
    sender: MailAddress
    to: Annotated[list[MailAddress], Meta(min_length=1, max_length=50)]
    user: Text | None = None
    secret_file: PathText | None = None
    """Holds the password of `user`."""
    secret_env: Text | None = None
    connect_timeout_s: TimeoutS = 4.0
    read_timeout_s: TimeoutS = 30.0
    allow_private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Email:
    """Sends notices to mailboxes."""

    settings_type: ClassVar[type[AlertSettings]] = EmailSettings
    settings: EmailSettings
    password: str | None = field(default=None, repr=False)
    zone: tzinfo | None = None
    resolve: Resolve = field(default=socket.getaddrinfo, repr=False)

    @classmethod
    def from_settings(cls, name: str, settings: EmailSettings) -> Email:
        """Read the password; raise ReceiverError, which never holds it."""
        password = read_text(name, "secret", settings)
        if (settings.user is None) != (password is None):
            missing = "user" if settings.user is None else "secret_file or secret_env"
            raise ReceiverError(f"alerts.{name}: {missing} is missing; a login needs user and secret")
        if password is not None and settings.security == "none":
            raise ReceiverError(f"alerts.{name}: a password is sent over TLS only; set security to starttls or tls")
        return cls(settings=settings, password=password, zone=find_zone(settings))

    @property
    def destination(self) -> str:
        """Host and port."""
        return f"{self.settings.host}:{self.settings.port}"

    @property
    def picture(self) -> bool:
        """Whether a picture is attached where there is one."""
        return self.settings.picture

    def render(self, notice: KeptNotice) -> bytes:
        """Return the message as it goes over the wire, lines shorter than 1,000 bytes."""
        return self._build_message(notice).as_bytes()

    def send_with_picture(self, notice: KeptNotice, content: bytes, picture: bytes, unix_s: float) -> Answer:
        """Hand it to the server with the picture attached, which readers show below the text."""
        message = self._build_message(notice)
        message.add_attachment(picture, maintype="image", subtype="png", filename="loss.png", disposition="inline")
        return self.send(notice, message.as_bytes(), unix_s)

    def _build_message(self, notice: KeptNotice) -> EmailMessage:
        text = compose(notice, self.zone)
        message = EmailMessage(policy=SMTP)
        message["From"] = self.settings.sender
        message["To"] = ", ".join(self.settings.to)
        message["Subject"] = fit(text.title, SUBJECT_LIMIT)
        message["Date"] = format_datetime(parse_time(notice.timestamp, timezone.utc) or EPOCH)
        message["Message-ID"] = f"<{_hash_text(notice.id)}@{DOMAIN}>"
        incident = notice.data.get("incident")
        if incident:
            host = notice.data.get("host")
            thread = f"<{_hash_text(f'{incident} {host}')}@{DOMAIN}>"
            message["In-Reply-To"] = thread
            message["References"] = thread
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(fit(text.body, BODY_LIMIT), cte="base64")
        return message

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        """Hand it to the server; the address is checked as that of a webhook is."""
        host, port = self.settings.host, self.settings.port
        try:
            addresses = permitted(host, port, allow_private=self.settings.allow_private, resolve=self.resolve)
        except RefusedAddressError as error:
            return Answer(delivered=False, error=f"{host}: {error}")
        except (OSError, UnicodeError, ValueError) as error:
            return Answer(delivered=False, error=f"{host} does not resolve: {self._quote_safely(str(error))}")
        if self.settings.security == "none" and not _is_this_machine(addresses[0]):
            return Answer(delivered=False, error=f"{host} is not on this machine; set security to starttls or tls")
        client = _PinnedSmtp(addresses[0], implicit_tls=self.settings.security == "tls")
        client.timeout = self.settings.connect_timeout_s
        try:
            # TCP and TLS have the limit for themselves, the greeting as much again, however slowly it comes.
            with cut_after(2 * self.settings.connect_timeout_s) as cut:
                client.watch = cut.watch
                client.connect(host, port)
        except (OSError, smtplib.SMTPException) as error:
            client.close()
            return Answer(
                delivered=False, error=f"no connection to {host} ({addresses[0]}): {self._describe_error(error)}"
            )
        with cut_after(self.settings.read_timeout_s, client.sock) as cut:
            try:
                return self._hand_over(client, content)
            except (OSError, smtplib.SMTPException, UnicodeError) as error:
                return self._explain_failure(error, cut=cut.ended.is_set())
            finally:
                client.close()

    def _explain_failure(self, error: Exception, *, cut: bool) -> Answer:
        """Return what became of a message; `cut`: its time had passed."""
        # smtplib reports a read that took too long as a connection that was closed.
        if cut or isinstance(error.__context__ or error, TimeoutError):
            return Answer(delivered=False, error=f"no answer within {self.settings.read_timeout_s:g} s")
        final = isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= FINAL
        return Answer(delivered=False, error=self._describe_error(error), final=final)

    def _hand_over(self, client: _PinnedSmtp, content: bytes) -> Answer:
        if self.settings.security == "starttls":
            client.starttls(context=ssl.create_default_context())
        if self.settings.user is not None and self.password is not None:
            client.login(self.settings.user, self.password)
        refused = client.sendmail(self.settings.sender, self.settings.to, content)
        if refused:
            return Answer(delivered=True, error=f"{len(refused)} of {len(self.settings.to)} recipients were refused")
        return Answer(delivered=True)

    def _describe_error(self, error: Exception) -> str:
        if isinstance(error, smtplib.SMTPResponseException):
            reply = error.smtp_error
            text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
            return f"status {error.smtp_code}: {self._quote_safely(text)}"
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            return "; ".join(self._quote_safely(f"status {code}: {text!r}") for code, text in error.recipients.values())
        return self._quote_safely(str(error) or type(error).__name__)

    def _quote_safely(self, text: str) -> str:
        """Return a text of the server, unless it repeats the password or the form in which it was sent."""
        user, password = self.settings.user or "", self.password or ""
        plain = b64encode(f"\0{user}\0{password}".encode()).decode()
        secrets = (password, plain, b64encode(password.encode()).decode()) if password else ()
        return quote_text(one_line(text), secrets, "the password")


class _PinnedSmtp(smtplib.SMTP):
    """Connects to the address that was checked; the certificate has to be that of the name."""

    def __init__(self, address: str, *, implicit_tls: bool) -> None:
        super().__init__(local_hostname="localhost")
        self._address = address
        self._implicit_tls = implicit_tls
        self.watch: Callable[[socket.socket], None] = lambda _: None
        """Called with the connection before anything is sent or read."""

    def connect(self, host: str = "localhost", port: int = 0, source_address: object = None) -> tuple[int, bytes]:
        self._host = host  # what STARTTLS compares the certificate with
        self.sock = self._open_socket(host, port)
        self.file = None
        code, reply = self.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, reply)
        return code, reply

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = BoundedLines(self.sock.makefile("rb"), REPLY_BYTES_MAX, _explain_long_reply)
        if self.file is not None:
            self.file.left_bytes = REPLY_BYTES_MAX
        return super().getreply()

    def _open_socket(self, host: str, port: int) -> socket.socket:
        connected = socket.create_connection((self._address, port), self.timeout)
        self.watch(connected)
        if not self._implicit_tls:
            return connected
        return ssl.create_default_context().wrap_socket(connected, server_hostname=host)


def _explain_long_reply() -> OSError:
    return OSError(f"a reply of more than {REPLY_BYTES_MAX} bytes")


def _is_this_machine(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
