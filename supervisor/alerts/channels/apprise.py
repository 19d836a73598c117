"""Apprise: whatever the Apprise library reaches, in a child of the Python that has it (github.com/caronc/apprise)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import ClassVar

import msgspec

from supervisor.alerts.channel import Answer, KeptNotice
from supervisor.alerts.channels.command import run_with_input
from supervisor.alerts.confidential import repeats_secret
from supervisor.alerts.fit import fit
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.settings import AlertSettings, PathText, Text, TimeoutS, find_zone, require_text
from supervisor.json_bytes import encode_json

BODY_LIMIT = 1500
"""Short enough for most services, for Apprise cuts nothing by itself."""
TYPES = {Urgency.CALM: "success", Urgency.NORMAL: "warning", Urgency.HIGH: "warning", Urgency.URGENT: "failure"}
CHILD = """\
import json, logging, sys
logging.disable(logging.CRITICAL)
try:
    import apprise
except ImportError:
    sys.exit("the package apprise is not installed for " + sys.executable)
given = json.load(sys.stdin)
texts = {key: given[key] for key in ("title", "body")}
try:
    services = apprise.Apprise()
    known = all([services.add(url) for url in given["urls"]])
    sent = known and services.notify(notify_type=given["type"], body_format="text", **texts)
except Exception as error:
    sys.exit("Apprise raised " + type(error).__name__)
if not known:
    sys.exit("this version of Apprise does not support an address")
sys.exit(0 if sent else "Apprise could not deliver to every address")
"""
"""Runs under an interpreter that is not ours; Apprise logs addresses, its errors may name them: both are left out."""


class AppriseSettings(AlertSettings, frozen=True, kw_only=True):
    """Keys of `[alerts.NAME]` with kind = "apprise"."""

    digest: bool = True
    REQUIRED: ClassVar[tuple[str, ...]] = ("url",)

    url_file: PathText | None = None
    """Holds addresses as Apprise writes them, one a line; they hold secrets."""
    url_env: Text | None = None
    python: PathText | None = None
    """The interpreter that has the package; None: the daemon's own."""
    timeout_s: TimeoutS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Apprise:
    """Sends notices through Apprise."""

    settings_type: ClassVar[type[AlertSettings]] = AppriseSettings
    urls: tuple[str, ...] = field(repr=False)
    python: str
    timeout_s: float
    zone: tzinfo | None = None

    @classmethod
    def from_settings(cls, name: str, settings: AppriseSettings) -> Apprise:
        """Read the addresses; raise ReceiverError, which never holds one."""
        urls = tuple(require_text(name, "url", settings).split())
        python = settings.python or sys.executable
        return cls(urls=urls, python=python, timeout_s=settings.timeout_s, zone=find_zone(settings))

    @property
    def destination(self) -> str:
        """Apprise itself: the services are in its addresses."""
        return f"apprise, addresses: {len(self.urls)}"

    def render(self, notice: KeptNotice) -> bytes:
        """Return what the child reads but for the addresses; Apprise escapes plain text for each service."""
        message = compose(notice, self.zone)
        body = fit(message.body or message.title, BODY_LIMIT)
        return encode_json({"title": message.title, "body": body, "type": TYPES[message.urgency]})

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        """Run the child; the addresses go by its standard input, where no other user sees them."""
        given = encode_json({**msgspec.json.decode(content), "urls": list(self.urls)})
        answer = run_with_input((self.python, "-I", "-c", CHILD), given, self.timeout_s)
        if answer.error is not None and repeats_secret(answer.error, self.urls):
            return replace(answer, error="Apprise failed; its report is not shown because it contains an address")
        return answer
