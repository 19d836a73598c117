"""What a tune tries, as values: one value of one knob, the comparison of it that is under way, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.core.tuning.compare import Comparison, Gain
from supervisor.core.tuning.guards import Block, find_doubt

ORDER = "ABBA"
"""A: the settings to beat; B: the arm."""
FURTHER_ORDER = "BABA"
"""That of further blocks of an arm with which the GPU computes less, and whose steps are too uneven to prove it.

Noise that steps keep for a while is more alike in blocks that alternate: the mean of as many steps of a YOLO differs by
a quarter less. Each four of them ends with the settings to beat, as the first ones do. A pace that falls steadily does
not cancel: one that falls by a tenth in thirty blocks counts as 0.3 % for the arm.
"""
CONFIRMING_ORDER = "BAAB"
"""Begins and ends with what holds already, and will: each change of a loader's workers costs many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One value of one knob."""

    knob: str
    value: object
    stop_after_loss: bool = False
    stop_after_gain: bool = False
    postponed: bool = False
    """Whether it was put behind the others, which may bring about what it needs."""
    again_after: tuple[str, ...] = ()
    """Knobs that may make a gain of it, if they are adopted after it was none."""
    along: tuple[tuple[str, object], ...] = ()
    """Values of other knobs that are tried and adopted with it."""
    falls_apart: bool = False
    """Whether it is tried without them where it was refused with them."""
    came_apart: bool = False
    """Whether it was refused with others, and is to be tried by itself."""
    idle_under: str | None = None
    """The knob under which it changes nothing, once that is adopted."""
    is_costly: bool = False
    """Whether each change of it costs many steps."""
    keeps_losses: bool = False
    """Whether its gain need not wait until losses are known to be no worse; clear harm is looked for in any case."""
    after_review: bool = False
    """Whether it is tried once what may cost was left out."""
    leaves_out: bool = False
    """Whether it is an adopted value that is tried to be left out, with the values along in its place."""

    @property
    def comes_apart(self) -> bool:
        """Whether there is something that it is tried without where it is refused."""
        return self.falls_apart and bool(self.along)

    @property
    def settings(self) -> Mapping[str, object]:
        """What it sets."""
        return {**({} if self.leaves_out else {self.knob: self.value}), **dict(self.along)}

    @property
    def words(self) -> str:
        """What is tried."""
        words = name_values(self.settings)
        if not self.leaves_out:
            return words
        return f"{words} in place of {self.left_out}" if words else f"without {self.left_out}"

    @property
    def left_out(self) -> str:
        """What it leaves out, in words."""
        return f"{self.knob} = {format_value(self.value)}"

    def change(self, base: Mapping[str, object]) -> Mapping[str, object]:
        """Return the settings under trial on top of others."""
        kept = {knob: value for knob, value in base.items() if not (self.leaves_out and knob == self.knob)}
        return {**kept, **self.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A value that was proven."""

    knob: str
    value: object
    gain: Gain
    remark: str = ""
    """What could not be compared, for a person."""
    is_joint: bool = False
    """Whether it was proven only with others, as one arm."""
    later_gain: float | None = None
    """What others have gained since."""
    is_costly: bool = False
    idle_under: str | None = None
    in_place_of: Adopted | None = None
    """What it has replaced, and what holds again if it is not confirmed."""

    def after(self, gain: Gain) -> Adopted:
        """Return the value after others have gained as much."""
        return replace(self, later_gain=(1 + (self.later_gain or 0.0)) * (1 + gain.gain) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A value that was not adopted, and why."""

    knob: str
    value: object
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A comparison under way; without an arm it is that of everything adopted with the owner's settings."""

    arm: Arm | None
    base: Mapping[str, object]
    settings: Mapping[str, object]
    comparison: Comparison = field(default_factory=Comparison)
    blocks: tuple[float, ...] = ()
    """Medians of the blocks of the pair under way."""
    seen_of_owner: tuple[Block, ...] = ()
    seen_of_arm: tuple[Block, ...] = ()
    """What else was seen in the blocks so far."""
    alternates_from: int | None = None
    """The block from which on they alternate, None where they do not."""

    @property
    def keeps_losses(self) -> bool:
        """Whether what is tried makes losses no little worse."""
        return self.arm is not None and self.arm.keeps_losses

    def turn_of(self, block: int) -> str:
        """Return whose turn a block is, of those counted from 0: that of the settings to beat, A, or of the arm, B."""
        if self.arm is None:
            return CONFIRMING_ORDER[block % 4]
        is_further = self.alternates_from is not None and block >= self.alternates_from
        return (FURTHER_ORDER if is_further else ORDER)[block % 4]

    @property
    def block(self) -> int:
        """How many blocks were made."""
        return 2 * len(self.comparison.pairs) + len(self.blocks)

    @property
    def wanted(self) -> Mapping[str, object]:
        """The settings of the next block."""
        return self.settings_of(self.block)

    def settings_of(self, block: int) -> Mapping[str, object]:
        """Return the settings of a block, of those counted from 0."""
        return self.settings if self.turn_of(block) == "B" else self.base

    @property
    def is_begun(self) -> bool:
        """Whether a step was made with the arm's settings."""
        return self.block > (0 if self.arm is None else 1)

    @property
    def may_be_traced(self) -> bool:
        """Whether what the GPU computes with the arm may decide on it."""
        return self.arm is not None and not self.arm.is_costly and not self.arm.leaves_out

    @property
    def is_switch_next(self) -> bool:
        """Whether the block after the next one is of other settings."""
        return self.turn_of(self.block) != self.turn_of(self.block + 1)

    def alternating(self) -> Trial:
        """Return the trial with blocks that alternate from the next round on, where it is between two rounds."""
        is_between = self.alternates_from is None and self.block > 0 and self.block % len(ORDER) == 0
        return replace(self, alternates_from=self.block) if is_between else self

    @property
    def is_arms_turn(self) -> bool:
        """Whether the next block is one of the arm's settings."""
        return self.turn_of(self.block) == "B"

    def find_doubt(self) -> str | None:
        """Return why its whole rounds of blocks do not show yet that losses are no worse; None where they do."""
        whole = len(self.comparison.pairs) // 2 * 2
        return find_doubt(self.seen_of_owner[:whole], self.seen_of_arm[:whole])

    def after(self, median_s: float, seen: Block | None = None) -> Trial:
        """Return the trial with one more block."""
        known = () if seen is None else (seen,)
        if self.is_arms_turn:
            noted = replace(self, seen_of_arm=(*self.seen_of_arm, *known))
        else:
            noted = replace(self, seen_of_owner=(*self.seen_of_owner, *known))
        if not self.blocks:
            return replace(noted, blocks=(median_s,))
        first, arm_first = self.blocks[0], self.turn_of(self.block - 1) == "B"
        owner_s, arm_s = (median_s, first) if arm_first else (first, median_s)
        return replace(noted, comparison=self.comparison.after(owner_s, arm_s), blocks=())

    def lengthened(self, median_s: float, seen: Block) -> Trial:
        """Return the trial with another median for its newest block, which has more steps, and with what they saw."""
        if not self.block:
            return self
        of_arm = self.turn_of(self.block - 1) == "B"
        if of_arm:
            noted = replace(self, seen_of_arm=_lengthen_last(self.seen_of_arm, seen))
        else:
            noted = replace(self, seen_of_owner=_lengthen_last(self.seen_of_owner, seen))
        if self.blocks:
            return replace(noted, blocks=(median_s,))
        *pairs, (owner_s, arm_s) = self.comparison.pairs
        newest = (owner_s, median_s) if of_arm else (median_s, arm_s)
        return replace(noted, comparison=replace(self.comparison, pairs=(*pairs, newest)))


def name_values(settings: Mapping[str, object]) -> str:
    """Return settings as they are named to a person."""
    return ", ".join(f"{knob} = {format_value(value)}" for knob, value in settings.items())


def format_value(value: object) -> str:
    """Return a knob's value as it is written in a configuration."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lengthen_last(blocks: tuple[Block, ...], seen: Block) -> tuple[Block, ...]:
    return (*blocks[:-1], blocks[-1].with_more(seen)) if blocks else blocks
