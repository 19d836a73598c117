"""Whether settings under trial do harm that no clock shows: memory short or leaking, and losses that are unsteady.

The owner's blocks, made in turn with the arm's, are the measure: what they do as well is not the arm's doing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import mul
from statistics import fmean

from supervisor.core.stats.median import median, quantile, spread
from supervisor.core.units import MB

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
LOSSES_MIN = 10
FAR = 3.5
"""Deviations between the means of two kinds of blocks that the course of a training does not explain."""
BENT = 3.0
"""Deviations from which on a course is known to be bent."""
CLIPPED = 4.0
"""Spreads from the median beyond which a loss counts as no further off."""
WIDER = 4.0
"""Factor by which the losses of an arm may spread more."""
WIDER_ROUNDS = 2
"""Rounds of blocks one after the other in which they do."""
SURE = 2.5
"""Deviations by which the losses of an arm may lie higher than they seem, and be no worse by a whole spread."""
DOUBTFULLY_WIDER = 2.5
SURELY_NO_WIDER = 2.0
"""Deviations by which the losses of an arm may spread more than they seem to, and no WIDER times as far."""
BURST = 2.0
"""Times the owner's usual norm of gradients, from which on it is a burst: young decoders have one in four steps."""
USUAL = 0.25
"""Share of the owner's norms below the usual one. With a median, a few that burst by chance hide those of an arm."""
CHANCE = 2e-4
"""Probability below which an arm's bursts are not those of the owner, who has fewer."""
DOUBTFUL_CHANCE = 0.05
STILL = 1e-3
"""Of the level: losses that hardly move are not measured against nothing."""
RELEVANT = {"losses": 0.01, "grad_norms": 0.5}
"""Of the level: what an arm may add. Half precision explains a hundredth of a loss, where losses of neighbouring steps
may differ by a thousandth; and norms that are no half as large again do not run away."""
RELEVANT_SPREADS = 4.0
"""But no more than so many spreads of the owner's: the level of some losses is mostly a constant."""

MEAN_TO_SIGMA = math.sqrt(math.pi / 2)
"""The mean absolute deviation of a normal distribution times this is its standard deviation."""
MEANS_ERROR = math.sqrt(math.pi / 2 - 1)
"""Standard error of a mean absolute deviation of one value, as a share of it."""
KEPT_ROUNDS = 2
"""Rounds of two blocks each, before which losses show nothing of an arm that computes them as the owner does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What was seen in one block of steps besides its times; None is unknown."""

    first_step: int = 0
    samples_per_step: float | None = None
    """Where steps of the two kinds have other numbers of samples: both went on from the same state at its first."""
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    gpu_bytes: tuple[int, ...] = ()
    """Reserved by the allocator, in the order of the steps."""
    rss_bytes: tuple[int, int] | None = None
    """Of the training's process, at the beginning and the end."""
    available_bytes: int | None = None
    """Memory of the machine at the end."""

    def followed_by(self, later: Block) -> Block:
        """Return this block with the steps of the one that came after it under the same settings."""
        began, ended = self.rss_bytes, later.rss_bytes
        return replace(
            later,
            first_step=self.first_step,
            losses=(*self.losses, *later.losses),
            grad_norms=(*self.grad_norms, *later.grad_norms),
            gpu_bytes=(*self.gpu_bytes, *later.gpu_bytes),
            rss_bytes=None if began is None or ended is None else (began[0], ended[1]),
        )

    def with_more(self, later: Block) -> Block:
        """Return this block with the losses and gradients of steps that followed it: memory was looked at before."""
        losses, grad_norms = (*self.losses, *later.losses), (*self.grad_norms, *later.grad_norms)
        return replace(self, losses=losses, grad_norms=grad_norms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How much there is; None is unknown."""

    card_bytes: int | None = None
    host_bytes: int | None = None


def find_harm(
    owner: Sequence[Block], arm: Sequence[Block], memory: Memory, *, keeps_losses: bool = False
) -> str | None:
    """Return why an arm is refused whatever it gains; None where no harm was found.

    Of one that `keeps_losses`, as more workers do, one round shows nothing of them: what a young training does once is
    likelier the cause.
    """
    if not arm:
        return None
    harm = (
        _find_non_finite(owner, arm)
        or _find_full_card(owner, arm, memory)
        or _find_full_host(owner, arm, memory)
        or _find_leak(owner, arm, memory)
    )
    if harm is not None or (keeps_losses and len(arm) < 2 * KEPT_ROUNDS):
        return harm
    return (
        _find_instability("losses", owner, arm, "losses")
        or _find_instability("gradient norms", owner, arm, "grad_norms")
        or _find_bursts(owner, arm, CHANCE)
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
            return f"{what} memory in use grows by {min(newest) / MB:.0f} MB in each block of it"
    return None


def _gpu_growth(block: Block) -> int | None:
    return block.gpu_bytes[-1] - block.gpu_bytes[0] if len(block.gpu_bytes) > 1 else None


def _host_growth(block: Block) -> int | None:
    return None if block.rss_bytes is None else block.rss_bytes[1] - block.rss_bytes[0]


def find_doubt(owner: Sequence[Block], arm: Sequence[Block]) -> str | None:
    """Return why so few blocks do not yet show that an arm's losses are no worse; None where they do, or none is known.

    A large gain is settled after two pairs of blocks, in which harm as large as the losses' own spread may not show,
    and in which a bent course and higher losses of the arm look alike.
    """
    known = any(block.losses for block in arm) and any(block.losses for block in owner)
    if len(owner) != len(arm) or len(arm) % 2:
        return "a round of blocks is not complete" if known else None
    bursts = _find_bursts(owner, arm, DOUBTFUL_CHANCE)
    if bursts is not None:
        return bursts
    courses = _compare_courses("losses", owner, arm)
    if courses is None:
        return "its losses are too few" if known else None
    straight, bent = courses
    found = bent if straight.is_harm or bent.is_bent else straight
    most = found.apart + SURE * found.error
    if most > max(found.width, found.relevant):
        return f"losses may be higher by {most:.2g} under it, at a spread of {found.width:.2g}"
    return _find_wider(owner, arm, 1, DOUBTFULLY_WIDER) or _find_perhaps_wider(owner, arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How the values of two kinds of blocks differ, without the course that both follow."""

    apart: float
    """By how much the arm's lie higher."""
    error: float
    """Standard error of it, by the usual spread."""
    error_with_hard: float
    """The same with hard batches, which norms of gradients have most: an arm may have drawn more than the owner.

    By the owner's alone a YOLO's losses, of which one in twelve lies far up, had one in ninety arms without effect
    refused within six pairs of blocks; by those of both it is one in three hundred.
    """
    width: float
    """Spread of the owner's."""
    wider: float
    """The arm's spread within its blocks, as a multiple of the owner's."""
    wider_error: float
    """Standard error of its logarithm."""
    arm_width: float
    level: float
    relevant: float
    """What an arm may add to the level, or to its spread."""
    is_bent: bool

    @property
    def is_harm(self) -> bool:
        """Whether the arm's values are higher by more than chance and than matters."""
        return self.apart > max(FAR * self.error_with_hard, 0.5 * self.width, self.relevant)

    def is_wider(self, limit: float) -> bool:
        """Whether the arm's values spread more than `limit` times as far, and far enough to matter."""
        return self.wider > limit and self.arm_width > self.relevant


def _find_instability(what: str, owner: Sequence[Block], arm: Sequence[Block], name: str) -> str | None:
    """Return how the values of an arm are higher or less steady than the owner's; None where they are not.

    Higher on a straight course and on a bent one: where only one of them tells it, more blocks have to.
    """
    courses = _compare_courses(name, owner, arm)
    if courses is None:
        return None
    found = min(courses, key=lambda course: course.apart)
    if all(course.is_harm for course in courses):
        level, width = found.level, found.width
        return f"{what} are higher by {found.apart:.2g} under it, at a level of {level:.2g} and a spread of {width:.2g}"
    # A few bursts among steady norms are spread as they are: they are counted.
    return _find_wider(owner, arm, WIDER_ROUNDS, WIDER) if name == "losses" else None


def _find_wider(owner: Sequence[Block], arm: Sequence[Block], rounds: int, limit: float) -> str | None:
    """Return that the losses of an arm spread more than `limit` times as far in each of its newest rounds.

    The blocks of an arm lie in the middle of a round: what a young training does once, there and in no other round, is
    not the arm's doing.
    """
    newest = [_compare_courses("losses", *(kind[end - 2 : end] for kind in (owner, arm))) for end in _ends(arm, rounds)]
    courses = [found[0] for found in newest if found is not None]
    if len(courses) < rounds or not all(course.is_wider(limit) for course in courses):
        return None
    return f"losses spread {min(course.wider for course in courses):.1f} times as far under it"


def _find_perhaps_wider(owner: Sequence[Block], arm: Sequence[Block]) -> str | None:
    """Return that all rounds together do not show yet that the losses of an arm spread less than WIDER times as far.

    A round counts as no more than that: what a young training does once is made up for by the next rounds.
    """
    rounds = [
        _compare_courses("losses", *(kind[end - 2 : end] for kind in (owner, arm))) for end in _ends(arm, len(arm))
    ]
    courses = [found[0] for found in rounds if found is not None]
    if not courses or max(course.arm_width for course in courses) <= max(course.relevant for course in courses):
        return None
    logs = [math.log(min(max(course.wider, 1.0), WIDER)) for course in courses]
    error = math.sqrt(math.fsum(course.wider_error**2 for course in courses)) / len(courses)
    most = math.exp(fmean(logs) + SURELY_NO_WIDER * error)
    return f"losses may spread {most:.1f} times as far under it" if most > WIDER else None


def _ends(arm: Sequence[Block], rounds: int) -> range:
    """Return where each of the newest rounds of two blocks ends; fewer where there were not so many."""
    return range(len(arm), max(1, len(arm) - 2 * rounds), -2)


def _find_bursts(owner: Sequence[Block], arm: Sequence[Block], chance: float) -> str | None:
    """Return that the gradients of an arm burst more often than chance makes them, where they do.

    By Fisher's exact test: where all bursts belong to steps alike, how likely so many of them fall to the arm.
    """
    of_owner, of_arm = (
        [value for block in blocks for value in block.grad_norms if math.isfinite(value)] for blocks in (owner, arm)
    )
    if min(len(of_owner), len(of_arm)) < LOSSES_MIN:
        return None
    limit = BURST * quantile(sorted(of_owner), USUAL)
    mine, theirs = (sum(value > limit for value in values) for values in (of_arm, of_owner))
    total, bursts = len(of_owner) + len(of_arm), mine + theirs
    counts = range(mine, min(bursts, len(of_arm)) + 1)
    ways = sum(math.comb(bursts, k) * math.comb(total - bursts, len(of_arm) - k) for k in counts)
    if ways / math.comb(total, len(of_arm)) >= chance:
        return None
    return (
        f"gradients burst in {mine} of {len(of_arm)} steps under it, beyond {limit:.2g}, "
        f"and in {theirs} of {len(of_owner)} of the owner's"
    )


def _compare_courses(name: str, owner: Sequence[Block], arm: Sequence[Block]) -> tuple[_Course, _Course] | None:
    """Compare two kinds of blocks on a straight and on a bent course; None where there are too few values.

    Judged after whole rounds of A B B A alone, because a training that learns falls from each block to the next.
    """
    by_samples = all(block.samples_per_step is not None for block in (*owner, *arm))
    rows = [
        (place * (block.samples_per_step or 1) if by_samples else float(block.first_step + place), is_arm, value)
        for is_arm, blocks in ((0.0, owner), (1.0, arm))
        for block in blocks
        for place, value in enumerate(getattr(block, name))
        if math.isfinite(value)
    ]
    if min(_count_kinds(rows)) < LOSSES_MIN or len(owner) != len(arm) or len(arm) % 2:
        return None
    level = abs(median(value for *_, value in rows))
    steady, restless = (max(_measure_width(blocks, name), STILL * level, 1e-12) for blocks in (owner, arm))
    found = [_fit(rows, level, name, steady, restless, bends=bends) for bends in (False, True)]
    return found[0], found[1]


def _count_kinds(rows: Sequence[tuple[float, float, float]]) -> tuple[int, int]:
    """Return how many of some values are the owner's, and how many the arm's."""
    of_arm = sum(is_arm > 0 for _, is_arm, _ in rows)
    return len(rows) - of_arm, of_arm


def _measure_width(blocks: Sequence[Block], name: str) -> float:
    """Return the standard deviation of values about the mean of their block and the slope that all blocks have.

    However fast a training learns, that is not in it. By the mean deviation, of which a hard batch counts as no further
    off than some spreads: the median of the differences of ten neighbours is far less exact, and took losses for
    steady in one of 25 rounds that spread seven times as far.
    """
    known = [list(filter(math.isfinite, getattr(block, name))) for block in blocks]
    known = [[value - middle for value in values] for values in filter(None, known) for middle in [median(values)]]
    limit = CLIPPED * spread([value for values in known for value in values] or [0.0], 0.0)
    known = [[min(max(value, -limit), limit) for value in values] for values in known]
    apart = [value - middle for values in known for middle in [fmean(values)] for value in values]
    places = [place - (len(values) - 1) / 2 for values in known for place in range(len(values))]
    slope = _multiply(places, apart) / (_multiply(places, places) or 1.0)
    left = math.fsum(abs(value - slope * place) for value, place in zip(apart, places, strict=True))
    degrees = len(apart) - len(known) - 1
    return MEAN_TO_SIGMA * left / math.sqrt(degrees * len(apart)) if degrees > 0 else 0.0


def _fit(  # noqa: PLR0913 - what is known of the values, and the kind of course
    rows: Sequence[tuple[float, float, float]], level: float, name: str, steady: float, restless: float, *, bends: bool
) -> _Course:
    """Return how the arm's values differ from the owner's on a course of one kind."""
    apart, left, share, bend = _fit_course(rows, bends=bends)
    of_owner = list(compress(left, (not is_arm for _, is_arm, _ in rows)))
    width = max(spread(of_owner, median(of_owner)), STILL * level, 1e-12)
    squares = math.fsum(min(abs(value), CLIPPED * width) ** 2 for value in left)
    deviation = max(width, math.sqrt(squares / len(left)))
    return _Course(
        apart=apart,
        error=width * share,
        error_with_hard=deviation * share,
        width=width,
        wider=restless / steady,
        wider_error=math.sqrt(math.fsum(MEANS_ERROR**2 / max(1, count - 3) for count in _count_kinds(rows))),
        arm_width=restless,
        level=level,
        relevant=min(RELEVANT[name] * level, RELEVANT_SPREADS * width),
        is_bent=abs(bend) > BENT * deviation,
    )


def _fit_course(rows: Sequence[tuple[float, float, float]], *, bends: bool) -> tuple[float, list[float], float, float]:
    """Return by how much the arm's values lie above the owner's on a common course, and what is left of each.

    Also the standard errors of the first for values that spread by one, and the bend in its own standard errors.
    """
    middle = math.fsum(step for step, *_ in rows) / len(rows)
    reach = max(abs(step - middle) for step, *_ in rows) or 1.0
    level = median(value for *_, value in rows)
    limit = CLIPPED * max(spread([value for *_, value in rows], level), STILL * abs(level), 1e-12)
    basis = [
        (1.0, place, is_arm, *([place * place] if bends else []))
        for step, is_arm, _ in rows
        for place in [(step - middle) / reach]
    ]
    # A hard batch counts as no further off than some spreads.
    weights, left = _solve(basis, [min(max(value, level - limit), level + limit) for *_, value in rows])
    bend = weights[3] / _standard_error(basis, 3) if bends else 0.0
    return weights[2], left, _standard_error(basis, 2), bend


def _standard_error(basis: Sequence[Sequence[float]], place: int) -> float:
    """Return the standard error of one weight of a fit to values that spread by one."""
    _, left = _solve([[*row[:place], *row[place + 1 :]] for row in basis], [row[place] for row in basis])
    squares = _multiply(left, left)
    return 1 / math.sqrt(squares) if squares > 1e-12 else math.inf


def _solve(basis: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the weights whose sums come nearest to some values, and what is left of each value (Gauss and Jordan).

    A weight is zero where they leave it open.
    """
    size = len(basis[0])
    columns = [[row[place] for row in basis] for place in range(size)]
    matrix = [[*(_multiply(column, other) for other in columns), _multiply(column, values)] for column in columns]
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(matrix[row][place]))
        matrix[place], matrix[pivot] = matrix[pivot], matrix[place]
        if abs(matrix[place][place]) < 1e-12:
            continue
        for row in range(size):
            if row != place:
                share = matrix[row][place] / matrix[place][place]
                matrix[row] = [value - share * matrix[place][at] for at, value in enumerate(matrix[row])]
    weights = [row[size] / row[place] if abs(row[place]) > 1e-12 else 0.0 for place, row in enumerate(matrix)]
    return weights, [value - _multiply(weights, basis[at]) for at, value in enumerate(values)]


def _multiply(first: Iterable[float], second: Iterable[float]) -> float:
    """Return the sum of the products."""
    return math.fsum(map(mul, first, second))


def _join(blocks: Sequence[Block], name: str) -> list[float]:
    return [value for block in blocks for value in getattr(block, name)]
