"""The rows of a fault table and how they match a line; `table.py` reads them from TOML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from supervisor.core.findings import About, FaultClass, FaultSeverity
from supervisor.sources.faults.prefilter import words_in

LINE_LIMIT = 2000
"""Characters of a line that are looked at and kept."""
WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How findings of one class become events."""

    event: str
    """Findings of the same word, on one device and near in time, are one event."""
    rank: int = 0
    """The class of the highest rank names the event."""
    within_s: float = WITHIN_S
    """So long after its last line a further line still belongs to the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What one number in a message means."""

    what: str
    remedy: str
    severity: FaultSeverity | None = None
    """None: the row's."""
    of_process: bool = False
    """As a row's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One wording of one fault."""

    number: int
    """Its place in the table, from 1."""
    fault: FaultClass
    severity: FaultSeverity
    pattern: str
    expression: str
    """The pattern, after its speaker."""
    needles: tuple[str, ...]
    """One of them is in every line that the expression fits; with EDGE where a word must end."""
    device: About
    remedy: str
    source: str
    examples: tuple[str, ...]
    grouping: Grouping
    event: str
    """The row's own, or that of its class."""
    rank: int
    what: str | None = None
    codes: Mapping[str, Code] = field(default_factory=dict)
    detail: bool = False
    """Whether it only adds to an event that another line began."""
    aftermath: str | None = None
    """The group of an event that it belongs to, if such a one is open on the card; `card`: an event of any group."""
    of_process: bool = False
    """Whether it takes only the process that it names, and leaves the card well."""
    user: bool = False
    """Whether programs say it too, beside the kernel."""
    mends: bool = False
    """Whether an event that was less than this before is over with it, and so is not fatal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What one line means."""

    row: Row
    severity: FaultSeverity
    remedy: str
    what: str | None
    """The fault in words, where the table or a code has any."""
    pci: str | None
    """PCI address in the line itself, lower case with its function."""
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
    """A table, checked and ready."""

    kind: str
    rows: tuple[Row, ...]
    words: Mapping[str, tuple[tuple[str, Row], ...]]
    """Needles with their rows, by a word that is in every text with the needle."""
    vocabulary: frozenset[str]
    """The words alone."""
    pieces: tuple[tuple[str, Row], ...]
    """Needles that surely hold no whole word: each is looked for in every line, so there should be few."""

    def candidates(self, text: str) -> list[Row]:
        """Return the rows that could fit, in their order; prefixes do no harm.

        This is what nearly all lines of a log cost: the words of a line against the words of the table.
        """
        words = words_in(text)
        if self.vocabulary.isdisjoint(words) and not self.pieces:
            return []
        pairs = [*self.pieces, *(pair for word in self.vocabulary.intersection(words) for pair in self.words[word])]
        rows = {row.number: row for needle, row in pairs if needle in text}
        return [rows[number] for number in sorted(rows)]

    def match(self, message: str, *, user: bool = False) -> Match | None:
        """Return what a line means, None for the thousands that mean nothing.

        `message` bears no time stamp or other prefix; `user` says that a program wrote it and not the kernel.
        """
        message = message[:LINE_LIMIT]
        for row in self.candidates(message):
            if (row.user or not user) and (found := compiled(row.expression).search(message)):
                return _build_match(row, found)
        return None


@cache
def compiled(expression: str) -> re.Pattern[str]:
    """Return the expression compiled, at its first use: most rows are never needed."""
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
        device=groups.get("device"),
        pid=int(pid) or None if pid else None,  # 0: the driver did not know it
        process=groups.get("process") or None,
        of_process=row.of_process or (code is not None and code.of_process),
    )


def address(text: str) -> str:
    """Return a PCI address in lower case and whole: NVIDIA leaves the function out, 0000:9b:00 is 0000:9b:00.0."""
    return text.lower() if "." in text else f"{text.lower()}.0"
