"""How several ranks come to save at the same step: rank 0 announces one, and each sees it at a boundary of its own.

The step is one that none can have reached yet. There is no collective operation in it: a rank that is late, gone or
beyond that step costs the snapshot and nothing else.
"""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import Any, List, Optional, Tuple

from rocm_agent import events
from rocm_agent.layout import ANSWER_CANNOT, COMMAND_SAVE_AND_STOP

from . import board
from .board import Announced, Board
from .keeper import Keeper
from .moment import Moment
from .world import World

MARGIN_STEPS, MARGIN_LIMIT_STEPS = 2, 256
"""Announced so far ahead; more where the processors of other ranks run ahead of their GPUs."""
FORWARD_LIMIT_S, FORWARD_COMMAND_LIMIT_S = 60.0, 10.0
"""So long after rank 0 every other is to have come forward, and where a command waits for it."""

_trainings = 0
"""Of this process; those of its fellows are counted alike."""


class Meeting:
    """One rank's view of the ranks of one machine, of which the first announces; subclasses save."""

    saves_at_any_step = False
    """Whether a save is lost where the boundary after the very step that was announced is left out."""

    def __init__(self, torch: Any, world: World, folder: str) -> None:
        """Come forward in the attempt's `folder`; raise OSError where its board cannot be had."""
        global _trainings
        _trainings += 1
        self._torch = torch
        self._rank, self._size = world.rank, world.size
        self._place, self._here = world.local_rank, world.local_size
        self._folder = folder
        self._who = os.getpid() << 16 | _trainings & 0xFFFF
        self._board = Board(folder, world.local_size)
        self._seen = self._board.announced  # of a training that is over
        self._pending: Optional[Announced] = None
        self._before = -1
        self._margin = MARGIN_STEPS
        self._alone_ns: Optional[int] = None
        self._reported_alone = False

    def at_boundary(self, keeper: Keeper, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Announce or save, as is due; return the command after which this process is to end."""
        raise NotImplementedError

    def take_due(self, step: int) -> Optional[Announced]:
        """Show where this rank stands; return what was announced for this very boundary."""
        announced = self._board.announced
        if announced != self._seen:
            self._seen = announced
            if announced.step <= self._before:
                self.refuse(announced, "it was beyond that step")
            else:
                self._pending = announced
        self._before = step
        self._board.stand(self._place, self._who, step)
        if self._pending is None or step < self._pending.step:
            return None
        due, self._pending = self._pending, None
        return due

    def announce_if_due(
        self, keeper: Keeper, recorder: Any, *, wanted: bool, ahead_steps: int = 0
    ) -> Optional[Announced]:
        """Announce a save where one is `wanted` or asked for, and return it; `ahead_steps` are added to the margin."""
        command = recorder.command()
        if self._pending is not None or (command is None and not wanted):
            return None
        absent = self.list_absent()
        if absent:
            self._report_absent(absent, recorder, command)
            return None
        self._alone_ns = None
        kind = board.SNAPSHOT
        if command is not None:
            kind = board.SAVE_AND_STOP if command[0] == COMMAND_SAVE_AND_STOP else board.SAVE
        self.clear_parts()
        furthest = max(standing.step for standing in self._board.standings())
        self._seen = self._pending = self._board.announce(kind, furthest + self._margin + ahead_steps)
        return self._pending

    def clear_parts(self) -> None:
        """Remove what an earlier save has left of its parts."""

    def refuse(self, announced: Announced, why: str) -> None:
        """Show that this rank has no part in an announced save."""
        self._board.refuse(self._place, announced.number)

    def any_refused(self, due: Announced) -> bool:
        """Whether a rank of this machine was beyond the announced step before it could see it; allow more next time."""
        if not any(self._board.refused(place, due.number) for place in range(self._here)):
            return False
        self._margin = min(self._margin * 2, MARGIN_LIMIT_STEPS)
        return True

    def list_absent(self) -> List[int]:
        """Return the ranks of this machine, counted on it, that are not seen in this training."""
        others = [standing for standing in self._board.standings() if standing.rank != self._place]
        return [
            other.rank for other in others if other.who & 0xFFFF != self._who & 0xFFFF or not is_alive(other.who >> 16)
        ]

    def _report_absent(self, absent: List[int], recorder: Any, command: Optional[Tuple[int, int]]) -> None:
        """Say once that ranks are missing, and refuse a command that has waited long enough."""
        self._alone_ns = self._alone_ns or monotonic_ns()
        waited_s = (monotonic_ns() - self._alone_ns) / 1e9
        text = "no report from rank %s on this machine: nothing is saved in mid-epoch" % ", ".join(map(str, absent))
        if waited_s >= FORWARD_LIMIT_S and not self._reported_alone:
            self._reported_alone = True
            events.write("save_failed", error=text, kind="snapshot")
        if command is not None and waited_s >= FORWARD_COMMAND_LIMIT_S:
            events.write("save_failed", error=text)
            recorder.answer(ANSWER_CANNOT, command[1])


def is_alive(pid: int) -> bool:
    """Whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid != 0
