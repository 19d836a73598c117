"""Whether settings under trial do harm that no clock shows: memory short or leaking, and losses that are unsteady.

The owner's blocks, made in turn with the arm's, are the measure: what they do as well is not the arm's doing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.core.stats.median import median, spread

CARD_SHARE = 0.92
"""Of a GPU's memory: beyond it the next larger batch has none."""
HOST_SHARE_LEFT = 0.08
"""Of the machine's memory that stays available."""
LOADER_SHARE = 0.25
"""Of the available memory that batches drawn ahead may take."""
SHM_SHARE = 0.5
LEAK_SHARE = 0.002
"""Of the memory there is, grown within each block of an arm: a cache fills once, a leak in each block."""
LEAK_BLOCKS = 2
LOSSES_MIN = 20
FAR = 3.5
"""Deviations between the means of two kinds of blocks that the course of a training does not explain."""
CLIPPED = 4.0
"""Spreads from the median beyond which a loss counts as no further off."""
WIDER = 4.0
"""Factor by which the losses of an arm may spread more."""
SURE = 2.5
"""Deviations by which the losses of an arm may lie higher than they seem, and be no worse by a whole spread."""
DOUBTFULLY_WIDER = 2.5
STILL = 1e-3
"""Of the level: losses that hardly move are not measured against nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What was seen in one block of steps besides its times; None is unknown."""

    first_step: int = 0
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    gpu_bytes: tuple[int, ...] = ()
    """Reserved by the allocator, in the order of the steps."""
    rss_bytes: tuple[int, int] | None = None
    """Of the training's process, at the beginning and the end."""
    available_bytes: int | None = None
    """Memory of the machine at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How much there is; None is unknown."""

    card_bytes: int | None = None
    host_bytes: int | None = None


def find_harm(owner: Sequence[Block], arm: Sequence[Block], memory: Memory) -> str | None:
    """Return why an arm is refused whatever it gains; None where no harm was found."""
    if not arm:
        return None
    return (
        _find_non_finite(owner, arm)
        or _find_full_card(owner, arm, memory)
        or _find_full_host(owner, arm, memory)
        or _find_leak(owner, arm, memory)
        or _find_instability("losses", owner, arm, "losses")
        or _find_instability("gradient norms", owner, arm, "grad_norms")
    )


def most_workers(prefetch: int, batch_bytes: int, available_bytes: int, shm_bytes: int) -> int:
    """Return how many workers may draw `prefetch` batches of that size ahead each."""
    room = min(LOADER_SHARE * available_bytes, SHM_SHARE * shm_bytes)
    return int(room // max(1, prefetch * batch_bytes))


def _find_non_finite(owner: Sequence[Block], arm: Sequence[Block]) -> str | None:
    for name, what in (("losses", "loss"), ("grad_norms", "gradient norm")):
        if all(map(math.isfinite, _join(owner, name))) and not all(map(math.isfinite, _join(arm, name))):
            return f"a {what} is no number under it"
    return None


def _find_full_card(owner: Sequence[Block], arm: Sequence[Block], memory: Memory) -> str | None:
    held, before = (max((size for block in blocks for size in block.gpu_bytes), default=0) for blocks in (arm, owner))
    if not memory.card_bytes or held <= max(before, CARD_SHARE * memory.card_bytes):
        return None
    return f"it takes {held / memory.card_bytes:.0%} of the GPU's memory (limit {CARD_SHARE:.0%})"


def _find_full_host(owner: Sequence[Block], arm: Sequence[Block], memory: Memory) -> str | None:
    left, before = (
        min((block.available_bytes for block in blocks if block.available_bytes is not None), default=None)
        for blocks in (arm, owner)
    )
    if not memory.host_bytes or left is None or left >= HOST_SHARE_LEFT * memory.host_bytes:
        return None
    if before is not None and left >= before:
        return None
    return f"it leaves {left / memory.host_bytes:.0%} of the machine's memory (limit {HOST_SHARE_LEFT:.0%})"


def _find_leak(owner: Sequence[Block], arm: Sequence[Block], memory: Memory) -> str | None:
    for what, total, grown in (
        ("the GPU's", memory.card_bytes, _gpu_growth),
        ("the machine's", memory.host_bytes, _host_growth),
    ):
        rises = [rise for block in arm if (rise := grown(block)) is not None]
        usual = max((rise for block in owner if (rise := grown(block)) is not None), default=0)
        newest = rises[-LEAK_BLOCKS:]
        if total and len(newest) == LEAK_BLOCKS and min(newest) > max(2 * usual, LEAK_SHARE * total):
            return f"{what} memory in use grows by {min(newest) / 1e6:.0f} MB in each block of it"
    return None


def _gpu_growth(block: Block) -> int | None:
    return block.gpu_bytes[-1] - block.gpu_bytes[0] if len(block.gpu_bytes) > 1 else None


def _host_growth(block: Block) -> int | None:
    return None if block.rss_bytes is None else block.rss_bytes[1] - block.rss_bytes[0]


def find_doubt(owner: Sequence[Block], arm: Sequence[Block]) -> str | None:
    """Return why so few blocks do not yet show that an arm's losses are no worse; None where they do, or none is known.

    A large gain is settled after two pairs of blocks, in which harm as large as the losses' own spread may not show.
    """
    if len(owner) != len(arm) or len(arm) % 2:
        known = any(block.losses for block in arm) and any(block.losses for block in owner)
        return "a round of blocks is not complete" if known else None
    found = _compare_courses("losses", owner, arm)
    if found is None:
        return None
    most = found.apart + SURE * found.error
    if most > found.width:
        return f"losses may be higher by {most:.2g} under it, at a spread of {found.width:.2g}"
    return f"losses spread {found.wider:.1f} times as far under it" if found.wider > DOUBTFULLY_WIDER else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Courses:
    """How the values of two kinds of blocks differ, without the course that both follow."""

    apart: float
    """By how much the arm's lie higher."""
    error: float
    """Standard error of it, by the usual spread."""
    error_with_hard: float
    """The same with the owner's hard batches, which norms of gradients have most: an arm has as many."""
    width: float
    """Spread of the owner's."""
    wider: float
    """The arm's spread, as a multiple of it."""
    level: float


def _find_instability(what: str, owner: Sequence[Block], arm: Sequence[Block], name: str) -> str | None:
    """Return how the values of an arm are higher or less steady than the owner's; None where they are not."""
    found = _compare_courses(name, owner, arm)
    if found is None:
        return None
    if found.apart > max(FAR * found.error_with_hard, 0.5 * found.width):
        level, width = found.level, found.width
        return f"{what} are higher by {found.apart:.2g} under it, at a level of {level:.2g} and a spread of {width:.2g}"
    return f"{what} spread {found.wider:.1f} times as far under it" if found.wider > WIDER else None


def _compare_courses(name: str, owner: Sequence[Block], arm: Sequence[Block]) -> _Courses | None:
    """Compare the level and the spread of two kinds of blocks; None where there are too few values.

    Judged after whole rounds of A B B A alone, because a training that learns falls from each block to the next.
    """
    rows = [
        (float(block.first_step + place), float(block in arm), value)
        for block in (*owner, *arm)
        for place, value in enumerate(getattr(block, name))
        if math.isfinite(value)
    ]
    counts = [sum(row[1] == kind for row in rows) for kind in (0.0, 1.0)]
    if min(counts) < LOSSES_MIN or len(owner) != len(arm) or len(arm) % 2:
        return None
    apart, left = _fit_course(rows)
    level = abs(median(value for *_, value in rows))
    of_owner, of_arm = ([rest for rest, row in zip(left, rows, strict=True) if row[1] == kind] for kind in (0.0, 1.0))
    width = max(spread(of_owner, median(of_owner)), STILL * level, 1e-12)
    squares = math.fsum(min(abs(value), CLIPPED * width) ** 2 for value in of_owner)
    deviation = max(width, math.sqrt(squares / counts[0]))
    share = math.sqrt(1 / counts[0] + 1 / counts[1])
    return _Courses(
        apart=apart,
        error=width * share,
        error_with_hard=deviation * share,
        width=width,
        wider=spread(of_arm, median(of_arm)) / width,
        level=level,
    )


def _fit_course(rows: Sequence[tuple[float, float, float]]) -> tuple[float, list[float]]:
    """Return by how much the arm's values lie above the owner's on a straight course, and what is left of each."""
    middle = math.fsum(step for step, *_ in rows) / len(rows)
    reach = max(abs(step - middle) for step, *_ in rows) or 1.0
    level = median(value for *_, value in rows)
    limit = CLIPPED * max(spread([value for *_, value in rows], level), STILL * abs(level), 1e-12)
    basis = [(1.0, (step - middle) / reach, is_arm) for step, is_arm, _ in rows]
    # A hard batch counts as no further off than some spreads.
    values = [min(max(value, level - limit), level + limit) for *_, value in rows]
    found = _solve(
        [
            [math.fsum(row[i] * row[j] for row in basis) for j in range(3)]
            + [math.fsum(row[i] * value for row, value in zip(basis, values, strict=True))]
            for i in range(3)
        ]
    )
    left = [
        value - math.fsum(weight * part for weight, part in zip(found, row, strict=True))
        for row, (*_, value) in zip(basis, rows, strict=True)
    ]
    return found[2], left


def _solve(matrix: list[list[float]]) -> list[float]:
    """Return the solution of three linear equations, zero for what they leave open (Gauss and Jordan)."""
    for place in range(3):
        pivot = max(range(place, 3), key=lambda row: abs(matrix[row][place]))
        matrix[place], matrix[pivot] = matrix[pivot], matrix[place]
        if abs(matrix[place][place]) < 1e-12:
            continue
        for row in range(3):
            if row != place:
                share = matrix[row][place] / matrix[place][place]
                matrix[row] = [value - share * other for value, other in zip(matrix[row], matrix[place], strict=True)]
    return [row[3] / row[place] if abs(row[place]) > 1e-12 else 0.0 for place, row in enumerate(matrix)]


def _join(blocks: Sequence[Block], name: str) -> list[float]:
    return [value for block in blocks for value in getattr(block, name)]
