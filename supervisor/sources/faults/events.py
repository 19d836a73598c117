"""Groups matched lines into events: one fault of one device, however many lines report it.

A ring that timed out, the process that was on it, the reset and how that came out are one event. Its class is that of
its weightiest line, its severity the worst, its place the first line's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from supervisor.core.findings import About, FaultClass, FaultSeverity, KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.faults.table import LINE_LIMIT, Match

OPEN_EVENTS = 64
"""Events that a further line can still join; more at once are a flood, in which the oldest is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One event: what happened, to what, and what cures it."""

    kind: str
    """`kernel` or `training`: which table knew it."""
    line_number: int
    """Of its first line, counted from 1; for records of the kernel log their sequence."""
    line: str
    """Its first line, without time stamps."""
    fault: FaultClass
    severity: FaultSeverity
    device: str | None
    """PCI address of a card, or the name of a disk; None where no line names any."""
    remedy: str
    source: str
    """Where the wording comes from: a file of a driver, a page of documentation."""
    what: str | None = None
    pid: int | None = None
    process: str | None = None
    of_process: bool = False
    """Whether it takes only the process that it names: no fatal line of it said otherwise."""
    lines: int = 1
    """How many lines told of it."""


def kernel_finding(finding: Finding, *, at: Moment, sequence: int, origin: str, about: About = "card") -> KernelFinding:
    """Return a finding of the kernel's table as the rules know it; its device is an address for what is on a bus.

    `of_process` is left out: what a log of another boot or machine says of a process is said of none that runs here.
    """
    on_bus = about in ("card", "pci")
    return KernelFinding(
        at=at,
        sequence=sequence,
        origin=origin,
        fault=finding.fault,
        severity=finding.severity,
        about=about,
        gpu=finding.device if on_bus else None,
        device=None if on_bus else finding.device,
        line=finding.line,
        remedy=finding.remedy,
        source=finding.source,
        what=finding.what,
        pid=finding.pid,
        process=finding.process,
        lines=finding.lines,
    )


@dataclass(slots=True, kw_only=True)
class Event:
    """A finding in the making."""

    finding: Finding
    group: str
    """Only lines of this group join it, and those of the aftermath."""
    rank: int
    within_s: float
    last_s: float
    fatal_s: float | None
    """When its last fatal line came."""
    of_card: bool
    mended: bool = False
    """Whether its last weighty line said that it is over; a fatal one after that begins it again."""


class Events:
    """The events that are open; hand it the matches in the order of the log."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._open: deque[Event] = deque(maxlen=OPEN_EVENTS)

    def add(self, match: Match, *, number: int, line: str, at_s: float, card: str | None = None) -> Event | None:
        """Return the event that a line began or joined; None where it only adds and there is nothing to add to.

        `at_s` may count from anywhere; `card` is the address of the card whose driver spoke, where that is known.
        """
        device = match.pci or (card if match.row.device in ("card", "pci") else None) or match.device
        event = self._find_open_event(match, device, at_s)
        if event is not None:
            self._merge_match(event, match, device, at_s)
            return event
        if match.row.detail:
            return None
        event = self._begin_event(match, device, number=number, line=line, at_s=at_s)
        self._open.append(event)
        return event

    def _begin_event(self, match: Match, device: str | None, *, number: int, line: str, at_s: float) -> Event:
        row = match.row
        finding = Finding(
            kind=self._kind,
            line_number=number,
            line=line[:LINE_LIMIT],
            fault=match.fault,
            severity=match.severity,
            device=device,
            remedy=match.remedy,
            source=row.source,
            what=match.what,
            pid=match.pid,
            process=match.process,
            of_process=match.of_process,
        )
        return Event(
            finding=finding,
            group=row.event,
            rank=row.rank,
            within_s=row.grouping.within_s,
            last_s=at_s,
            fatal_s=at_s if match.severity is FaultSeverity.FATAL else None,
            of_card=row.device == "card",
        )

    def _find_open_event(self, match: Match, device: str | None, at_s: float) -> Event | None:
        row = match.row
        for event in reversed(self._open):
            if abs(at_s - event.last_s) > max(event.within_s, row.grouping.within_s):
                continue
            known = event.finding.device
            same = known == device or known is None or device is None
            if same and event.group == row.event:
                return event
            # The bridges above a card have addresses of their own.
            near = event.of_card and (same or row.device == "pci")
            if near and row.aftermath in (event.group, "card"):
                return event
        return None

    @staticmethod
    def _merge_match(event: Event, match: Match, device: str | None, at_s: float) -> None:
        before = event.finding
        mended = match.row.mends and event.group == match.row.event and event.rank < match.row.rank
        after = replace(
            before,
            severity=match.severity if mended else max(before.severity, match.severity),
            device=before.device or (device if match.row.device == "card" or event.group == match.row.event else None),
            pid=before.pid if before.pid is not None else match.pid,
            process=before.process or match.process,
            lines=before.lines + 1,
            of_process=before.of_process and (match.of_process or match.severity is not FaultSeverity.FATAL),
        )
        relapsed = event.mended and match.severity is FaultSeverity.FATAL
        weightier = relapsed or (match.row.rank, match.severity) > (event.rank, before.severity)
        if weightier and event.group == match.row.event and not match.row.detail:
            after = replace(
                after, fault=match.fault, remedy=match.remedy, source=match.row.source, what=match.what or before.what
            )
            event.rank, event.mended = match.row.rank, mended
        event.finding = after
        event.last_s = max(event.last_s, at_s)
        if mended:
            event.fatal_s = None
        if match.severity is FaultSeverity.FATAL:
            event.fatal_s = at_s if event.fatal_s is None else max(event.fatal_s, at_s)
