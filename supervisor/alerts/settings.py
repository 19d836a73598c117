"""Settings that all alert channels share (`[alerts.NAME]`), and how the texts that they refer to are read.

What is secret is named by `..._file` or `..._env` and never written into the configuration itself; a channel declares
its own keys in a class derived from `AlertSettings` in its own file.
"""

from __future__ import annotations

import os
from datetime import timezone, tzinfo
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Meta, Struct, field

Text = Annotated[str, Meta(min_length=1)]
PathText = Annotated[str, Meta(min_length=1, extra={"path": True})]
TimeoutS = Annotated[float, Meta(gt=0, le=300)]
TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
HOURS = r"^([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]$"
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
LARGEST_FILE_BYTES = 16_384


class ReceiverError(ValueError):
    """A receiver whose settings cannot be used, and what to do about it."""


class AlertSettings(Struct, frozen=True, kw_only=True):
    """One receiver of alerts, whatever its channel."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """Texts that have to be given, each by exactly one of NAME, NAME_file and NAME_env where the class has them."""

    kind: Text = "webhook"
    min_severity: Literal["info", "warning", "critical"] = "warning"
    jobs: list[Text] = field(default_factory=list)
    """Patterns of the trainings that it is sent notices about; empty: all."""
    types: list[Text] = field(default_factory=list)
    """Patterns of the types of notices that it is sent; empty: all."""
    digest: bool = False
    """Whether notices are gathered, so that many become a few messages; channels for people begin with true."""
    quiet_hours: Annotated[str, Meta(pattern=HOURS, extra={"allowed": 'two times, "22:30-07:00"'})] | None = None
    """In them only what is critical is sent; the rest waits for their end."""
    quiet_days: list[Day] = field(default_factory=list)
    """Days on which quiet hours begin; empty: all."""
    remind: bool = True
    """Whether it is sent again that a training stands given up, until that is acknowledged or the training started."""
    report_at: Annotated[str, Meta(pattern=TIME, extra={"allowed": 'a time of day, "07:30"'})] | None = None
    """When it is sent a report of the past day, also when all is well; None: never."""
    time_zone: Text | None = None
    """Name of the zone of quiet hours and of times in messages, `Europe/Berlin`; None: that of this machine.

    UTC counts in place of one that is not known on this machine.
    """


class HttpSettings(AlertSettings, frozen=True, kw_only=True):
    """A receiver that is reached over HTTP; exactly one of `url`, `url_file`, `url_env`."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("url",)

    url: Text | None = None
    url_file: PathText | None = None
    url_env: Text | None = None
    connect_timeout_s: TimeoutS = 4.0
    """How long a connection may take to come up."""
    read_timeout_s: TimeoutS = 15.0
    """How long sending and the answer may take together."""
    allow_private: bool = False
    """Whether the address may lie in a private network."""


def find_zone(settings: AlertSettings) -> tzinfo | None:
    """Return the time zone of a receiver, None for that of this machine; UTC for one that is not known here."""
    return None if settings.time_zone is None else _read_zone(settings.time_zone) or timezone.utc


def explain_zone(name: str, settings: AlertSettings) -> str | None:
    """Return what a time zone that is not known here means and what to do, behind the last `; `; None for others."""
    if settings.time_zone is None or _read_zone(settings.time_zone) is not None:
        return None
    return (
        f"alerts.{name}.time_zone: {settings.time_zone!r} is not a time zone of this machine, so its quiet hours, "
        "report and times are in UTC; zones have names such as Europe/Berlin, and the package tzdata holds them"
    )


def _read_zone(name: str) -> tzinfo | None:
    """Return a zone, None for one that is not known here; UTC is known without any files of zones."""
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def read_text(name: str, what: str, settings: AlertSettings) -> str | None:
    """Return a text of receiver `name` from the one place that its settings name, None where none does.

    `what` is `url`, `secret` ...: the keys are `url`, `url_file` and `url_env`. Raises ReceiverError, which never holds
    the text.
    """
    plain, file, variable = (getattr(settings, f"{what}{suffix}", None) for suffix in ("", "_file", "_env"))
    if plain is not None:
        return str(plain).strip()
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                return opened.read(LARGEST_FILE_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "no text"
            raise ReceiverError(f"alerts.{name}.{what}_file: {file} cannot be read: {why}") from None
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            raise ReceiverError(f"alerts.{name}.{what}_env: the variable {variable} is not set")
        return value.strip()
    return None


def require_text(name: str, what: str, settings: AlertSettings) -> str:
    """Return a text that a receiver cannot do without; raise ReceiverError where it is missing or empty."""
    text = read_text(name, what, settings)
    if not text:
        keys = [key for key in (what, f"{what}_file", f"{what}_env") if hasattr(settings, key)]
        raise ReceiverError(f"alerts.{name}: {what} is missing; set one of {', '.join(keys)}")
    return text
