"""The address of a receiver that is reached over HTTP; what is secret of it shows in no repr and in no log."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import unquote

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from supervisor.alerts.addresses import Resolve
from supervisor.alerts.settings import HttpSettings, ReceiverError, read_text

SECRET_CHARS_MIN = 4
"""A part of a path with a digit in it is taken for a secret from this length on; a word like `hooks` is none."""
WINDOW_CHARS = 10
"""So many letters and digits in the order of the address are no accident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go."""

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    """Path and query: with many receivers they are the password."""
    confidential: tuple[str, ...] = field(default=(), repr=False)
    """What else is sent and must not be repeated in an error: tokens, names of topics."""
    connect_timeout_s: float = 4.0
    read_timeout_s: float = 15.0
    allow_private: bool = False
    resolve: Resolve = field(default=socket.getaddrinfo, repr=False)

    @classmethod
    def from_settings(cls, name: str, settings: HttpSettings, default: str | None = None) -> Endpoint:
        """Read the address from where the settings say, else take the default.

        Raises ReceiverError, which never holds the address.
        """
        text = read_text(name, "url", settings) or default
        if text is None:
            raise ReceiverError(f"alerts.{name}: no address; set one of url, url_file, url_env")
        url = _parse_address(name, text)
        assert url.scheme
        assert url.host
        return cls(
            scheme=url.scheme,
            host=url.host.strip("[]"),
            port=url.port or (443 if url.scheme == "https" else 80),
            target=url.request_uri,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            allow_private=settings.allow_private,
        )

    def repeated_in(self, text: str) -> bool:
        """Whether a text gives away what is secret of the address, however it is quoted, escaped or cut."""
        shown = _reduce_to_alphanumerics(text)
        return any(_is_repeated(secret, shown) for secret in (self.target, *self.confidential))

    @property
    def authority(self) -> str:
        """Host and port as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == usual else f"{host}:{self.port}"


def _is_repeated(secret: str, shown: str) -> bool:
    parts = re.split(r"[^A-Za-z0-9]+", unquote(secret))
    if any(part.lower() in shown for part in parts if len(part) >= SECRET_CHARS_MIN and not part.isalpha()):
        return True
    plain = _reduce_to_alphanumerics(secret)
    windows = (plain[at : at + WINDOW_CHARS] for at in range(len(plain) - WINDOW_CHARS + 1))
    return any(window in shown for window in windows)


def _reduce_to_alphanumerics(text: str) -> str:
    """Return the letters and digits of a text alone, without the escapes of URLs, HTML and JSON."""
    for _ in range(2):
        text = unquote(unescape(text.replace("\\/", "/")))
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def _parse_address(name: str, text: str) -> Url:
    try:
        url = parse_url(text)
    except LocationParseError:
        raise ReceiverError(f"alerts.{name}: the address is no URL; write https://HOST/PATH") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ReceiverError(f"alerts.{name}: the address is no https:// or http:// URL")
    if url.auth is not None:
        raise ReceiverError(
            f"alerts.{name}: the address holds user:password@, which is not sent; use a secret or a path"
        )
    return url
