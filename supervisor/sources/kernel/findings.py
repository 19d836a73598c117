"""Turns records of the kernel log into findings, one per event; records from user space are not trusted.

A fatal line is a finding at once. What later lines of the same event add (its process, how a reset came out) comes as
the same finding told anew, and only where it changes something that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from supervisor.core.findings import About, KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.faults.events import Event, Events, kernel_finding
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.pasted_log import card_of
from supervisor.sources.faults.table import Grammar, Match

NEIGHBOUR_US = 1_000_000
"""A line without an address belongs to the card that the driver named within this time, before or after."""
AGAIN_S = 1.0
"""A fatal line that comes so long after the last one told of is told: whoever was launched between is concerned."""
KNOWN_EVENTS = 64
_KERN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of the kernel log."""

    facility: int
    sequence: int
    at_us: int
    """On the monotonic clock of its boot."""
    message: str
    device: str | None
    """PCI address that the kernel attached, lower case."""


@dataclass(slots=True, kw_only=True)
class _Told:
    """An event with what was told of it last."""

    event: Event
    at_us: int
    about: About
    finding: KernelFinding | None = None


class Understanding:
    """What the records of one log mean; it remembers the events that are open."""

    def __init__(self, origin: str, *, accept_user_records: bool = False, grammar: Grammar | None = None) -> None:
        self._origin = origin
        self._accept_user_records = accept_user_records
        self._grammar = grammar if grammar is not None else kernel_grammar()
        self._events = Events(self._grammar.kind)
        self._told: list[_Told] = []
        self._card: tuple[int, str] | None = None

    def names_no_card(self, records: Sequence[Record]) -> bool:
        """Whether a line is among them that is about a card and leaves open which."""
        named = self._list_named_gpus(records)
        return any(
            match.row.device == "card" and self._find_gpu(record, match, named) is None
            for record, match in self._match_records(records)
        )

    def findings(self, records: Sequence[Record], now: Moment) -> tuple[KernelFinding, ...]:
        """Return the events that these records began, and those on which they told something new."""
        named = self._list_named_gpus(records)
        touched: list[_Told] = []
        for record, match in self._match_records(records):
            card = self._find_gpu(record, match, named)
            event = self._events.add(
                match, number=record.sequence, line=record.message, at_s=record.at_us / 1e6, card=card
            )
            if event is None:
                continue
            told = self._find_or_add(event, record, match)
            if told not in touched:
                touched.append(told)
        self._card = named[-1] if named else None
        return tuple(finding for told in touched if (finding := self._build_if_changed(told, now)) is not None)

    def _match_records(self, records: Sequence[Record]) -> list[tuple[Record, Match]]:
        believed = (record for record in records if record.facility == _KERN or self._accept_user_records)
        return [(record, match) for record in believed if (match := self._grammar.match(record.message)) is not None]

    def _list_named_gpus(self, records: Sequence[Record]) -> list[tuple[int, str]]:
        named = [self._card] if self._card else []
        for record in records:
            gpu = record.device or card_of(record.message)
            if gpu is not None and (record.facility == _KERN or self._accept_user_records):
                named.append((record.at_us, gpu))
        return named

    @staticmethod
    def _find_gpu(record: Record, match: Match, named: list[tuple[int, str]]) -> str | None:
        """Return the card that a line is about; of another device only what the kernel attached."""
        own = match.pci or record.device or card_of(record.message)
        if own is not None or match.row.device != "card":
            return own
        near = [(abs(at_us - record.at_us), gpu) for at_us, gpu in named if abs(at_us - record.at_us) <= NEIGHBOUR_US]
        return min(near)[1] if near else None

    def _find_or_add(self, event: Event, record: Record, match: Match) -> _Told:
        for told in self._told:
            if told.event is event:
                return told
        told = _Told(event=event, at_us=record.at_us, about=match.row.device)
        self._told = [*self._told[-KNOWN_EVENTS:], told]
        return told

    def _build_if_changed(self, told: _Told, now: Moment) -> KernelFinding | None:
        """Return the finding if it says anything that the one before it did not."""
        event, before = told.event.finding, told.finding
        at, fatal_s = _clamp_to_now(now, told.at_us / 1e6), told.event.fatal_s
        fatal_at = None if fatal_s is None else _clamp_to_now(now, fatal_s)
        if before is not None:
            news = fatal_at is not None and fatal_at.seconds_since(before.told_at) >= AGAIN_S
            told_before = (before.fault, before.severity, before.gpu or before.device, before.pid, before.of_process)
            tells = (event.fault, event.severity, event.device, event.pid, event.of_process)
            if not news and told_before == tells:
                return None
        said = kernel_finding(event, at=at, sequence=event.line_number, origin=self._origin, about=told.about)
        told.finding = replace(said, fatal_at=fatal_at, of_process=event.of_process)
        return told.finding


def _clamp_to_now(now: Moment, monotonic_s: float) -> Moment:
    """Return the moment of a record: none lies in the future."""
    return min(now, now.at_monotonic(monotonic_s), key=lambda moment: moment.monotonic_s)
