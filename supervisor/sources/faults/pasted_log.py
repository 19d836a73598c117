"""Finds the faults in the lines of a pasted log, one finding per event.

Lines may have the prefixes of dmesg, journalctl, syslog or /dev/kmsg, or none. A line without a time is taken to follow
the previous one immediately.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from supervisor.sources.faults.events import OPEN_EVENTS, Event, Events, Finding
from supervisor.sources.faults.log_order import has_newest_first, oldest_first, split_messages
from supervisor.sources.faults.optical_drives import without_optical_drives
from supervisor.sources.faults.table import Grammar, Match
from supervisor.sources.kernel.log_lines import LogLine, log_line

NEIGHBOURS = 40
"""A line without a PCI address is assigned to the GPU that the driver names within this many lines, before or after,"""
NEIGHBOUR_S = 1.5
"""and within this many seconds (some prefixes have a resolution of one second), or else to the only one it names."""
WRAPPED_LINES = 1000
"""A log with more lines comes from a file and not from a mail; no time is spent on what may be wrapped in it."""
WRAPPED_PIECES = 2
MAIL_COLUMNS = 70
"""Mail programs wrap lines at 72 to 80 columns, and quote them afterwards."""
PREFIX_LIMIT = 160
_BEGINS = re.compile(
    r"(?<=[\s\])>|`':])(?:"
    r"(?:amdgpu|radeon|nvidia|nvme|pcieport|megaraid_sas|hpsa|smartpqi|aacraid) [0-9a-f]{4}:|kfd kfd: |\[drm[\]:]"
    r"|NVRM: |AMD-Vi: |DMAR: |(?:nvme )?nvme\d|ata\d+(?:\.\d+)?: |sd [\d:]+: |mpt\dsas|md: |md/raid|device-mapper: "
    r"|nfs: server |CIFS|ceph: |libceph: |(?:EXT4|F2FS)-fs |BTRFS|XFS|JBD2|blk_update_request: |print_req_error: "
    r"|end_request: |I/O error|Buffer I/O|Aborting journal |mce: |EDAC |(?:\{\d+\})?\[Hardware Error\]"
    r"|critical (?:medium|target|nexus|space) |qla2xxx \[|lpfc [0-9a-f]{4}:|connection\d+:\d+: |session\d+: "
    r"|Memory failure: |CPU\d+: |INFO: |BUG: |watchdog: |NMI watchdog: |rcu: |Kernel panic |Out of memory"
    r"|Memory cgroup |oom-kill:|Killed process |WARNING: Pool )"
)
"""Words that drivers' messages begin with, behind what a person or a tool put in the place of a stamp."""
_AMD, _NVIDIA = ("amdgpu ", "radeon "), ("NVRM: ", "nvidia ")
_DRIVER_CARD = re.compile(
    r"(?:^|[\s:;\]])(?:amdgpu|radeon|nvidia|NVRM: GPU|NVRM: The NVIDIA GPU) "
    r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?:: |$)"
)


def findings_in(lines: Iterable[str], grammar: Grammar) -> Iterator[Finding]:
    """Yield the findings of one table in the lines of a log, in the order of the events' first lines."""
    text = list(lines)
    is_short = grammar.kind == "kernel" and len(text) <= WRAPPED_LINES
    numbers: Sequence[int] = range(1, len(text) + 1)
    if is_short:
        numbers, text = split_messages(text)
    if grammar.kind == "kernel" and has_newest_first(text):
        numbers, text = oldest_first(numbers, text)
    events = Events(grammar.kind)
    found: list[Event] = []
    near = _Neighbours(text)
    at_s = 0.0
    for place, (number, raw) in enumerate(zip(numbers, text, strict=True)):
        if not (is_short or grammar.may_match(raw)):
            continue
        line, match = _read_line(text, place, grammar, is_short=is_short)
        if match is None:
            continue
        at_s = _find_time(text, place, line, otherwise=at_s)
        of_gpu = match.row.device == "gpu" and match.pci is None
        card = (card_of(line.message) or near.card(place, line)) if of_gpu else None
        event = events.add(match, number=number, line=line.message, at_s=at_s, card=card)
        if event is not None and not any(event is item for item in found[-OPEN_EVENTS:]):
            found.append(event)
    return (event.finding for event in without_optical_drives(found, text))


def _read_line(text: Sequence[str], place: int, grammar: Grammar, *, is_short: bool) -> tuple[LogLine, Match | None]:
    """Return a line without its prefix and the row that it matches; in a short log it may be damaged."""
    line = log_line(text[place])
    match = grammar.match(line.message, user=line.user and grammar.kind == "kernel")
    if is_short and (match is None or match.row.tentative):
        line, match = _read_wrapped(text, place, grammar) or (line, match)
    if is_short and match is None:
        line, match = _read_behind_prefix(line, grammar) or (line, match)
    return line, match


def _read_wrapped(text: Sequence[str], place: int, grammar: Grammar) -> tuple[LogLine, Match | None] | None:
    """Return a message that a mail program wrapped, and the row that it matches; None if it is not wrapped.

    Its first piece has a stamp, and what follows has none and is no message of its own. What follows may be a person's
    words, which complete no row. A shape, which reads any words, is asked where a piece was too long for the next word.
    """
    rest = [log_line(piece) for piece in text[place + 1 : place + 1 + WRAPPED_PIECES]]
    if not rest or not rest[0].message or rest[0].at_s is not None:
        return None
    first = log_line(text[place])
    own = grammar.match(rest[0].message)
    if first.at_s is None or (own is not None and not own.row.tentative):
        return None
    for between in (" ", ""):  # a terminal breaks a line within a word
        message = first.message
        for piece in rest:
            if piece.at_s is not None:
                break
            message = f"{message.rstrip()}{between}{piece.message.lstrip()}"
            match = grammar.match(message, user=first.user) if grammar.may_match(message) else None
            if match is not None and not match.row.tentative:
                return first._replace(message=message), match
    message = first.message
    for before, piece in zip(text[place:], rest, strict=False):
        if piece.at_s is not None or not piece.message or not _is_full(before, piece.message):
            break
        message = f"{message.rstrip()} {piece.message.lstrip()}"
    if message == first.message:
        return None
    return first._replace(message=message), grammar.match(message, user=first.user)


def _is_full(line: str, following: str) -> bool:
    """Whether a line had no room for the next word in a mail."""
    return len(line.rstrip()) + 1 + len(following.split(maxsplit=1)[0]) > MAIL_COLUMNS


def _read_behind_prefix(line: LogLine, grammar: Grammar) -> tuple[LogLine, Match] | None:
    """Return the kernel's message behind a prefix of no known form, and its row; it begins with a driver's words."""
    if line.user:
        return None
    for begin in _BEGINS.finditer(line.message, 0, PREFIX_LIMIT):
        message = line.message[begin.start() :]
        if (match := grammar.match(message)) is not None:
            return line._replace(message=message), match
    return None


def card_of(message: str) -> str | None:
    """Return the PCI address of the GPU whose driver wrote the line, in lower case; None if the line has none."""
    found = _DRIVER_CARD.search(message)
    return found["pci"].lower() if found else None


def _find_time(text: Sequence[str], place: int, line: LogLine, *, otherwise: float) -> float:
    """Return the time of a line in seconds; where it has none, that of the nearest line before it that has one."""
    if line.at_s is not None:
        return line.at_s
    before = (log_line(earlier).at_s for earlier in reversed(text[max(0, place - NEIGHBOURS) : place]))
    return next((at_s for at_s in before if at_s is not None), otherwise)


class _Neighbours:
    """The lines in which a driver names its GPU; searched for at the first line that needs them."""

    def __init__(self, text: Sequence[str]) -> None:
        self._text = text
        self._places: dict[tuple[str, str], list[int]] = {}
        self._only: dict[tuple[str, str], str | None] = {}

    def card(self, place: int, line: LogLine) -> str | None:
        """Return the GPU that the line's driver names nearest to it, or the only one that it names at all."""
        drivers = _NVIDIA if line.message.startswith(("NVRM", "nvidia")) else _AMD
        if drivers not in self._places:
            first, second = drivers
            self._places[drivers] = [at for at, text in enumerate(self._text) if first in text or second in text]
        places = self._places[drivers]
        middle = bisect_left(places, place)
        around = places[max(0, middle - NEIGHBOURS) : middle + NEIGHBOURS]
        for at in sorted(around, key=lambda at: abs(at - place)):
            card = card_of(self._text[at]) if abs(at - place) <= NEIGHBOURS else None
            if card is not None:
                if _are_close_in_time(line, log_line(self._text[at])):
                    return card
                break
        if drivers not in self._only:
            self._only[drivers] = self._find_only_card(places)
        return self._only[drivers]

    def _find_only_card(self, places: Sequence[int]) -> str | None:
        """Return the GPU that a driver names in the whole log; None if it names none or several."""
        cards: set[str] = set()
        for at in places:
            if (card := card_of(self._text[at])) is not None:
                cards.add(card)
            if len(cards) > 1:
                return None
        return next(iter(cards), None)


def _are_close_in_time(line: LogLine, other: LogLine) -> bool:
    return line.at_s is None or other.at_s is None or abs(line.at_s - other.at_s) <= NEIGHBOUR_S
