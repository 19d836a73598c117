"""A receiver of alerts as the configuration names it; its address and secret show in no repr and in no log."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from supervisor.alerts.signing import Secret, read_secrets
from supervisor.core.flags import Severity

LARGEST_FILE_BYTES = 16_384
SECRET_CHARS_MIN = 4
"""A part of a path with a digit in it is taken for a secret from this length on; a word like `hooks` is none."""
WINDOW_CHARS = 10
"""So many letters and digits in the order of the address are no accident."""


class SinkSettings(Protocol):
    """What the configuration says of a receiver (`[alerts.NAME]`)."""

    @property
    def url(self) -> str | None:
        """The address itself."""
        ...

    @property
    def url_file(self) -> str | None:
        """A file that holds the address."""
        ...

    @property
    def url_env(self) -> str | None:
        """A variable that holds the address."""
        ...

    @property
    def secret_file(self) -> str | None:
        """A file that holds the secrets."""
        ...

    @property
    def secret_env(self) -> str | None:
        """A variable that holds the secrets."""
        ...

    @property
    def min_severity(self) -> str:
        """`info`, `warning` or `critical`."""
        ...

    @property
    def connect_timeout_s(self) -> float:
        """How long a connection may take to come up."""
        ...

    @property
    def read_timeout_s(self) -> float:
        """How long sending and the answer may take together."""
        ...

    @property
    def allow_private(self) -> bool:
        """Whether the address may lie in a private network."""
        ...


class SinkError(ValueError):
    """A receiver whose settings cannot be used, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where alerts of one name go."""

    name: str
    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    """Path and query: with many receivers they are the password."""
    secrets: tuple[Secret, ...] = ()
    floor: Severity = Severity.WARNING
    connect_timeout_s: float = 4.0
    read_timeout_s: float = 15.0
    allow_private: bool = False

    @classmethod
    def from_settings(cls, name: str, settings: SinkSettings) -> Sink:
        """Read address and secret from where the settings say; raise SinkError, which never holds either."""
        text = _read_setting(name, "url", settings.url, settings.url_file, settings.url_env)
        if text is None:
            raise SinkError(f"alerts.{name}: no address; set one of url, url_file, url_env")
        secret = _read_setting(name, "secret", None, settings.secret_file, settings.secret_env)
        try:
            secrets = () if secret is None else read_secrets(secret)
        except ValueError as error:
            raise SinkError(f"alerts.{name}: {error}") from None
        url = _parse_address(name, text)
        assert url.scheme
        assert url.host
        return cls(
            name=name,
            scheme=url.scheme,
            host=url.host.strip("[]"),
            port=url.port or (443 if url.scheme == "https" else 80),
            target=url.request_uri,
            secrets=secrets,
            floor=Severity[settings.min_severity.upper()],
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            allow_private=settings.allow_private,
        )

    def repeated_in(self, text: str) -> bool:
        """Whether a text gives away what is secret of the address, however it is quoted, escaped or cut."""
        told, parts = _reduce_to_alphanumerics(text), re.split(r"[^A-Za-z0-9]+", unquote(self.target))
        if any(part.lower() in told for part in parts if len(part) >= SECRET_CHARS_MIN and not part.isalpha()):
            return True
        whole = _reduce_to_alphanumerics(self.target)
        windows = (whole[at : at + WINDOW_CHARS] for at in range(len(whole) - WINDOW_CHARS + 1))
        return any(window in told for window in windows)

    @property
    def authority(self) -> str:
        """Host and port as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == usual else f"{host}:{self.port}"


def _reduce_to_alphanumerics(text: str) -> str:
    """Return the letters and digits of a text alone, without the escapes of URLs, HTML and JSON."""
    for _ in range(2):
        text = unquote(unescape(text.replace("\\/", "/")))
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def _read_setting(name: str, what: str, plain: str | None, file: str | None, variable: str | None) -> str | None:
    """Return a setting from the one place that is named, None where none is."""
    if plain is not None:
        return plain.strip()
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                return opened.read(LARGEST_FILE_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "no text"
            raise SinkError(f"alerts.{name}.{what}_file: {file} cannot be read: {why}") from None
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            raise SinkError(f"alerts.{name}.{what}_env: the variable {variable} is not set")
        return value.strip()
    return None


def _parse_address(name: str, text: str) -> Url:
    try:
        url = parse_url(text)
    except LocationParseError:
        raise SinkError(f"alerts.{name}: the address is no URL; write https://HOST/PATH") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise SinkError(f"alerts.{name}: the address is no https:// or http:// URL")
    if url.auth is not None:
        raise SinkError(f"alerts.{name}: the address holds user:password@, which is not sent; use a secret or a path")
    return url
