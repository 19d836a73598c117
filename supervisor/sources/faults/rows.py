"""The rows of a fault table and how they match a line; `table.py` reads them from TOML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from supervisor.core.findings import About, FaultClass, FaultSeverity
from supervisor.sources.faults.phrases import Phrases
from supervisor.sources.faults.prefilter import words_in

LINE_LIMIT = 2000
"""Characters of a line that are matched and kept."""
WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How findings of one class are grouped into events."""

    event: str
    """Findings with the same name, on one device and near in time, are one event."""
    rank: int = 0
    """The finding of the highest rank determines the event's class."""
    within_s: float = WITHIN_S
    """A further line belongs to the event for this long after its last line."""
    by_process: bool = False
    """Whether a line that names another process than the event begins an event of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The meaning of one number in a message."""

    what: str
    remedy: str
    severity: FaultSeverity | None = None
    """None: that of the row."""
    of_process: bool = False
    """See `Row.of_process`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message of one fault."""

    number: int
    """Its place in the table, from 1."""
    fault: FaultClass
    severity: FaultSeverity
    pattern: str
    expression: str
    """The pattern, preceded by that of its speaker."""
    speaker: str
    """The pattern of its speaker; several shapes share one, which is asked once for a line."""
    needles: tuple[str, ...]
    """Every line that the expression matches contains one of them; EDGE marks the end of a word."""
    device: About
    remedy: str
    source: str
    examples: tuple[str, ...]
    grouping: Grouping
    event: str
    """Name of the row's event group, by default that of its class."""
    rank: int
    what: str | None = None
    codes: Mapping[str, Code] = field(default_factory=dict)
    detail: bool = False
    """Whether it only adds to an event that another line has begun."""
    aftermath: frozenset[str] = frozenset()
    """Groups of the open events on the same GPU that it joins; `gpu`: an event of any group."""
    until_rank: int = 0
    """Where it joins an event of another group, further lines of its own group do so too, below this rank."""
    of_process: bool = False
    """Whether it ends only the process that it names, and the GPU remains usable."""
    user: bool = False
    """Whether programs as well as the kernel write it."""
    tentative: bool = False
    """Whether it is a shape: a later row about the same GPU names the event that it began."""
    unless: Phrases | None = None
    """A shape's: none of them may follow the speaker."""
    named: str | None = None
    """Finds the device in a matching line of which the expression has none, by a group of that name."""
    recovers: bool = False
    """Whether it reports that an event of lower rank has been recovered from, so that the event is not fatal."""
    asked: str | None = None
    """Of a row whose report was asked for: matches the consequences, which the same speaker reports next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The meaning of one line."""

    row: Row
    severity: FaultSeverity
    remedy: str
    what: str | None
    """Description of the fault, if the table or a code has one."""
    pci: str | None
    """PCI address in the line, in lower case and with its function."""
    device: str | None
    """Name of any other device in the line."""
    pid: int | None
    process: str | None
    of_process: bool

    @property
    def fault(self) -> FaultClass:
        """The class of the row."""
        return self.row.fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A parsed and checked table."""

    kind: str
    rows: tuple[Row, ...]
    words: Mapping[bytes, Mapping[str, Mapping[int, Row]]]
    """By a word that every text with a needle contains: the needles, and the rows of each by number."""
    pieces: tuple[tuple[str, Row], ...]
    """Needles without a complete word: each is searched for in every line, so there should be few."""
    troubles: Mapping[bytes, Mapping[str, Mapping[int, Row]]]
    """The same as `words`, of the shapes: a word of trouble stands in many harmless lines, and most shapes have it."""
    needles: Mapping[bytes, tuple[str, ...]]
    """The needles of both by their words."""
    vocabulary: frozenset[bytes]
    """These words."""
    speakers: str
    """Matches the beginning of every line that a shape matches."""

    def may_match(self, text: str) -> bool:
        """Return whether a row could match a line, which may have a prefix.

        For nearly all lines of a log this is the only cost: an intersection of the line's words with the table's.
        """
        for word in self.vocabulary.intersection(words_in(text)):
            if any(map(text.__contains__, self.needles[word])):
                return True
        return bool(self.pieces) and any(needle in text for needle, _ in self.pieces)

    def match(self, message: str, *, user: bool = False) -> Match | None:
        """Return the first row that matches a line; None if no row does.

        `message` has no time stamp or other prefix; `user` is true if a program wrote it and not the kernel.
        """
        message = message[:LINE_LIMIT]
        words = self.vocabulary.intersection(words_in(message))
        rows = _find_rows(words, self.words, message)
        if self.pieces:
            rows.update((row.number, row) for needle, row in self.pieces if needle in message)
        for number in sorted(rows):
            row = rows[number]
            if (row.user or not user) and (found := compiled(row.expression).search(message)):
                return _build_match(row, found)
        if self.troubles.keys().isdisjoint(words) or compiled(self.speakers).match(message) is None:
            return None
        return _match_shape(_find_rows(words, self.troubles, message), message, user=user)


def _find_rows(
    words: Iterable[bytes], known: Mapping[bytes, Mapping[str, Mapping[int, Row]]], text: str
) -> dict[int, Row]:
    """Return the rows by their numbers of which a needle is in a text that has these words."""
    rows: dict[int, Row] = {}
    for word in words:
        if word in known:
            for needle, having in known[word].items():
                if needle in text:
                    rows.update(having)
    return rows


def _match_shape(rows: Mapping[int, Row], message: str, *, user: bool) -> Match | None:
    """Return what the first of some shapes, in the table's order, makes of a line.

    What a shape refuses is asked before what it is about: it is the cheaper question, and most harmless lines have it.
    """
    begins: dict[str, re.Match[str] | None] = {}
    refused: dict[tuple[Phrases | None, int], bool] = {}

    def refuses(phrases: Phrases | None, end: int) -> bool:
        if (phrases, end) not in refused:
            refused[phrases, end] = phrases is not None and phrases.are_in(message[end:])
        return refused[phrases, end]

    for number in sorted(rows):
        row = rows[number]
        if row.speaker not in begins:
            begins[row.speaker] = compiled(row.speaker).match(message)
        begin = begins[row.speaker]
        if begin is None or (user and not row.user) or refuses(row.unless, begin.end()):
            continue
        found = compiled(row.expression).match(message)
        if found is not None and not refuses(row.unless, found.end()):
            return _build_match(row, found)
    return None


@cache
def compiled(expression: str) -> re.Pattern[str]:
    """Return the compiled expression; compiled at its first use, since most rows are not needed."""
    return re.compile(expression, re.ASCII)


def _build_match(row: Row, found: re.Match[str]) -> Match:
    groups = found.groupdict()
    code = row.codes.get(groups.get("code") or "")
    pid = groups.get("pid")
    return Match(
        row=row,
        severity=code.severity if code is not None and code.severity is not None else row.severity,
        remedy=code.remedy if code is not None else row.remedy,
        what=code.what if code is not None else row.what,
        pci=address(groups["pci"]) if groups.get("pci") else None,
        device=groups.get("device") or _find_named(row, found.string),
        pid=int(pid) or None if pid else None,  # 0: the driver did not know it
        process=groups.get("process") or None,
        of_process=row.of_process or (code is not None and code.of_process),
    )


def _find_named(row: Row, message: str) -> str | None:
    named = compiled(row.named).search(message) if row.named else None
    return named["device"] if named is not None else None


def address(text: str) -> str:
    """Return a complete PCI address in lower case.

    NVIDIA omits the function: 0000:9b:00 is 0000:9b:00.0. The IOMMU may omit the domain: 0a:00.0 is 0000:0a:00.0, and
    that of Intel wrote 0x0a:0x00.0 in Linux 5.13.
    """
    text = text.lower().replace("0x", "")
    text = text if "." in text else f"{text}.0"
    return text if text.count(":") > 1 else f"0000:{text}"
