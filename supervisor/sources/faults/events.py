"""Groups matched lines into events: one fault of one device, however many lines report it.

A ring timeout, the process that used the ring, the reset and its result are one event. Its class is that of the line
with the highest rank, its severity the worst, its position that of the first line.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from supervisor.core.findings import About, FaultClass, FaultSeverity, KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.faults.rows import compiled
from supervisor.sources.faults.table import LINE_LIMIT, Match, Row

OPEN_EVENTS = 64
"""Limit of events that a further line can still join; beyond it, the oldest is closed."""
SPEAKERS_KEPT = 64
"""Limit of speakers whose consequences of what was asked for are known as those; beyond it, the oldest is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One event: the fault, its device, and the remedy."""

    kind: str
    """The table that matched it: `kernel` or `training`."""
    line_number: int
    """Number of its first line, from 1; for kernel log records their sequence."""
    line: str
    """Its first line, without time stamps."""
    fault: FaultClass
    severity: FaultSeverity
    device: str | None
    """PCI address of a GPU, or the name of a disk; None if no line names one."""
    remedy: str
    source: str
    """Origin of the message: a source file of a driver, a page of documentation."""
    what: str | None = None
    pid: int | None = None
    process: str | None = None
    of_process: bool = False
    """Whether it ends only the process that it names: no fatal line of the event affects more."""
    lines: int = 1
    """Number of lines that reported it."""


def kernel_finding(finding: Finding, *, at: Moment, sequence: int, origin: str, about: About = "gpu") -> KernelFinding:
    """Return a finding of the kernel's table in the form that rules use; a device on a bus is given as its address.

    `of_process` is omitted, since a log of another boot or machine concerns no process that runs here.
    """
    on_bus = about in ("gpu", "pci")
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
    """An open event, which further lines can join."""

    finding: Finding
    group: str
    """Lines of this group join it, and rows whose `aftermath` names it."""
    rank: int
    within_s: float
    last_s: float
    fatal_s: float | None
    """Time of its last fatal line."""
    of_gpu: bool
    tentative: bool = False
    """Whether only shapes have matched its lines: the first row about the same GPU names it."""
    followed_by: Row | None = None
    """The row of another group that joined it: a reset that has not ended belongs to the fault before it."""
    recovered: bool = False
    """Whether its last ranked line reported recovery; a later fatal line makes it fatal again."""


class Events:
    """The open events; matches must be added in the order of the log."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._open: deque[Event] = deque(maxlen=OPEN_EVENTS)
        self._asked: dict[str, tuple[Row, float]] = {}
        """By a speaker or device, oldest first: the row of what was asked for, when it or a consequence last came."""

    def add(self, match: Match, *, number: int, line: str, at_s: float, card: str | None = None) -> Event | None:
        """Return the event that a line began or joined; None for a detail without one and for what was asked for.

        `at_s` may have any origin; `card` is the address of the GPU whose driver wrote the line, if known.
        """
        if self._was_asked_for(match, line, at_s):
            return None
        device = match.pci or (card if match.row.device in ("gpu", "pci") else None) or match.device
        event = self._find_open_event(match, device, at_s)
        if event is not None:
            self._merge_match(event, match, device, at_s)
            return event
        if match.row.detail:
            return None
        event = self._begin_event(match, device, number=number, line=line, at_s=at_s)
        self._move_begun(event)
        self._open.append(event)
        return event

    def _was_asked_for(self, match: Match, line: str, at_s: float) -> bool:
        """Return whether a line reports what a person or a test asked for, or a consequence of it."""
        speaker, _, words = line.partition(": ")
        names, row = (speaker, match.device or speaker), match.row
        if row.asked is None:
            asked, last_s = next((self._asked[name] for name in names if name in self._asked), (None, 0.0))
            if asked is None or asked.asked is None or abs(at_s - last_s) > asked.grouping.within_s:
                return False
            if not compiled(asked.asked).search(words):
                return False
            row = asked
        for name in names:
            self._asked.pop(name, None)
            self._asked[name] = row, at_s
        while len(self._asked) > SPEAKERS_KEPT:
            del self._asked[next(iter(self._asked))]
        return True

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
            of_gpu=row.device == "gpu",
            tentative=row.tentative,
            recovered=row.recovers,
        )

    def _move_begun(self, event: Event) -> None:
        """Give an event what another had of it so far: a reset that ends is as severe as its beginning was."""
        for other in self._open:
            begun, known = other.followed_by, (other.finding.device, event.finding.device)
            if begun is None or begun.event != event.group or (known[0] != known[1] and None not in known):
                continue
            other.followed_by = None
            event.finding = replace(event.finding, severity=max(event.finding.severity, begun.severity))
            if begun.severity is FaultSeverity.FATAL and event.fatal_s is None:
                event.fatal_s = event.last_s

    def _find_open_event(self, match: Match, device: str | None, at_s: float) -> Event | None:
        row = match.row
        for event in reversed(self._open):
            if abs(at_s - event.last_s) > max(event.within_s, row.grouping.within_s):
                continue
            known = event.finding.device
            same = known == device or known is None or device is None
            if same and event.group == row.event and not (row.grouping.by_process and _of_others(event, match)):
                return event
            # The bridges above a GPU have other addresses.
            near = event.of_gpu and (same or row.device == "pci")
            if near and not row.aftermath.isdisjoint((event.group, "gpu")):
                return event
            begun = event.followed_by
            in_reset = begun is not None and (begun.event == row.event or begun.event in row.aftermath)
            if near and begun is not None and in_reset and row.rank < begun.until_rank:
                return event
            if event.tentative and event.of_gpu and same and row.device == "gpu" and not row.detail:
                return event
        return None

    @staticmethod
    def _merge_match(event: Event, match: Match, device: str | None, at_s: float) -> None:
        before = event.finding
        _name_event(event, match.row)
        recovered = match.row.recovers and event.group == match.row.event and event.rank < match.row.rank
        after = replace(
            before,
            severity=match.severity if recovered else max(before.severity, match.severity),
            device=before.device or (device if match.row.device == "gpu" or event.group == match.row.event else None),
            pid=before.pid if before.pid is not None else match.pid,
            process=before.process or match.process,
            lines=before.lines + 1,
            of_process=before.of_process and (match.of_process or match.severity is not FaultSeverity.FATAL),
        )
        named = event.tentative or not match.row.tentative  # what a row has named, a shape does not rename
        relapsed = event.recovered and match.severity is FaultSeverity.FATAL
        has_priority = relapsed or (match.row.rank, match.severity) > (event.rank, before.severity)
        if named and has_priority and event.group == match.row.event and not match.row.detail:
            after = replace(
                after, fault=match.fault, remedy=match.remedy, source=match.row.source, what=match.what or before.what
            )
            event.rank, event.recovered = match.row.rank, recovered
        event.finding = after
        event.last_s = max(event.last_s, at_s)
        if recovered:
            event.fatal_s = None
        if match.severity is FaultSeverity.FATAL:
            event.fatal_s = at_s if event.fatal_s is None else max(event.fatal_s, at_s)


def _of_others(event: Event, match: Match) -> bool:
    """Whether a line names another process than its event."""
    return match.pid is not None and event.finding.pid not in (None, match.pid)


def _name_event(event: Event, row: Row) -> None:
    """Give an event that began with a shape the group of its first row, unless that row only follows it."""
    if row.until_rank and event.group != row.event:
        event.followed_by = row
    elif event.tentative and not row.tentative and not row.detail and row.device == "gpu":
        event.group, event.rank, event.tentative = row.event, -1, False
        event.within_s = max(event.within_s, row.grouping.within_s)
