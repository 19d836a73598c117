"""Straggler rank: one process of several falls behind, or makes the others wait for its data. It only tells.

Ranks that step together end their steps together, however slow one is: its lag in steps shows only where they do not,
and its wait for data shows always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.pace import Pace, wait_share_of
from supervisor.core.robust import median


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRank:
    """A rank `lag_steps` behind the first for `hold_s`, or waiting for data `wait_fraction` of its time, others not.

    `act` changes nothing.
    """

    name: ClassVar[str] = "straggler_rank"
    enabled: bool = True
    act: Act = False
    lag_steps: int = 10
    hold_s: float = 30.0
    over_s: float = 300.0
    wait_fraction: float = 0.3

    def check(self, history: History) -> RedFlag | None:
        """Flag the rank that is furthest behind."""
        if history.over or history.train_ended or not history.ranks or history.pace.last is None:
            return None
        paces = {0: history.pace, **history.ranks}
        return self._behind(history, paces) or self._waiting(history, paces)

    def _behind(self, history: History, paces: dict[int, Pace]) -> RedFlag | None:
        known = {rank: pace.last for rank, pace in paces.items() if pace.last is not None}
        furthest = max(one.step for one in known.values())
        rank, last = min(known.items(), key=lambda one: one[1].step)
        quiet_s = history.now.seconds_since(last.at)
        ahead = max(known.values(), key=lambda one: one.step)
        if furthest - last.step < self.lag_steps or ahead.at.seconds_since(last.at) < self.hold_s:
            return None
        text = f"rank {rank} is at step {last.step} since {quiet_s:.0f} s, the first at {furthest}"
        return self._flag(history, rank, text)

    def _waiting(self, history: History, paces: dict[int, Pace]) -> RedFlag | None:
        shares = {}
        for rank, pace in paces.items():
            recent = pace.recent(self.over_s, history.now)
            share = wait_share_of(recent) if recent else None
            if share is None:
                return None
            shares[rank] = share
        rank, most = max(shares.items(), key=lambda one: one[1])
        others = median(one for other, one in shares.items() if other != rank)
        if most < self.wait_fraction or most < 3 * others:
            return None
        text = f"rank {rank} waits for data {most:.0%} of its time, the others {others:.0%}: they all wait with it"
        return self._flag(history, rank, text)

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


BEHIND = Diagnosis(
    ruled_out=("not the job as a whole: the other ranks are ahead of it",),
    causes=("its card is slower or hotter: compare clocks", "its part of the data lies on slower storage"),
    advice=("supervisorctl gpus --watch; give it another card and see whether the rank or the card is slow",),
)
