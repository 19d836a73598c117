"""Straggler rank: one process of several falls behind, or makes the others wait for its data. It only warns.

Ranks that step together end their steps together, however slow one is: its lag in steps shows only where they do not,
and its wait for data shows always.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.readings import StepRecord
from supervisor.core.stats.median import median
from supervisor.core.stats.pace import Pace, wait_share_of


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

    def may_flag(self, history: History) -> bool:
        """Whether there are other ranks to compare."""
        return bool(history.ranks) and history.pace.last is not None and not (history.over or history.train_ended)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how far the last rank is behind, and which waits most for its data."""
        why = history.why_not_stepping()
        unread = history.unread_ranks
        paces = {rank: pace for rank, pace in {0: history.pace, **history.ranks}.items() if rank not in unread}
        if why is None and (len(paces) < 2 or history.pace.last is None):
            why = "the recorders of the others cannot be read" if unread else "it has no other rank"
        if why is not None:
            return not_applicable("ranks that fall behind", why)
        return self._measure_lag(history, paces), self._measure_wait(history, paces)

    def _measure_lag(self, history: History, paces: dict[int, Pace]) -> Gauge:
        rank, last, ahead = _find_ends(paces)
        no_step_s = history.seconds_since(last.at)
        return Gauge(
            what=f"rank {rank} behind the first",
            unit="steps",
            now=ahead.step - last.step,
            limit=self.lag_steps,
            held_s=ahead.at.seconds_since(last.at),
            hold_s=self.hold_s,
            observe=lambda: _observe_rank(
                rank, f"rank {rank} is at step {last.step} since {no_step_s:.0f} s, the first at {ahead.step}"
            ),
        )

    def _measure_wait(self, history: History, paces: dict[int, Pace]) -> Gauge:
        waits = self._find_waiting(history, paces)
        if waits is None:
            why = "time spent waiting for data not reported by each rank"
            return Gauge(what="ranks that wait for data", not_watched=why)
        rank, most, others = waits
        text = f"rank {rank} waits for data {most:.0%} of its time, the others {others:.0%}: they all wait with it"
        return Gauge(
            what=f"time that rank {rank} waits for data, more than others",
            unit="%",
            now=100 * most,
            limit=100 * self.wait_fraction,
            lacks="that the others wait less" if most < 3 * others else None,
            observe=partial(_observe_rank, rank, text),
        )

    def _find_waiting(self, history: History, paces: dict[int, Pace]) -> tuple[int, float, float] | None:
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


def _observe_rank(rank: int, text: str) -> Observation:
    return Observation(message=text, can_save=True, subject=f"rank {rank}", diagnosis=BEHIND)


def _find_ends(paces: dict[int, Pace]) -> tuple[int, StepRecord, StepRecord]:
    """Return the rank that is furthest behind, its last step, and that of the one furthest ahead."""
    known = {rank: pace.last for rank, pace in paces.items() if pace.last is not None}
    rank, last = min(known.items(), key=lambda pair: pair[1].step)
    return rank, last, max(known.values(), key=lambda record: record.step)


BEHIND = Diagnosis(
    ruled_out=("not the job as a whole: the other ranks are ahead of it",),
    causes=("its GPU is slower or hotter: compare clocks", "its part of the data lies on slower storage"),
    advice=("supervisorctl gpus --watch; give it another GPU and see whether the rank or the GPU is slow",),
)
