"""The part of a tune that takes starts, as a value: with what the next start is to be, and what the starts have proven.

Every start goes on from the same snapshot, in the order A B B A, where A is the training as it is started and B the
same with one arm. One start is one measurement: two starts of the same settings differ by more than the steps within
one show, by where memory came to lie and what else the machine did. So gains are judged by differences between starts
alone: an arm is started twice at least, and one that is adopted mostly four times. Each further arm is tried on top of
those adopted before; there is no last comparison of all together, which would take as many starts once more: the error
is shared among the arms instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.core.tuning.compare import Outcome, mean_times
from supervisor.core.tuning.guards import Block, Memory, find_doubt, find_harm
from supervisor.core.tuning.knob import Kind
from supervisor.core.tuning.start_comparison import ERROR, StartComparison
from supervisor.core.tuning.start_order import TunedStart
from supervisor.core.tuning.trial import Adopted, Refused

ORDER = "ABBA"
"""A: as it is started; B: with the arm."""
FAR_SLOWER = math.log(1.3)
"""An arm whose first start is this much slower is not started again: each start costs the training its time."""
COMPARED_STEPS = 8
SAMPLES_OFF = 0.05
"""By so large a share the samples of a step may differ from what an arm makes them."""
EXPLAINED: Mapping[Kind, float] = {Kind.SAME_ARITHMETIC: 1e-5, Kind.NUMERICS: 1e-2}
"""Relative difference of the losses of the same steps that a kind of change explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartArm:
    """One thing that a start is tried with."""

    knob: str
    value: str
    """In words."""
    kind: Kind
    env: tuple[tuple[str, str], ...] = ()
    environment: str | None = None
    factors: tuple[tuple[str, float], ...] = ()
    """Settings of the agent, each with what it multiplies."""
    samples_factor: float | None = None
    """How many times as many samples a step has to have under it; None: it changes no batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one start came to."""

    median_s: float
    """Seconds a sample, or a step."""
    seen: Block = field(default_factory=Block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """The starts of a tune, under way or over."""

    queue: tuple[StartArm, ...] = ()
    arm: StartArm | None = None
    """The one on trial; None: over."""
    adopted: tuple[Adopted, ...] = ()
    adopted_arms: tuple[StartArm, ...] = ()
    refused: tuple[Refused, ...] = ()
    comparison: StartComparison = field(default_factory=StartComparison)
    half: Measured | None = None
    """The first start of the pair under way."""
    of_owner: tuple[Measured, ...] = ()
    of_arm: tuple[Measured, ...] = ()
    before_s: float | None = None
    """Seconds a sample as it was started before the tune, and with what was adopted; None: not known."""
    after_s: float | None = None

    @property
    def is_arms_turn(self) -> bool:
        """Whether the next start is one with the arm."""
        return ORDER[self.starts % len(ORDER)] == "B"

    @property
    def starts(self) -> int:
        """How many starts were measured for the arm on trial."""
        return len(self.of_owner) + len(self.of_arm)

    @property
    def starts_to_prove(self) -> int:
        """How many starts more the arm on trial takes at least to be adopted; 0 or less: it had as many."""
        return 2 * self.comparison.pairs_to_prove - self.starts

    @property
    def wanted(self) -> tuple[StartArm, ...] | None:
        """What the next start is to be with; None once it is over."""
        if self.arm is None:
            return None
        return (*self.adopted_arms, self.arm) if self.is_arms_turn else self.adopted_arms

    @property
    def pairs(self) -> int:
        """How many pairs of starts the arm on trial has had."""
        return len(self.comparison.pairs)

    def after_start(self, measured: Measured, memory: Memory | None = None) -> Restarts:
        """Return it after a start as `wanted`; an arm under which harm is seen is refused, however fast it is."""
        if self.arm is None:
            raise ValueError("no start was wanted")
        was_arms = self.is_arms_turn
        made = replace(
            self,
            of_arm=(*self.of_arm, measured) if was_arms else self.of_arm,
            of_owner=self.of_owner if was_arms else (*self.of_owner, measured),
        )
        harm = made._find_harm(memory or Memory())
        if harm is not None:
            # Within a pair: the last start is not the first of another arm.
            return replace(made, half=measured).after_refusal(harm)
        if self.half is None:
            return replace(made, half=measured)
        owner, arm = (self.half, measured) if was_arms else (measured, self.half)
        comparison = self.comparison.after(owner.median_s, arm.median_s)
        return replace(made, comparison=comparison, half=None)._judge(self.arm)

    def _find_harm(self, memory: Memory) -> str | None:
        owner, arm = _blocks(self.of_owner), _blocks(self.of_arm)
        harm = self._find_other_batch() or find_harm(owner, arm, memory) or self._find_other_losses()
        if harm is not None or len(self.of_arm) != 1 or not self.of_owner:
            return harm
        slower = math.log(self.of_arm[0].median_s / self.of_owner[-1].median_s)
        return f"slower by {-math.expm1(-slower):.0%} in its first start" if slower > FAR_SLOWER else None

    def _find_other_batch(self) -> str | None:
        """Return that the batch did not become what the arm makes it, or that steps have other numbers by it."""
        factor = None if self.arm is None else self.arm.samples_factor
        if factor is None or not self.of_arm or not self.of_owner:
            return None
        owner, arm = self.of_owner[-1].seen, self.of_arm[-1].seen
        if owner.samples_per_step is None or arm.samples_per_step is None:
            return "the samples of its steps are not known"
        if abs(arm.samples_per_step / owner.samples_per_step / factor - 1) > SAMPLES_OFF:
            return f"a step has {arm.samples_per_step:g} samples under it, and {owner.samples_per_step:g} without"
        if arm.first_step < owner.first_step:
            first = f"it goes on with step {arm.first_step}, and with step {owner.first_step} without"
            return f"{first}: what was saved before would pass for newer"
        return None

    def _find_other_losses(self) -> str | None:
        """Return that the same steps from the same snapshot have other losses with the arm, where that can be known.

        It can where two starts of the same kind have the same ones: the order of the data is the same in each start.
        """
        if self.arm is None or len(self.of_arm) + len(self.of_owner) < 3 or not self.of_arm or not self.of_owner:
            return None
        limit = EXPLAINED.get(self.arm.kind, math.inf)
        if not is_repeatable(self.of_arm) and not is_repeatable(self.of_owner):
            return None
        for step, mine, theirs in _list_common(self.of_owner[-1].seen, self.of_arm[-1].seen):
            if abs(mine - theirs) > limit * max(abs(mine), abs(theirs)):
                return f"step {step} from the same snapshot has the loss {theirs:.6g} under it, and {mine:.6g} without"
        return None

    def _judge(self, arm: StartArm) -> Restarts:
        verdict = self.comparison.verdict()
        if verdict is None:
            return self
        if verdict.outcome is not Outcome.ADOPTED:
            return self.after_refusal(verdict.why)
        owner, mine = _blocks(self.of_owner), _blocks(self.of_arm)
        is_repeated = is_repeatable(self.of_arm) or is_repeatable(self.of_owner)
        comparable = is_repeated and arm.kind is not Kind.OPTIMISATION
        doubt = None if comparable else find_doubt(owner, mine)
        if doubt is not None and verdict.pairs < self.comparison.pairs_max:
            return self
        if doubt is not None:
            return self.after_refusal(f"not settled after {verdict.pairs} pairs: {doubt}")
        before_s, after_s = mean_times(self.comparison.pairs)
        row = Adopted(
            knob=arm.knob, value=arm.value, gain=verdict.gain, remark="" if comparable else self._explain_losses()
        )
        adopted = replace(
            self,
            adopted=(*self.adopted, row),
            adopted_arms=(*self.adopted_arms, arm),
            before_s=before_s if self.before_s is None else self.before_s,
            after_s=after_s,
        )
        # One environment takes another's place; no two are tried on top of each other.
        rest = tuple(other for other in self.queue if arm.environment is None or other.environment is None)
        # A start with the arm that ended the trial is the next arm's first: it was as the training is started now.
        last = self.of_arm[-1] if self.is_arms_turn else None
        return replace(adopted, queue=rest)._next(last, is_adopted=True)

    def _explain_losses(self) -> str:
        """Return what could be compared of the losses, where the same steps have others in each start."""
        if all(start.seen.losses for start in (*self.of_arm, *self.of_owner)):
            if self.arm is not None and self.arm.kind is Kind.OPTIMISATION:
                return "another training: the course of its losses by samples was compared"
            return "the same steps have other losses in each start: only the course of the losses was compared"
        return "its losses are not reported: they were not compared"

    def after_refusal(self, why: str) -> Restarts:
        """Return it after the arm on trial was found to do harm, or could not be started."""
        if self.arm is None:
            return self
        row = Refused(knob=self.arm.knob, value=self.arm.value, why=why)
        # A start that ended the trial is the next arm's first.
        last = self.of_owner[-1] if self.of_owner and not self.is_arms_turn and self.half is None else None
        return replace(self, refused=(*self.refused, row))._next(last)

    def without_more(self, why: str) -> Restarts:
        """Return it with nothing more tried."""
        rows = [Refused(knob=arm.knob, value=arm.value, why=why) for arm in (self.arm, *self.queue) if arm is not None]
        return replace(self, queue=(), arm=None, half=None, refused=(*self.refused, *rows))

    def _next(self, first: Measured | None, *, is_adopted: bool = False) -> Restarts:
        arm = self.queue[0] if self.queue else None
        comparison = self.comparison
        if self.arm is not None:
            comparison = comparison.next_arm(is_adopted=is_adopted, goes_on=first is not None)
        return replace(
            self,
            queue=self.queue[1:],
            arm=arm,
            comparison=comparison,
            half=None if arm is None else first,
            of_owner=() if first is None else (first,),
            of_arm=(),
        )


def begin_restarts(arms: Sequence[StartArm]) -> Restarts:
    """Return the trial of some arms, one after the other; it is over if there is none."""
    comparison = StartComparison(error=ERROR / max(1, len(arms)))
    return Restarts(queue=tuple(arms), comparison=comparison)._next(None)


def is_repeatable(starts: Sequence[Measured]) -> bool:
    """Whether two starts of the same kind had the same losses at the same steps."""
    if len(starts) < 2:
        return False
    common = _list_common(starts[-2].seen, starts[-1].seen)
    return len(common) >= COMPARED_STEPS and all(
        abs(mine - other) <= EXPLAINED[Kind.SAME_ARITHMETIC] * max(abs(mine), abs(other)) for _, mine, other in common
    )


def start_of(arms: Sequence[StartArm], base: TunedStart | None, command: Sequence[str]) -> TunedStart | None:
    """Return what a start with some arms is, on top of what it is with before them."""
    if not arms:
        return base
    known = base or TunedStart(knobs=())
    return TunedStart(
        knobs=(*known.knobs, *((arm.knob, arm.value) for arm in arms)),
        env=tuple({**known.variables, **{name: value for arm in arms for name, value in arm.env}}.items()),
        environment=next((arm.environment for arm in reversed(arms) if arm.environment), known.environment),
        factors=tuple(_multiply([*known.factors, *(factor for arm in arms for factor in arm.factors)]).items()),
        command=tuple(command),
    )


def _multiply(factors: Sequence[tuple[str, float]]) -> Mapping[str, float]:
    """Return the product of the factors of each setting: what is proven on top of another holds with it."""
    found: dict[str, float] = {}
    for name, factor in factors:
        found[name] = found.get(name, 1.0) * factor
    return found


def _list_common(first: Block, second: Block) -> list[tuple[int, float, float]]:
    """Return the first steps that two starts both made from the same snapshot, with the loss of each."""
    if first.first_step != second.first_step:
        return []
    steps = range(first.first_step, first.first_step + COMPARED_STEPS)
    return list(zip(steps, first.losses, second.losses))  # noqa: B905 - as far as the shorter one goes


def _blocks(starts: Sequence[Measured]) -> list[Block]:
    return [start.seen for start in starts]
