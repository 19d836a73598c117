"""Straggler rank: one process of several falls behind, or makes the others wait for its data. It only warns.

Ranks that step together end their steps together, however slow one is: its lag in steps shows only where they do not,
and its wait for data shows always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.history import History
from supervisor.core.readings import StepRecord
from supervisor.core.stats.median import median
from supervisor.core.stats.pace import Pace, wait_share_of
from supervisor.core.unseen import no_steps_due


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRank:
    """A rank `lag_steps` behind the first for `hold_s`, or waiting for data `wait_fraction` of its time, others not."""

    name: ClassVar[str] = "straggler_rank"
    group: ClassVar[Group] = "pace"
    enabled: bool = True
    lag_steps: int = 10
    hold_s: float = 30.0
    window_s: float = 300.0
    wait_fraction: float = 0.3

    def check(self, history: History) -> RedFlag | None:
        """Flag the rank that is furthest behind."""
        if history.over or history.train_ended or not history.ranks or history.pace.last is None:
            return None
        paces = {0: history.pace, **history.ranks}
        return self._behind(history, paces) or self._waiting(history, paces)

    def _behind(self, history: History, paces: dict[int, Pace]) -> RedFlag | None:
        rank, last, ahead = _ends(paces)
        if ahead.step - last.step < self.lag_steps or ahead.at.seconds_since(last.at) < self.hold_s:
            return None
        no_step_s = history.now.seconds_since(last.at)
        text = f"rank {rank} is at step {last.step} since {no_step_s:.0f} s, the first at {ahead.step}"
        return self._flag(history, rank, text)

    def _waiting(self, history: History, paces: dict[int, Pace]) -> RedFlag | None:
        waits = self._waits(history, paces)
        if waits is None:
            return None
        rank, most, others = waits
        if 100 * most < 100 * self.wait_fraction or most < 3 * others:
            return None
        text = f"rank {rank} waits for data {most:.0%} of its time, the others {others:.0%}: they all wait with it"
        return self._flag(history, rank, text)

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how far the last rank is behind, and which waits most for its data."""
        why = no_steps_due(history)
        if why is None and (not history.ranks or history.pace.last is None):
            why = "it has no other rank"
        if why is not None:
            return unwatched(self.name, "ranks that fall behind", why)
        paces = {0: history.pace, **history.ranks}
        rank, last, ahead = _ends(paces)
        behind = Gauge(
            rule=self.name,
            what=f"rank {rank} behind the first",
            unit="steps",
            now=ahead.step - last.step,
            limit=self.lag_steps,
            held_s=ahead.at.seconds_since(last.at),
            hold_s=self.hold_s,
        )
        return behind, self._most(self._waits(history, paces))

    def _most(self, waits: tuple[int, float, float] | None) -> Gauge:
        if waits is None:
            return Gauge(
                rule=self.name,
                what="ranks that wait for data",
                not_watched="time spent waiting for data not reported by each rank",
            )
        rank, most, others = waits
        return Gauge(
            rule=self.name,
            what=f"time that rank {rank} waits for data, more than others",
            unit="%",
            now=100 * most,
            limit=100 * self.wait_fraction,
            lacks="that the others wait less" if most < 3 * others else None,
        )

    def _waits(self, history: History, paces: dict[int, Pace]) -> tuple[int, float, float] | None:
        """Return the rank that waits most, its share of time and that of the others; None where one is unknown."""
        shares = {}
        for rank, pace in paces.items():
            recent = pace.recent(self.window_s, history.now)
            share = wait_share_of(recent) if recent else None
            if share is None:
                return None
            shares[rank] = share
        rank, most = max(shares.items(), key=lambda pair: pair[1])
        return rank, most, median(value for other, value in shares.items() if other != rank)

    def _flag(self, history: History, rank: int, text: str) -> RedFlag:
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=text,
            can_save=True,
            subject=f"rank {rank}",
            diagnosis=BEHIND,
        )


def _ends(paces: dict[int, Pace]) -> tuple[int, StepRecord, StepRecord]:
    """Return the rank that is furthest behind, its last step, and that of the one furthest ahead."""
    known = {rank: pace.last for rank, pace in paces.items() if pace.last is not None}
    rank, last = min(known.items(), key=lambda pair: pair[1].step)
    return rank, last, max(known.values(), key=lambda record: record.step)


BEHIND = Diagnosis(
    ruled_out=("not the job as a whole: the other ranks are ahead of it",),
    causes=("its card is slower or hotter: compare clocks", "its part of the data lies on slower storage"),
    advice=("supervisorctl gpus --watch; give it another card and see whether the rank or the card is slow",),
)
