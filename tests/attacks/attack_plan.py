"""What a hostile training is going to do: a list of actions drawn from a seed, and its form as a script of lines.

An action is a kind and a seed of its own, from which the hostile training draws every detail. Leaving actions out
therefore does not change the others, which is what makes a list that breaks an invariant shrink.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WEIGHTS = {
    # files, below mischief/files.py
    "write": 8, "truncate": 5, "delete": 3, "rename": 4, "symlink": 6, "symlink_folder": 3, "hardlink": 2, "fifo": 5,
    "unix_socket": 2, "device": 1, "directory": 3, "deep_folders": 1, "sparse": 3, "mode": 3, "many_files": 2,
    "race": 4, "lease": 2, "lock": 2, "next_attempt": 2, "swap_folder": 1, "xattr": 1,
    # forged words, below mischief/words.py
    "agent_word": 14, "agent_bytes": 4, "agent_flood": 2, "note": 8, "recorder_header": 5, "recorder_records": 5,
    "rank_recorder": 3, "steps": 8, "odd_steps": 3, "checkpoint": 6, "output": 6, "output_flood": 2,
    # processes, below mischief/processes.py
    "fork": 3, "orphan": 3, "allocate": 2, "process_name": 2, "stop_shim": 1, "kill_shim": 1, "end": 2, "die": 2,
    "hang": 1, "clock": 1, "socket": 5, "socket_crowd": 1,
    # the page, the metrics and the tuner, below mischief/doors.py
    "door": 6, "door_crowd": 1, "tune": 3, "tune_answer": 3,
}  # fmt: skip
"""How often each kind comes; the ones that end an attempt are rare, so that the others have time."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    kind: str
    seed: int

    def __str__(self) -> str:
        """Return its line of a script."""
        return f"{self.kind} {self.seed}"


def plan(seed: int, count: int, kinds: Sequence[str] = tuple(WEIGHTS)) -> list[Action]:
    """Return `count` actions drawn from `seed`."""
    chance = random.Random(seed)
    weights = [WEIGHTS[kind] for kind in kinds]
    drawn = chance.choices(list(kinds), weights, k=count)
    return [Action(kind, chance.randrange(1 << 32)) for kind in drawn]


SHARE_OF_OTHERS = 4
"""How many times as much the trainings beyond the first do, whose attempts last longer."""


def share(actions: Iterable[Action], number: int, among: int) -> list[Action]:
    """Return what training `number` of `among` does; by the action's own seed, so that leaving one out moves none."""
    places = 1 + SHARE_OF_OTHERS * (among - 1)
    return [action for action in actions if -(-(action.seed % places) // SHARE_OF_OTHERS) == number]


def to_script(actions: Iterable[Action]) -> str:
    """Return the lines of a script."""
    return "".join(f"{action}\n" for action in actions)


def from_script(text: str) -> list[Action]:
    """Return the actions of a script; lines that begin with # are comments."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2 or words[0] not in WEIGHTS or not words[1].isdecimal():
            raise ValueError(f"not an action: {line!r}; a line is KIND SEED")
        found.append(Action(words[0], int(words[1])))
    return found


def shrink(actions: Sequence[Action], breaks: Callable[[Sequence[Action]], bool], runs: int) -> list[Action]:
    """Return a shorter list for which `breaks` still holds, after at most `runs` calls (delta debugging, Zeller 2002).

    Chunks are left out, the largest first; where none can be, the chunks are halved.
    """
    kept, parts = list(actions), 2
    while len(kept) >= 2 and runs > 0:
        size = -(-len(kept) // parts)
        for at in range(0, len(kept), size):
            shorter = kept[:at] + kept[at + size :]
            runs -= 1
            if shorter and breaks(shorter):
                kept, parts = shorter, max(parts - 1, 2)
                break
            if runs <= 0:
                return kept
        else:
            if size == 1:
                return kept
            parts = min(parts * 2, len(kept))
    return kept
