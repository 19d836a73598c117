"""What is reported to a node of a training of the ranks on its other nodes, as values, and for how long it counts.

What comes from another node cannot be verified here: it counts only while it is repeated. Times are passed on as the
seconds since then: the clocks of two nodes may differ by any amount.

The stage of a training is that of rank 0, as on one machine. The stages of other ranks are none: while rank 0 validates
or saves alone they wait for it within a step, and while it still sets up they may be warm already.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.moments import Moment
from supervisor.core.readings import Stage

PEERS_FRESH_S = 5.0
"""A report that is older counts for nothing: it is repeated five times a second. As long as a lease by default."""
SAME_S = 1.0
"""Two reports of one stage differ by what each was on its way: by less than this its begin is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWait:
    """What the ranks on another node of the training wait for, a file system, as that node found it."""

    node: str
    words: str
    """Who waits for what there, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStage:
    """The stage of a training whose rank 0 is on another node, as that node found it."""

    stage: Stage
    lasted_s: float
    """For how long it had been in it when this was sent."""
    stepped: bool
    """Whether it has made a step in this launch."""


@dataclass(slots=True)
class StageElsewhere:
    """The stage of an attempt whose rank 0 is on another node, by the newest report."""

    since: Moment | None = None
    """When the stage began that was reported last; it stays when the report is stale."""
    stepped: bool = False
    """Whether rank 0 was ever reported to have made a step in this attempt."""
    _stage: Stage | None = None
    _seen_at: Moment | None = None

    def add(self, at: Moment, report: PeerStage) -> None:
        """Take in a report; they come in the order of time."""
        since = at.plus(-report.lasted_s)
        if report.stage is not self._stage or self.since is None or abs(since.seconds_since(self.since)) >= SAME_S:
            self.since = since
        self._stage, self._seen_at, self.stepped = report.stage, at, self.stepped or report.stepped

    def interrupt(self) -> None:
        """Take in that this daemon did not run: which stage it is in by now is not known."""
        self._seen_at = None

    def find(self, now: Moment) -> Stage | None:
        """Return the stage; None where none was reported, or the newest report is stale."""
        is_fresh = self._seen_at is not None and now.seconds_since(self._seen_at) <= PEERS_FRESH_S
        return self._stage if is_fresh else None
