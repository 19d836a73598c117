"""The address of a receiver that is reached over HTTP; what is secret of it shows in no repr and in no log."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from supervisor.alerts.addresses import Resolve
from supervisor.alerts.settings import HttpSettings, ReceiverError, read_text


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

    @property
    def authority(self) -> str:
        """Host and port as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == usual else f"{host}:{self.port}"


def _parse_address(name: str, text: str) -> Url:
    try:
        url = parse_url(text)
    except LocationParseError:
        raise ReceiverError(f"alerts.{name}: the address is not a URL; write https://HOST/PATH") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ReceiverError(f"alerts.{name}: the address does not begin with https:// or http://")
    if url.auth is not None:
        raise ReceiverError(
            f"alerts.{name}: the address contains user:password@, which is not sent; use a secret or a path"
        )
    return url
