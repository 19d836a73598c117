"""Removes the prefixes of dmesg, journalctl, syslog and /dev/kmsg from a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from html import unescape
from typing import NamedTuple

from supervisor.core.foreign_values import read_json

_CALLER = r"(?: ?\[ *[TC]\d+\])?"
# Host names may be non-standard: umlauts, punctuation, (none), and some begin with `kernel`.
_HOST = r"(?:(?!kernel:)[^\s\[\]]+ )?"
# A line whose host and program were cut out begins with the driver's own words: `Sep 18 20:07:01 NVRM: Xid ...`.
_DRIVER = (
    r"(?: *(?:NVRM: |AMD-Vi: |\[drm|pcieport \S+: |(?:amdgpu|radeon|nvidia|nvme)(?:: | [0-9a-f]{4,8}:[0-9a-f]{2}:)"
    r"|nvme nvme\d+: |ata\d+(?:\.\d+)?: |sd [\d:]+: |mce: |EDAC |watchdog: |rcu: |INFO: |BUG: |Out of memory: "
    r"|Buffer I/O|(?:blk_update_request|print_req_error|end_request): |md(?:/raid\d*)?: ?|device-mapper: "
    r"|(?:EXT4-fs|BTRFS|XFS)(?:: | \(| \w+ )|nfs: server |CIFS: ))"
)
_WHO = rf"(?!{_DRIVER}) *{_HOST}(?:(?P<who>(?!kern:)[^\s:\[\]]+)(?:\[\d+\])?: ?|kernel (?=\[ *\d+\.\d))"
# A bare `amdgpu 0000:0a:00.0: ` follows the ISO stamps of dmesg: only a host with its program is a sender there.
_SENDER = r"[^\s\[\]]+ (?:(?P<who>(?!kernel)[^\s:\[\]]+)\[\d+\]|kernel(?:\[[\d-]*\])?): ?"
_GREP = (
    r"(?=[^\sA-Za-z]*[A-Za-z])[\w./-]{2,160}(?::(?:\d+:)?|-(?:\d+-)?)"
    r"(?=\w{3} +\d{1,2} \d\d:|\d{4}-\d\d-\d\d[T ]|\[ *\d+\.\d)"
)
_LEVEL = r"(?:emerg|alert|crit|err|error|warning|warn|notice|info|debug)"


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What a tool prints before a message. A line is asked for few of them: by its first character and a literal."""

    begins: re.Pattern[str]
    """Matches the first character of every line with this prefix."""
    needs: str
    """Is in every line with it."""
    pattern: re.Pattern[str]


_PREFIXES = tuple(
    _Prefix(re.compile(begins), needs, re.compile(pattern))
    for begins, needs, pattern in (
        ("<", "", r"<\d{1,3}>"),
        # talosctl dmesg: HOST: kern: warning: [2026-01-28T17:04:58.032559804Z]: message
        (
            r"[^\s\[\]]",
            "kern: ",
            rf"(?:[^\s\[\]]+: )?kern: +{_LEVEL}: +\[(?P<talos>\d{{4}}-\d\d-\d\dT[\d:]{{8}}(?:\.\d+)?Z)\]: ?",
        ),
        (
            r"[^\s\[\]]",
            "Z]:",
            rf"(?:[^\s\[\]]+: )?(?P<who>user|daemon): +{_LEVEL}: +\[\d{{4}}-\d\d-\d\dT[\d:]{{8}}(?:\.\d+)?Z\]: ?",
        ),
        # grep over several files: /var/log/syslog:Apr  9 12:59:18 host kernel: message; syslog.1-Apr  9 of its context
        ("/", "", _GREP),
        *((r"[\w.]", name, _GREP) for name in ("log", "messages", ".txt")),
        (r"\d", ";", r"(?:\d[\w.+-]{1,40},)?\d{1,4},\d+,(?P<us>\d+),[^;\n]{1,40};"),
        (
            "[kumdaslncf]",
            "",
            r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *:\w+ *: *",
        ),
        # [ 12.3], [ 12.3] [ T140], [ 12.3][ C0], and of journalctl -o short-monotonic: [ 12.3] host kernel:
        (
            r"\[",
            "",
            rf"\[ *(?P<s>\d+\.\d*)(?:@\d+)?(?: *< *\d+\.\d+>)? *\]{_CALLER}(?:: | ?c\d+ )? ?"
            r"(?:(?:[^\s\[\]]+ )?kernel: ?)?",
        ),
        # a virtual machine's console in the log of what runs it: [2026-09-10T01:28:40.86Z ERROR console] [ 60.9] ...
        (r"\[", "] [", r"\[\d{4}-\d\d-\d\dT[\d:]{8}(?:\.\d+)?Z +[A-Z]{4,5} [\w:.-]{1,60}\] (?=\[ *\d+\.\d+\])"),
        # dmesg -H, which names months and writes decimals as its user's language does
        (r"\[", "+", rf"\[ *\+\d+[.,]\d+\]{_CALLER} ?"),
        (r"\[", "", rf"\[(?P<ctime>\w{{3}} \w{{3}} +\d+ [\d:]{{8}} \d{{4}})\]{_CALLER} ?"),
        (r"\[", "", r"\[[^\W\d]{2,5}\.? *\d+ \d\d:\d\d\] ?"),
        # dmesg -T where its user's language has another order: [Mo, 11. Aug 2025, 23:29:08]
        (
            r"\[",
            "",
            r"\[[^\[\]:]{6,40}(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?(?: [^\[\]:]{2,12})?\] ?",
        ),
        # journalctl -o export and verbose
        ("M", "", r"MESSAGE="),
        # what a container's runtime, klog, logcat of Android and docker compose write before the line
        ("s", "", r"std(?:out|err) [FP] "),
        ("[IWEF]", "", r"[IWEF]\d{4} [\d:.]{15} +\d+ [\w./-]{1,60}:\d+\] "),
        (r"\d", "", r"\d\d-\d\d (?P<clock>\d\d:\d\d:\d\d\.\d{3}) +\d+ +\d+ [VDIWEF] [^:]{0,40}: "),
        (r"[\w.-]", "| ", r"[\w.-]{1,40} +\| "),
        # a prompt that the console's line followed; marks of a diff and of markdown, grep's number of the line
        (".", " [", r"(?:\[[^\[\]]{1,40}\])?[^\n\[]{0,60}(?:[#$>]|login:) (?=\[ *\d+\.\d+\])"),
        (
            r"[-+_*>|`~#;\"' \d]",
            "",
            r"(?:[-+_*>|`~#;\"' ]{1,6}|\d{1,7}[:|)\t-] ?)"
            r"(?=\[ *\+?\d+\.\d+\]|\[?\w{3} (?:\w{3} )? ?\d+ \d\d:|\[?\d{4}-\d\d-\d\d[T ])",
        ),
        # journalctl -o short-unix
        (r"\d", "", rf"(?P<s>\d{{10}}\.\d{{6}}) (?:{_WHO})?"),
        (
            r"\d",
            "",
            rf"(?:\d{{4}}/\d\d/\d\d|\d\d-\d\d|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}),?"
            rf" (?P<clock>\d{{1,2}}:\d\d:\d\d(?:\.\d+)?)(?::\d+)?(?: [AP]M)?[ \t](?:{_SENDER})?",
        ),
        # a syslog that writes facility and severity after the host
        (r"[\w.(-]", " kernel: ", r"[\w.()-]+ (?=(?:(?:kern|user|daemon)[.:][a-z]{3,7} )?kernel: )"),
        # a program that wrote to the kernel's log; IA-64 begins an oops, which ends with its count, in the same way
        ("[se]", "]: ", r"(?P<who>systemd(?:-\w+)?|earlyoom)\[\d+\]: (?!.{0,160}\[\d{1,3}\]$)"),
        # a stamp that was cut out, or its beginning
        (r"\[", "] ", r"\[[ .xX\u2026]+\] "),
        (r"[\d.]", "] ", r"(?:\d{0,7}\.)?\d{1,6}\] "),
        (r"\d", ".", r"\d{1,7}\.\d{6} "),
        # a serial console's name before the stamp
        (
            r"[\[\w.-]",
            " [",
            rf"(?:[\w.-]{{1,40}}:?|\[[\w.-]{{1,40}}\]) (?=\[ *\d+\.\d+\]{_CALLER} \S|\[\w{{3}} \w{{3}} +\d)",
        ),
        (
            r"\d",
            "",
            rf"(?P<iso>\d{{4}}-\d\d-\d\d[T ][\d:]{{8}}(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
            rf"(?: [+-]\d{{4}})?(?: UTC)?{_CALLER}:?[ \t](?:{_SENDER})?",
        ),
        (
            r"\w",
            "-",
            rf"(?:\w{{3}} )?(?P<isot>\d{{4}}-\d\d-\d\d [\d:]{{8}}(?:\.\d+)?)"
            rf" (?:[A-Z][A-Z0-9+-]{{1,5}}|[+-]\d\d(?:\d\d)?) {_WHO}",
        ),
        (
            r"\w",
            ":",
            rf"(?:[^\W\d]{{2,7}}\.?|\d{{1,2}}[月월]) *\d{{1,2}}[日일]? "
            rf"(?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?):? (?:{_WHO})?",
        ),
        # SONiC: 2025 Jul  2 06:56:57.749624 host ERR kernel: message; others write the year after the day, and no level
        (
            r"\w",
            ":",
            rf"(?:\d{{4}} )?[^\W\d]{{2,5}} +\d{{1,2}}(?: \d{{4}})? (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?) "
            rf"(?:[^\s\[\]]+ [A-Z]+ )?{_WHO}",
        ),
        # logread of OpenWrt: Sat Jan  2 08:14:38 2021 kern.err kernel: message
        (r"\w", ":", rf"\w{{3}} \w{{3}} +\d{{1,2}} (?P<clock>\d\d:\d\d:\d\d) \d{{4}} \w+\.\w+ {_WHO}"),
        # RFC 5424, after its priority: 1 2025-07-02T06:56:57Z host kernel - - - message
        (
            "1",
            "",
            r"1 (?P<iso>\d{4}-\d\d-\d\dT[\d:]{8})(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) "
            r"\S+ (?P<who>\S+) \S+ \S+ (?:-|\[[^\]]*\]) ?",
        ),
        # a viewer of logs that puts the day first: 04 Aug, 14:03:32 host kernel: message
        (r"\d", "", rf"\d{{1,2}} [^\W\d]{{3,5}}\.?,? (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?) (?:{_WHO})?"),
        ("k", "", r"kern[.:][a-z]{3,7} (?=kernel: )"),
        ("k", "", r"kernel(?:(?:\[[\d-]*\])?: ?|\t+)"),
        # what container runtimes write as keys and values
        ("[a-z]", "msg=", r'(?:\w+=(?:"[^"]*"|[^\s"]+) +){0,6}msg="?'),
        (r"\[", "", r"\[kernel\] "),
        # a syslog that writes facility and severity after the stamp: [kern.warning]
        (r"\[", "", r"\[(?:kern|(?P<who>user|daemon|syslog|auth|local\d))\.[a-z]{3,7}\] "),
        (r"[\[\d]", "", rf"\[?(?P<bare>\d\d:\d\d:\d\d(?:\.\d+)?)\]? +(?:{_SENDER})?"),
        (">", "", r"(?:> ?)+"),
        # markdown: code, a list, a table; a viewer that numbers lines
        (r"[`\-•|]", "", r"`{1,3}|[-•] +|\| +"),
        (r"\d", "│", r"\d+ +│ +"),
        # viewers that show only the minute or the day's name of a month, and what Android and MPI write
        (r"\d", "\t", r"\d\d:\d\d\t"),
        (r"[A-Z]", " @ ", rf"\w{{3}} \d{{1,2}}, \d{{4}} @ (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?) (?:{_WHO})?"),
        (r"\[", "]", r"\[\d+: *[^\[\]]{1,24}: *\d+\] |\[< *\d+\.\d+>\] |\[\d+,\d+\]<std(?:out|err)>:"),
        (r"\(", ")[", r"\(\d+\)\[\d+:[^\[\]]{1,32}\] ?"),
        ("m", "", r"message repeated \d+ times: \[ ?"),
        (r"\s", "", r"\s+"),
    )
)
_KERNEL = (None, "kernel", "vmunix", "klogd")
"""What syslogs call the kernel."""
_MSG = re.compile(r'\s*"(?:msg|MESSAGE|message|log)"\s*: ?(".*"),?\s*$')


@lru_cache(maxsize=256)
def _list_prefixes(first: str) -> tuple[tuple[str, Callable[[str], re.Match[str] | None], bool], ...]:
    """Return of the prefixes with a first character: what each needs, how it is matched, whether it names a sender."""
    having = (prefix for prefix in _PREFIXES if prefix.begins.match(first))
    return tuple((each.needs, each.pattern.match, "who" in each.pattern.groupindex) for each in having)


class LogLine(NamedTuple):
    """One line of a pasted log."""

    message: str
    user: bool
    """Whether the prefix names a program other than the kernel."""
    prefixes: tuple[re.Match[str], ...] = ()
    """What was removed that may have a time."""

    @property
    def at_s(self) -> float | None:
        """Its time in seconds from an arbitrary origin; comparable within one log only."""
        times = (_parse_time(prefix.groupdict()) for prefix in self.prefixes)
        return next((at_s for at_s in times if at_s is not None), None)


def log_line(text: str) -> LogLine:
    """Return the line without the prefixes that tools print before the kernel's message."""
    text = text.rstrip("\r\n")
    if "&" in text:
        text = unescape(text)  # copied from a page: &lt;6&gt;, &quot;
    if text.lstrip().startswith(("{", '"')):
        text = _extract_json_message(text)
    prefixes: tuple[re.Match[str], ...] = ()
    user = False
    moved = True
    while moved and text:
        moved = False
        for needs, match, names_sender in _list_prefixes(text[0]):
            if needs not in text or (found := match(text)) is None or not found.end():
                continue
            text = text[found.end() :]
            if found.re.groups:
                user = user or (names_sender and found["who"] not in _KERNEL)
                prefixes = (*prefixes, found)
            moved = True
            break
    return LogLine(text, user, prefixes)


def _extract_json_message(text: str) -> str:
    """Return the message of a line of `dmesg -J` or `journalctl -o json`; any other line is returned unchanged."""
    found = _MSG.match(text)
    try:
        value = read_json(found[1] if found else text)
    except ValueError:
        return text
    if isinstance(value, dict):
        value = next((value[key] for key in ("MESSAGE", "msg", "message", "log") if key in value), text)
    return value.rstrip("\r\n") if isinstance(value, str) else text


def _parse_time(groups: dict[str, str | None]) -> float | None:
    if us := groups.get("us"):
        return int(us[:18]) / 1e6
    if seconds := groups.get("s"):
        return float(seconds[:30])
    if clock := groups.get("clock") or groups.get("bare"):
        hours, minutes, rest = clock.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest.replace(",", "."))
    try:
        if ctime := groups.get("ctime"):
            return _parse_stamp(ctime, "%a %b %d %H:%M:%S %Y")
        if iso := groups.get("iso") or groups.get("isot") or groups.get("talos"):
            return _parse_stamp(iso[:19].replace("T", " "), "%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return None
    return None


@lru_cache(maxsize=64)
def _parse_stamp(stamp: str, form: str) -> float:
    """Return the time of a stamp, which the lines of one second share."""
    # Only differences count. In no zone of this machine: a change of its clock would lie between lines of another's.
    return datetime.strptime(stamp, form).replace(tzinfo=timezone.utc).timestamp()
