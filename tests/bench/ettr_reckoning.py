"""Reckons the effective training time from a training's own log alone; it reads no record of the daemon's.

Time is effective where it led to a step, or a validation, that never has to be made again: the time between two lines
of one process of which the later one lies before the place where every later process went on. A process's first step
is part of its start-up: there kernels are searched and caches are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

WORK = ("step", "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One line of the log."""

    at_unix_s: float
    pid: int
    what: str
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """In the order of the training: a validation comes after the step whose number it has."""
        return self.number, WORK.index(self.what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process."""

    pid: int
    began_unix_s: float
    """Its first line; what came before it was importing."""
    first_step_unix_s: float | None
    """Its end; None where it came to none."""
    last_unix_s: float
    effective_s: float
    lost_s: float
    """In work that was made again."""
    lost_steps: int


def marks(path: Path) -> list[Mark]:
    """Return the lines of a log that are whole, as they were written."""
    try:
        lines = path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [_mark(line) for line in lines]


def _mark(line: str) -> Mark:
    at, pid, what, number = line.split()
    return Mark(at_unix_s=float(at), pid=int(pid), what=what, number=int(number))


def lives(found: Sequence[Mark]) -> list[Life]:
    """Return the processes, the first one first."""
    pids = dict.fromkeys(match.pid for match in found)
    by_process = [[match for match in found if match.pid == pid] for pid in pids]
    return [_life(own, _went_on_at(by_process[index + 1 :])) for index, own in enumerate(by_process)]


def _went_on_at(later: Iterable[Sequence[Mark]]) -> tuple[int, int] | None:
    """Return the earliest place at which a later process went on, None where none did."""
    firsts = (next((item.place for item in own if item.what in WORK), None) for own in later)
    return min((first for first in firsts if first is not None), default=None)


def _life(found: Sequence[Mark], cut: tuple[int, int] | None) -> Life:
    effective_s, lost_s, lost_steps = 0.0, 0.0, 0
    for before, item in pairwise(found):
        if before.what not in WORK:
            continue
        took_s = item.at_unix_s - before.at_unix_s
        if cut is None or item.place < cut:
            effective_s += took_s
        else:
            lost_s += took_s
            lost_steps += item.what == "step"
    return Life(
        pid=found[0].pid,
        began_unix_s=found[0].at_unix_s,
        first_step_unix_s=next((match.at_unix_s for match in found if match.what == "step"), None),
        last_unix_s=found[-1].at_unix_s,
        effective_s=effective_s,
        lost_s=lost_s,
        lost_steps=lost_steps,
    )


def ratio(all_lives: Iterable[Life], began_unix_s: float, until_unix_s: float) -> float:
    """Return effective time over all time since the first launch."""
    return sum(life.effective_s for life in all_lives) / (until_unix_s - began_unix_s)
