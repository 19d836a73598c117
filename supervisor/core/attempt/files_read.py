"""Up to when the files of an attempt were read: the absence of a step that nothing has looked for is no silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.moments import Moment

UNREAD_KEPT = 64


@dataclass(slots=True, kw_only=True)
class FilesRead:
    """Of one attempt: its recorders, its output and the log of its agent."""

    looked_at: Moment | None = None
    """Up to when the recorder was read; None where it is not read; silence is then judged by the present."""
    unread_since: dict[str, Moment] = field(default_factory=dict)
    """The files that cannot be read at present, and since when: what they hold is unknown."""

    def mark(self, at: Moment, *, only_where_read: bool = False) -> None:
        """Note that the recorder was read up to `at`; `only_where_read`: but not where it has not been before."""
        known = self.looked_at
        if (known is None and not only_where_read) or (known is not None and at.monotonic_s > known.monotonic_s):
            self.looked_at = at

    def add(self, event: ev.RecorderIdle | ev.SupervisionChanged, moved_at: Moment) -> None:
        """Take in that the recorder was read, that a file cannot be read, or that it can be again.

        `moved_at`: when the attempt was last seen to move.
        """
        if isinstance(event, ev.RecorderIdle):
            self.mark(event.at)
            return
        part = ev.part_read(event.place)
        if part is None:
            return
        if event.recovered:
            self.unread_since.pop(part, None)
            return
        if len(self.unread_since) < UNREAD_KEPT:
            self.unread_since.setdefault(part, event.at)
        if part == fo.RECORDER:
            # It was not read before either; silence would otherwise be judged by the present.
            self.looked_at = self.looked_at or moved_at

    def find_unread(self, ranks: Iterable[int]) -> set[int]:
        """Return those of `ranks` whose recorders cannot be read at present."""
        return {rank for rank in ranks if fo.recorder_part(rank) in self.unread_since}

    def steps_known_until(self, now: Moment) -> Moment:
        """Return up to when the absence of a step is known: the daemon may be held up, and steps may wait unread."""
        last_look = self.looked_at
        return now if last_look is None or last_look.monotonic_s > now.monotonic_s else last_look

    def output_known_until(self, now: Moment) -> Moment:
        """Return up to when the absence of output is known."""
        return self.unread_since.get(fo.OUTPUT, now)
