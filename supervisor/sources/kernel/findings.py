"""Turns records of the kernel log into findings, one per event; records from user space are ignored.

A fatal line becomes a finding immediately. Later lines of the same event (its process, the result of a reset) report
the finding again, if they change its class, severity, device or process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.core.findings import About, KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.faults.events import Event, Events, kernel_finding
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.optical_drives import read_optical_drives
from supervisor.sources.faults.pasted_log import card_of
from supervisor.sources.faults.table import Grammar, Match

NEIGHBOUR_US = 1_000_000
"""A line without an address is assigned to the GPU that the driver named within this time, before or after."""
AGAIN_S = 1.0
"""A fatal line this long after the reported one is reported again: it may concern an attempt launched in between."""
KNOWN_EVENTS = 64
_KERN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of the kernel log."""

    facility: int
    sequence: int
    at_us: int
    """Time on the monotonic clock of its boot."""
    message: str
    device: str | None
    """PCI address that the kernel attached, lower case."""


@dataclass(slots=True, kw_only=True)
class _Reported:
    """An event with the finding last reported for it."""

    event: Event
    at_us: int
    about: About
    finding: KernelFinding | None = None


class RecordInterpreter:
    """Interprets the records of one log; keeps the events that later records can still join."""

    def __init__(
        self,
        origin: str,
        *,
        accept_user_records: bool = False,
        grammar: Grammar | None = None,
        sys_root: Path = Path("/sys"),
    ) -> None:
        self._origin = origin
        self._sys_root = sys_root
        self._accept_user_records = accept_user_records
        self._grammar = grammar if grammar is not None else kernel_grammar()
        self._events = Events(self._grammar.kind)
        self._reported: list[_Reported] = []
        self._card: tuple[int, str] | None = None

    def names_no_card(self, records: Sequence[Record]) -> bool:
        """Whether one of the records is about a GPU that cannot be determined yet."""
        named = self._list_named_gpus(records)
        return any(
            match.row.device == "gpu" and self._find_gpu(record, match, named) is None
            for record, match in self._match_records(records)
        )

    def findings(self, records: Sequence[Record], now: Moment) -> tuple[KernelFinding, ...]:
        """Return the findings that these records began or changed."""
        named = self._list_named_gpus(records)
        touched: list[_Reported] = []
        for record, match in self._match_records(records):
            card = self._find_gpu(record, match, named)
            event = self._events.add(
                match, number=record.sequence, line=record.message, at_s=record.at_us / 1e6, card=card
            )
            if event is None:
                continue
            reported = self._find_or_add(event, record, match)
            if reported not in touched:
                touched.append(reported)
        self._card = named[-1] if named else None
        return tuple(finding for reported in touched if (finding := self._build_if_changed(reported, now)) is not None)

    def _match_records(self, records: Sequence[Record]) -> list[tuple[Record, Match]]:
        believed = (record for record in records if record.facility == _KERN or self._accept_user_records)
        found = [(record, match) for record in believed if (match := self._grammar.match(record.message)) is not None]
        if not any(match.device is not None and match.device.startswith("ata") for _, match in found):
            return found
        optical = read_optical_drives(self._sys_root)
        return [(record, match) for record, match in found if match.device not in optical]

    def _list_named_gpus(self, records: Sequence[Record]) -> list[tuple[int, str]]:
        named = [self._card] if self._card else []
        for record in records:
            gpu = record.device or card_of(record.message)
            if gpu is not None and (record.facility == _KERN or self._accept_user_records):
                named.append((record.at_us, gpu))
        return named

    @staticmethod
    def _find_gpu(record: Record, match: Match, named: list[tuple[int, str]]) -> str | None:
        """Return the address of the record's device; the GPU named nearest in time if the line is about a GPU."""
        own = match.pci or record.device or card_of(record.message)
        if own is not None or match.row.device != "gpu":
            return own
        near = [(abs(at_us - record.at_us), gpu) for at_us, gpu in named if abs(at_us - record.at_us) <= NEIGHBOUR_US]
        return min(near)[1] if near else None

    def _find_or_add(self, event: Event, record: Record, match: Match) -> _Reported:
        for reported in self._reported:
            if reported.event is event:
                return reported
        reported = _Reported(event=event, at_us=record.at_us, about=match.row.device)
        self._reported = [*self._reported[-KNOWN_EVENTS:], reported]
        return reported

    def _build_if_changed(self, reported: _Reported, now: Moment) -> KernelFinding | None:
        """Return the event's finding if it differs from the one reported last."""
        event, before = reported.event.finding, reported.finding
        at, fatal_s = _clamp_to_now(now, reported.at_us / 1e6), reported.event.fatal_s
        fatal_at = None if fatal_s is None else _clamp_to_now(now, fatal_s)
        if before is not None:
            is_repeated = fatal_at is not None and fatal_at.seconds_since(before.reported_at) >= AGAIN_S
            old_facts = (before.fault, before.severity, before.gpu or before.device, before.pid, before.of_process)
            new_facts = (event.fault, event.severity, event.device, event.pid, event.of_process)
            if not is_repeated and old_facts == new_facts:
                return None
        finding = kernel_finding(event, at=at, sequence=event.line_number, origin=self._origin, about=reported.about)
        reported.finding = replace(finding, fatal_at=fatal_at, of_process=event.of_process)
        return reported.finding


def _clamp_to_now(now: Moment, monotonic_s: float) -> Moment:
    """Return the moment of a record, at the latest `now`."""
    return min(now, now.at_monotonic(monotonic_s), key=lambda moment: moment.monotonic_s)
