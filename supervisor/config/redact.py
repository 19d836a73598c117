"""Settings as plain values that may be kept as evidence: what may be a secret is replaced, nothing else is changed."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from supervisor.config.settings import Settings

HIDDEN = "***"
_WORD = re.compile(r"(?i)(token|secret|passw|api[_-]?key|credential)")


def redacted(settings: Settings) -> dict[str, Any]:
    """Return the settings without values of variables, tokens in addresses and passwords."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    database = plain["supervisor"]["database"]
    plain["supervisor"]["database"] = database and re.sub(r"(://[^:/@]*):[^@]*@", rf"\1:{HIDDEN}@", database)
    for job in plain["jobs"].values():
        job["env"] = dict.fromkeys(job["env"], HIDDEN)
        job["command"] = hide_words(job["command"])
        profile = job["profiles"]["cpu"]
        profile["env"] = dict.fromkeys(profile["env"], HIDDEN)
        for table, key in ((job["resume"], "command"), (profile, "command"), (profile, "resume_command")):
            if table[key] is not None:
                table[key] = hide_words(table[key])
    for alert in plain["alerts"].values():
        if alert.get("url") is not None:
            alert["url"] = _host_alone(alert["url"])
    return plain


def hide_words(command: list[str]) -> list[str]:
    """Return the command without the values of options that name a secret (`--api-key K`, `token=K`)."""
    shown: list[str] = []
    hide_next = False
    for word in command:
        name, sign, _ = word.partition("=")
        secret = _WORD.search(name) is not None
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if secret and sign else word)
        hide_next = secret and not sign and word.startswith("-")
    return shown


def _host_alone(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}/{HIDDEN}"
    except ValueError:
        return HIDDEN
