"""How many steps a tune takes: an arm is not begun, or given up, where what is left does not suffice to prove it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from supervisor.core.tuning.session import Session
from supervisor.core.tuning.trial import Trial

STEPS = 800
"""By which a tune has ended, where none were given."""
RECKONED = 0.86
"""Share of them that values are tried in: the last comparison may take longer than was reckoned, up to all of them."""
TRACE_STEPS = 14
"""What a trace takes at most, with the steps in which it begins and ends."""
UNFORESEEN = 8
"""Steps that its last blocks may take more than the newest of their kind."""
CONFIRMED_PAIRS_MIN = 2
"""Pairs that the last comparison is judged by at least."""
STEPS_S = 30.0
"""As many steps as this time has are a tune's where that is more: fast steps are judged by more of them."""

COMPILING_S = 150.0
"""What is compiled may take so long before its first step: 95 s of a YOLOv8n on an H200, and more than 85 s of a small
GPT-2 on two busy cores, whose tune of 40 s ended meanwhile, and what it had proven was lost."""

Settings = Mapping[str, object]
Count = Callable[[Settings, Settings], int]
"""Of steps, from the end of a block of some settings to the end of the next one, of others or the same."""


def count_left(made: int, spent_s: float, step_s: float | None, steps: int = STEPS, *, to_end: bool = False) -> int:
    """Return how many of its `steps` a tune has left that has made some, the newest of which took as long.

    `to_end`: to the end of its last comparison, which may take those that no value is tried in; a trace follows it.
    """
    in_time = int((STEPS_S - spent_s) / step_s) if step_s else 0
    planned = steps - UNFORESEEN - TRACE_STEPS if to_end else int(RECKONED * steps)
    return max(0, planned - made, in_time)


def end_unaffordable(session: Session, left: int, to_end: int, count: Count) -> Session | None:
    """Return the session without the trial under way, where too few steps are left for it; None where it goes on.

    `left` are those in which values are tried, `to_end` those of the last comparison, and of what is tried after it.
    """
    why = find_unaffordable(session, left if session.confirmed is None else to_end, count)
    if why is not None:
        return session.after_last_block(why)
    return session.after_last_step() if is_over(session, to_end, count) else None


def is_over(session: Session, left: int, count: Count) -> bool:
    """Whether too few steps are left for what the last comparison needs: two pairs of blocks, or then one more."""
    trial = session.trial
    if trial is None or trial.arm is not None or trial.blocks:
        return False
    wanted_pairs = max(1, CONFIRMED_PAIRS_MIN - len(trial.comparison.pairs))
    return _count_blocks(trial, 2 * wanted_pairs, count) > left


def _count_blocks(trial: Trial, blocks: int, count: Count) -> int:
    """Return how many steps the next blocks of a trial take."""
    numbers = (max(0, trial.block - 1), *range(trial.block, trial.block + blocks))
    return sum(count(held, wanted) for held, wanted in pairwise(map(trial.settings_of, numbers)))


def find_unaffordable(session: Session, left: int, count: Count) -> str | None:
    """Return why the arm under way is not to be tried any further; None where it is, or none is being tried.

    A pair of blocks that was begun is ended, and the last comparison takes place: it proves what is adopted.
    """
    trial = session.trial
    if trial is None or trial.arm is None or (trial.blocks and trial.is_begun):
        return None
    base, arm = trial.base, trial.settings
    if trial.is_begun:
        needed = _count_blocks(trial, 2, count)
    else:  # two pairs, in the order A B B A, of which the first block may have been made
        needed = (0 if trial.blocks else count(base, base)) + count(base, arm) + count(arm, arm) + count(arm, base)
    if needed + _count_confirming(session, arm, count) <= left:
        return None
    return f"{left} steps of this tune are left, too few to try and confirm it: --steps gives it more"


def find_too_late(session: Session, left_s: float) -> str | None:
    """Return why the arm under way is not begun, with so much time left in which all is to be confirmed.

    No block can be made, and no order taken back, until it is compiled.
    """
    trial = session.trial
    if trial is None or trial.arm is None or trial.is_begun or not trial.arm.after_review or left_s >= COMPILING_S:
        return None
    return f"it may take {COMPILING_S:.0f} s before its first step: --for gives it more time"


def can_trace(session: Session, left: int, count: Count) -> bool:
    """Whether the block about to be made may be traced: steps are left for that, for two pairs, and to confirm it."""
    trial = session.trial
    if trial is None or not session.wants_trace:
        return False
    base, arm = trial.base, trial.settings
    pairs = count(base, base) + count(base, arm) + count(arm, arm) + count(arm, base)
    return TRACE_STEPS + pairs + _count_confirming(session, arm, count) <= left


def _count_confirming(session: Session, arm: Settings, count: Count) -> int:
    """Return how many steps are kept to confirm an arm with all else, and to leave out before what may cost."""
    if session.confirmed is not None:
        return 0
    proven = session.confirming_base
    confirming = count(arm, arm) + count(arm, proven) + count(proven, proven) + count(proven, arm)
    return confirming + _count_review(session, count)


def _count_review(session: Session, count: Count) -> int:
    """Return how many steps are kept to leave each value out once that may cost: two pairs of blocks each."""
    held = session.settings
    changed = [arm.change(held) for arm in session.list_review()]
    return sum(count(held, other) + count(other, other) + count(other, held) for other in changed)
