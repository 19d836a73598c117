"""Takes the prefixes of dmesg, journalctl, syslog and /dev/kmsg off a line; it does not say what a line means."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime

_CALLER = r"(?: ?\[ *[TC]\d+\])?"
_HOST = r"(?:(?!kernel)[\w.:-]+ )?"
_WHO = rf" *{_HOST}(?P<who>[^\s:\[\]]+)(?:\[\d+\])?: ?"
# A bare `amdgpu 0000:0a:00.0: ` follows the ISO stamps of dmesg: only a host with its program is a sender there.
_SENDER = r"[\w.-]+ (?:(?P<who>[^\s:\[\]]+)\[\d+\]|kernel): ?"
_PREFIXES = tuple(
    re.compile(one)
    for one in (
        r"<\d{1,3}>",
        r"\d{1,4},\d+,(?P<us>\d+),[^;\n]{1,40};",
        r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *:\w+ *: *",
        # [ 12.3], [ 12.3] [ T140], [ 12.3][ C0], and of journalctl -o short-monotonic: [ 12.3] host kernel:
        rf"\[ *(?P<s>\d+\.\d+)\]{_CALLER} ?(?:(?:[\w.-]+ )?kernel: ?)?",
        rf"\[ *\+\d+\.\d+\]{_CALLER} ?",
        rf"\[(?P<ctime>\w{{3}} \w{{3}} +\d+ [\d:]{{8}} \d{{4}})\]{_CALLER} ?",
        r"\[\w{3} +\d+ \d\d:\d\d\] ?",
        rf"(?P<iso>\d{{4}}-\d\d-\d\d[T ][\d:]{{8}}(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)(?: UTC)?{_CALLER} (?:{_SENDER})?",
        rf"(?:\w{{3}} )?(?P<isot>\d{{4}}-\d\d-\d\d [\d:]{{8}}(?:\.\d+)?) [A-Z][A-Z0-9+-]{{1,5}} {_WHO}",
        rf"[^\W\d]{{2,5}}\.? +\d{{1,2}} (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?) (?:{_WHO})?",
        r"kernel: ?",
        r"\[kernel\] ",
        r"(?P<bare>\d\d:\d\d:\d\d(?:\.\d+)?) +",
        r"(?:> ?)+",
        r"message repeated \d+ times: \[ ?",
        r"\s+",
    )
)
_MSG = re.compile(r'\s*"(?:msg|MESSAGE)"\s*: ?(".*"),?\s*$')


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a pasted log."""

    message: str
    at_s: float | None
    """Its time, counted from anywhere; comparable within one log only."""
    user: bool
    """Whether the prefix names a program other than the kernel."""


def log_line(text: str) -> LogLine:
    """Return the line without what tools put before the kernel's message."""
    text = text.rstrip("\r\n")
    if text.lstrip().startswith(("{", '"')):
        text = _of_json(text)
    at_s: float | None = None
    user = False
    moved = True
    while moved:
        moved = False
        for prefix in _PREFIXES:
            found = prefix.match(text)
            if found is None or not found.end():
                continue
            text = text[found.end() :]
            said = found.groupdict()
            user = user or said.get("who") not in (None, "kernel")
            at_s = _time(said) if at_s is None else at_s
            moved = True
            break
    return LogLine(message=text, at_s=at_s, user=user)


def _of_json(text: str) -> str:
    """Return the message of a line of `dmesg -J` or `journalctl -o json`, any other line as it is."""
    found = _MSG.match(text)
    try:
        value = json.loads(found[1] if found else text)
    except ValueError:
        return text
    if isinstance(value, dict):
        value = value.get("MESSAGE", value.get("msg", text))
    return value if isinstance(value, str) else text


def _time(said: dict[str, str | None]) -> float | None:
    if us := said.get("us"):
        return int(us[:18]) / 1e6
    if seconds := said.get("s"):
        return float(seconds[:30])
    if clock := said.get("clock") or said.get("bare"):
        hours, minutes, rest = clock.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest)
    try:
        if ctime := said.get("ctime"):
            return datetime.strptime(ctime, "%a %b %d %H:%M:%S %Y").timestamp()  # noqa: DTZ007 - only differences count
        if iso := said.get("iso") or said.get("isot"):
            return datetime.strptime(iso[:19].replace("T", " "), "%Y-%m-%d %H:%M:%S").timestamp()  # noqa: DTZ007 - same
    except (ValueError, OverflowError):
        return None
    return None
