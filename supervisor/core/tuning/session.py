"""One tune as a value: which settings the next block of steps has, and what the blocks so far have proven.

Arms are tried one after the other on top of what was adopted before; at the end the owner's settings are compared with
all that was adopted together, because gains do not multiply. Only what that last comparison proves is adopted. Before
it each value that may cost is left out once: one that was proven only with others, or before others gained much. A
loader's workers that gained a multiple by themselves are not exchanged once more for it, which takes a quarter of a
tune's steps: the rest is compared with them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.core.tuning.compare import (
    CONFIRMING_LOOKS,
    PAIRS_MAX,
    SMALLEST_GAIN,
    Comparison,
    Outcome,
    Verdict,
    find_most_of,
    judge_bounds,
    mean_times,
)
from supervisor.core.tuning.gpu_time import GPU_GAIN_MIN, GpuTimes, is_unclear, judge_last, judge_steps
from supervisor.core.tuning.gpu_time import LOOKS as GPU_LOOKS
from supervisor.core.tuning.guards import Block, Memory, find_doubt, find_harm
from supervisor.core.tuning.knob import Facts, Knob, NotTried
from supervisor.core.tuning.trial import Adopted, Arm, Refused, Trial, format_value, name_values

CONFIRMING = "all together"
PROVEN_ALONE = 0.25
"""Lower bound of a gain over the owner's settings that is not proven once more, where each change costs many steps."""
STARVED_BLOCKS, STARVED_GAIN = 3, 2.0
"""Two blocks of new workers follow the owner's first one: each has to be as many times as fast, or more of them."""
TURNING = 0.25
"""Gained after a value was adopted, from which on it may cost: something else holds the training back by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Settings that were proven over the owner's with a gain so large that it is not proven once more."""

    settings: Mapping[str, object]
    verdict: Verdict
    before_s: float
    """Seconds a sample with the owner's settings, and with these."""
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A tune under way, or ended once `trial` is None."""

    queue: tuple[Arm, ...] = ()
    trial: Trial | None = None
    adopted: tuple[Adopted, ...] = ()
    """Confirmed together once the session has ended; until then each for itself."""
    refused: tuple[Refused, ...] = ()
    left: tuple[NotTried, ...] = ()
    beaten: tuple[Arm, ...] = ()
    """Arms that were no gain, and may yet be one."""
    ruled_out: tuple[Arm, ...] = ()
    """Arms that change nothing under what was adopted."""
    alike: Comparison = field(default_factory=Comparison)
    """What the trials before have shown of by how much blocks differ."""
    gpu_times: GpuTimes = field(default_factory=GpuTimes)
    is_reviewed: bool = False
    """Whether what may cost of all that was adopted is left out once, or was."""
    unfinished: Trial | None = None
    """That of an arm with which the GPU computes less, which no steps were left for before the last comparison."""
    confirmed: Verdict | None = None
    alone: Alone | None = None
    """What was proven by itself, and is not once more."""
    first: Alone | None = None
    """What steps proved first, over the owner's settings: it holds where none are left to prove the rest with it."""
    before_s: float | None = None
    """Seconds a sample with the owner's settings, and with what was adopted, of the last comparison."""
    after_s: float | None = None

    @property
    def settings(self) -> Mapping[str, object]:
        """What was adopted so far, by knob."""
        return {row.knob: row.value for row in self.adopted}

    @property
    def confirming_base(self) -> Mapping[str, object]:
        """What all that was adopted is compared with in the end: what was proven alone, if that holds, or nothing."""
        alone = {} if self.alone is None else self.alone.settings
        return alone if alone.items() <= self.settings.items() else {}

    @property
    def wanted(self) -> Mapping[str, object] | None:
        """The settings of the next block, of knobs alone; None once the session has ended."""
        return None if self.trial is None else self.trial.wanted

    @property
    def wants_trace(self) -> bool:
        """Whether the next block is to be traced once it was made: its settings may gain what steps are slow to show.

        What the trace delays is then none of a block: a switch follows.
        """
        trial = self.trial
        if trial is None or not trial.may_be_traced or not trial.comparison.pairs:
            return False
        return trial.is_switch_next and is_unclear(trial.comparison) and self.gpu_times.lacks(trial.wanted)

    @property
    def is_fed_once(self) -> bool:
        """Whether the trial under way has its first block and the first two of the arm."""
        return self.trial is not None and self.trial.block == STARVED_BLOCKS

    @property
    def tried(self) -> str:
        """What is being tried now, in words."""
        if self.trial is None:
            return "nothing"
        return CONFIRMING if self.trial.arm is None else self.trial.arm.words

    def having(self, median_s: float, seen: Block | None = None) -> Session:
        """Return the session with a block that was just made with what the trial under way begins with."""
        if self.trial is None or self.trial.block:
            return self
        return replace(self, trial=self.trial.after(median_s, seen))

    def lengthened(self, median_s: float, seen: Block) -> Session:
        """Return the session whose newest block has more steps, and with them another median."""
        return self if self.trial is None else replace(self, trial=self.trial.lengthened(median_s, seen))

    def begun_again(self) -> Session:
        """Return the session with the trial under way as it was before its first block."""
        if self.trial is None:
            return self
        return replace(
            self,
            trial=replace(
                self.trial,
                comparison=replace(self.trial.comparison, pairs=()),
                blocks=(),
                seen_of_owner=(),
                seen_of_arm=(),
            ),
        )

    def after_block(self, median_s: float, seen: Block | None = None, memory: Memory | None = None) -> Session:
        """Return the session after a block of `wanted` settings whose median step took `median_s` a sample.

        An arm under which harm is `seen` is refused, however fast it is.
        """
        if self.trial is None:
            raise ValueError("the tune has ended: no block was wanted")
        trial = self.trial.after(median_s, seen)
        harm = find_harm(trial.seen_of_owner, trial.seen_of_arm, memory or Memory(), keeps_losses=trial.keeps_losses)
        gpu_gain = self.gpu_times.find_gain(trial.base, trial.settings) if trial.arm or trial.base else None
        is_supported = trial.may_be_traced and gpu_gain is not None and gpu_gain >= GPU_GAIN_MIN
        made = replace(self, trial=trial.alternating() if is_supported else trial)
        if harm is not None:
            return made.after_refusal(harm)
        is_awaited = self.gpu_times.is_traceable and trial.may_be_traced
        verdict = None if trial.blocks else judge_steps(trial.comparison, gpu_gain, is_awaited=is_awaited)
        if verdict is None:
            return made
        if verdict.outcome is Outcome.ADOPTED and not trial.keeps_losses:
            doubt = find_doubt(trial.seen_of_owner, trial.seen_of_arm)
            if doubt is not None and verdict.pairs < PAIRS_MAX:
                return made
            if doubt is not None:
                return made.after_refusal(f"not settled after {verdict.pairs} pairs: {doubt}")
        return made._settle(trial, verdict)

    def after_starving(self, owner_s: Sequence[float], further_s: Sequence[float] = ()) -> Session | None:
        """Return the session with new workers settled that ended a long wait, where blocks of theirs prove it.

        To exchange them twice more, for another block of the owner's, takes a seventh of a tune's steps: each part of
        the owner's steps before, a sample of which took `owner_s`, makes a pair with a block of theirs. `further_s` are
        those after the first two. None where it is not proven.
        """
        trial = self.trial
        if trial is None or trial.arm is None or trial.base or trial.block != STARVED_BLOCKS:
            return None
        if not (trial.arm.is_costly and trial.keeps_losses):
            return None
        made_s = (trial.comparison.pairs[0][1], trial.blocks[0], *further_s)
        comparison = replace(trial.comparison, pairs=tuple(zip(owner_s, made_s, strict=True)))
        verdict = comparison.verdict()
        is_clear = all(before_s >= STARVED_GAIN * after_s for before_s, after_s in comparison.pairs)
        if verdict is None or verdict.outcome is not Outcome.ADOPTED or not is_clear:
            return None
        seen = trial.seen_of_arm[-1] if trial.seen_of_arm else None
        return self._settle(replace(trial, comparison=comparison, blocks=()), verdict).having(made_s[-1], seen)

    def after_refusal(self, why: str, *, for_now: bool = False) -> Session:
        """Return the session after the arm under way could not be applied, or was found to do harm.

        `for_now`: it could not be applied, and other knobs may change that.
        """
        if self.trial is None:
            return self
        arm, learned = self.trial.arm, self._learn(self.trial)
        if arm is None:
            return learned._drop_newest(why)
        return (learned._beaten(arm) if for_now else learned._fall_apart(arm))._refuse(arm, why)

    def after_last_block(self, why: str) -> Session:
        """Return the session with the arm under way settled by its pairs, as no more are made; else refused for `why`.

        Only what the GPU computes with it can decide then: steps alone would have.
        """
        trial = self.trial
        if trial is None or trial.arm is None:
            return self
        verdict = judge_last(trial.comparison, self.gpu_times.find_gain(trial.base, trial.settings))
        if verdict is None or verdict.outcome is not Outcome.ADOPTED or trial.blocks:
            return self._keep_unfinished(trial).after_refusal(why)
        if not trial.keeps_losses and trial.find_doubt() is not None:
            return self.after_refusal(why)
        return self._settle(trial, verdict)

    def _keep_unfinished(self, trial: Trial) -> Session:
        """Return the session that goes on with a trial after the last comparison, if steps are left by then."""
        gpu_gain, arm = self.gpu_times.find_gain(trial.base, trial.settings), trial.arm
        if self.unfinished is not None or trial.blocks or gpu_gain is None or gpu_gain < GPU_GAIN_MIN:
            return self
        is_plain = arm is not None and not arm.along and not arm.leaves_out
        # With fewer pairs the last comparison shows as much of its losses as they do.
        return replace(self, unfinished=trial) if is_plain and len(trial.comparison.pairs) >= GPU_LOOKS[0] else self

    def _go_on_unfinished(self) -> Session:
        """Return the session whose adopted values were confirmed with the trial that no steps were left for before.

        It compares with all of these: what it proves needs no further comparison.
        """
        trial = self.unfinished
        if trial is None or trial.arm is None or trial.base != self.settings:
            return self
        given_up = (trial.arm.knob, trial.arm.value)
        refused = tuple(row for row in self.refused if (row.knob, row.value) != given_up)
        return replace(self, trial=trial, refused=refused)

    def _adopt_last(self, arm: Arm, verdict: Verdict) -> Session:
        """Return the session ended with one more value, proven over all that was confirmed."""
        kept = tuple(old.after(verdict.gain) for old in self.adopted)
        after_s = None if self.after_s is None else self.after_s / (1 + verdict.gain.gain)
        return replace(self, trial=None, adopted=(*kept, *_list_adopted(arm, verdict)), after_s=after_s)

    def after_last_step(self) -> Session:
        """Return the session ended, as no steps are left for its last comparison.

        What its pairs prove by now is adopted; else what was proven over the owner's settings before, if anything.
        """
        trial = self.trial
        if trial is None or trial.arm is not None:
            return self
        comparison, count = trial.comparison, len(trial.comparison.pairs)
        found = judge_bounds(comparison.gain(), count, comparison.smallest_gain) if count > 1 else None
        is_proven = found is not None and found.outcome is Outcome.ADOPTED
        if found is not None and is_proven and trial.find_doubt() is None:
            return self._end(trial, found)
        proven = self.alone if trial.base else self.first
        held = {} if proven is None or not proven.settings.items() <= self.settings.items() else proven.settings
        kept = tuple(row for row in self.adopted if row.knob in held)
        why = f"not confirmed together in the steps given, after {count} pairs of blocks: --steps gives it more"
        rows = tuple(Refused(knob=row.knob, value=row.value, why=why) for row in self.adopted if row not in kept)
        ended = replace(self, trial=None, adopted=kept, refused=(*self.refused, *rows))
        if proven is None or not kept:
            return ended
        return replace(ended, confirmed=proven.verdict, before_s=proven.before_s, after_s=proven.after_s)

    def without_along(self, refused: Container[str]) -> Session:
        """Return the session with the arm under way without the values of those other knobs that cannot be set."""
        if self.trial is None or self.trial.arm is None:
            return self
        arm = self.trial.arm
        arm = replace(arm, along=tuple(row for row in arm.along if row[0] not in refused))
        return replace(self, trial=replace(self.trial, arm=arm, settings=arm.change(self.trial.base)))

    def postponed(self, arm: Arm, why: str) -> Session:
        """Return the session with `arm`, which is under way, and all others of its knob put behind the rest.

        Those that were before are left out. A value that was to be left out stays.
        """
        rows = tuple(row for row in (arm, *self.queue) if row.knob == arm.knob and not row.leaves_out)
        later = tuple(replace(row, postponed=True) for row in rows if not row.postponed)
        left = _list_passed([row for row in rows if row.postponed], why)
        rest = tuple(row for row in self.queue if row.knob != arm.knob)
        return replace(self, queue=(*rest, *later), left=(*self.left, *left))._next()

    def without_more(self, why: str) -> Session:
        """Return the session with nothing new tried: what was adopted is still confirmed."""
        rows = tuple(Refused(knob=arm.knob, value=arm.value, why=why) for arm in self.queue if not arm.leaves_out)
        hurried = replace(self, queue=(), refused=(*self.refused, *rows), is_reviewed=True, unfinished=None)
        if self.trial is None or self.trial.arm is None:
            return hurried
        return hurried._refuse(self.trial.arm, why)

    def list_review(self) -> tuple[Arm, ...]:
        """Return what leaves out, one after the other, the adopted values that may cost.

        One that was proven only with others, or before others gained much, unless to exchange workers for it takes many
        steps; and one under which another value changes nothing, with that value in its place. None once they
        were.
        """
        if self.is_reviewed:
            return ()
        held, found = self.settings, []
        alone = {} if self.alone is None else self.alone.settings
        for row in self.adopted:
            others = tuple((arm.knob, arm.value) for arm in self.ruled_out if arm.idle_under == row.knob)
            may_cost = row.is_joint or (row.later_gain or 0.0) >= TURNING
            is_fixed = row.is_costly or row.knob in alone or row.idle_under in held
            if not is_fixed and (others or (may_cost and len(held) > 1)):
                found.append(Arm(knob=row.knob, value=row.value, leaves_out=True, along=others))
        return tuple(sorted(found, key=lambda arm: not arm.along))

    def _learn(self, trial: Trial, *, is_adopted: bool = False) -> Session:
        """Return the session with what a trial has shown of by how much blocks differ.

        Those of other workers differ by something else, and nothing is known of what comes after them.
        """
        if trial.arm is None or not trial.arm.is_costly:
            return replace(self, alike=trial.comparison.next_trial())
        return replace(self, alike=Comparison()) if is_adopted else self

    def _settle(self, trial: Trial, verdict: Verdict) -> Session:
        return self._learn(trial, is_adopted=verdict.outcome is Outcome.ADOPTED)._judge(trial, verdict)

    def _judge(self, trial: Trial, verdict: Verdict) -> Session:
        if trial.arm is None:
            return self._end(trial, verdict)
        arm = trial.arm
        if arm.leaves_out:
            return self._settle_review(arm, verdict)
        if verdict.outcome is not Outcome.ADOPTED:
            return (self._fall_apart(arm) if arm.comes_apart else self._beaten(arm))._refuse(arm, verdict.why)
        if self.confirmed is not None:
            return self._adopt_last(arm, verdict)
        kept = tuple(old.after(verdict.gain) for old in self.adopted if old.knob not in arm.settings)
        beaten = tuple(other for other in self.beaten if other.knob not in arm.settings)
        again = tuple(other for other in beaten if arm.knob in other.again_after)
        done = {*dict(arm.along), *((arm.knob,) if arm.stop_after_gain else ())}
        passed = [other for other in self.queue if other.knob in done and other.value != arm.settings.get(other.knob)]
        return replace(
            self,
            alone=self.alone or _find_alone(trial, verdict),
            first=self.first or _find_first(trial, verdict),
            left=(*self.left, *_list_passed(passed, f"{format_value(arm.value)} was a gain")),
            adopted=(*kept, *_list_adopted(arm, verdict)),
            queue=(*again, *(other for other in self.queue if other.knob not in done)),
            beaten=tuple(other for other in beaten if other not in again),
            refused=tuple(
                old
                for old in self.refused
                if (old.knob, old.value) not in {*arm.settings.items(), *((new.knob, new.value) for new in again)}
            ),
        )._next()

    def _settle_review(self, arm: Arm, verdict: Verdict) -> Session:
        """Leave a value out that costs, or that brings less than is worth a change; else it stays."""
        most = find_most_of(verdict.gain)
        if verdict.outcome is Outcome.ADOPTED:
            how = f" with {name_values(arm.settings)} in its place" if arm.along else " without it"
            why = f"left out again: {verdict.why}{how}"
        elif not arm.along and most < SMALLEST_GAIN:
            why = f"left out again: it gains at most {most:.1%}"
        else:
            return self._keep(arm, verdict.why)
        replaced = next(row for row in self.adopted if row.knob == arm.knob)
        kept = tuple(row for row in self.adopted if row.knob not in {arm.knob, *arm.settings})
        rows = tuple(replace(row, in_place_of=replaced) for row in _list_adopted(arm, verdict))
        refused = Refused(knob=arm.knob, value=arm.value, why=why)
        left = self._without_left(arm)
        return replace(self, adopted=(*kept, *rows), refused=(*self.refused, refused), left=left)._next()

    def _keep(self, arm: Arm, why: str) -> Session:
        """Return the session with a value kept that was to be left out; what was tried in its place is refused."""
        rows = (
            Refused(knob=knob, value=value, why=f"in place of {arm.left_out}: {why}")
            for knob, value in arm.settings.items()
        )
        return replace(self, refused=(*self.refused, *rows), left=self._without_left(arm))._go_on()

    def _without_left(self, arm: Arm) -> tuple[NotTried, ...]:
        """Return what is not tried, without what an arm sets: that was."""
        tried = arm.settings.items()
        return tuple(row for row in self.left if (row.knob, row.value) not in tried)

    def _fall_apart(self, arm: Arm) -> Session:
        """Return the session with a refused arm put first without the values along; as it is, for one without any.

        Values that were beaten, and then tried along with it, are not tried once more after it.
        """
        if not arm.comes_apart:
            return self
        beaten = tuple(other for other in self.beaten if (other.knob, other.value) not in arm.along)
        return replace(self, queue=(replace(arm, along=(), came_apart=True), *self.queue), beaten=beaten)

    def _join(self, arm: Arm) -> Arm:
        """Return an arm with the values along that were no gain before it, and may be one with it.

        Neither need gain by itself: an attention that is quicker in half precision alone, and half precision that costs
        more than it brings until that attention computes in it.
        """
        if arm.along or arm.came_apart or arm.leaves_out or arm.postponed:
            return arm
        joined = [other for other in self.beaten if arm.knob in other.again_after and other.knob != arm.knob]
        if not joined:
            return arm
        keeps_losses = arm.keeps_losses and all(other.keeps_losses for other in joined)
        along = tuple({other.knob: other.value for other in joined}.items())
        return replace(arm, along=along, falls_apart=True, keeps_losses=keeps_losses)

    def _beaten(self, arm: Arm) -> Session:
        """Return the session with an arm noted that may be a gain after another knob's."""
        if not arm.again_after or arm.postponed:
            return self
        return replace(self, beaten=(*self.beaten, replace(arm, postponed=True)))

    def _refuse(self, arm: Arm, why: str) -> Session:
        if arm.leaves_out:
            return self._keep(arm, why)
        queue = tuple(
            replace(other, along=tuple(row for row in other.along if row[0] != arm.knob)) for other in self.queue
        )
        left = self.left
        if arm.stop_after_loss:
            passed = [other for other in queue if other.knob == arm.knob]
            left = (*left, *_list_passed(passed, f"{format_value(arm.value)} was no gain"))
            queue = tuple(other for other in queue if other.knob != arm.knob)
        row = Refused(knob=arm.knob, value=arm.value, why=why)
        return replace(self, queue=queue, refused=(*self.refused, row), left=left)._go_on()

    def _go_on(self) -> Session:
        """Return the session with the next trial, which begins with the block that ended the last one's round, if any.

        That was one of what the next trial begins with, be it the next arm's or the last proof's.
        """
        last, after = self.trial, self._next()
        if last is None or last.blocks or not last.comparison.pairs or len(last.comparison.pairs) % 2:
            return after
        return after.having(last.comparison.pairs[-1][0], last.seen_of_owner[-1] if last.seen_of_owner else None)

    def _next(self) -> Session:
        if self.confirmed is not None:
            return replace(self, trial=None)
        if not self.is_reviewed and (not self.queue or self.queue[0].after_review):
            return replace(self, queue=(*self.list_review(), *self.queue), is_reviewed=True)._next()
        if self.queue:
            arm, *rest = self.queue
            arm, base = self._join(arm), self.settings
            if arm.idle_under is not None and arm.idle_under in base:
                why = f"changes nothing under {arm.idle_under} = {format_value(base[arm.idle_under])}"
                left, ruled_out = (*self.left, *_list_passed([arm], why)), (*self.ruled_out, arm)
                return replace(self, queue=tuple(rest), left=left, ruled_out=ruled_out)._next()
            comparison = replace(self.alike, slower_pairs_min=1) if arm.leaves_out else self.alike
            trial = Trial(arm=arm, base=base, settings=arm.change(base), comparison=comparison)
            return replace(self, queue=tuple(rest), trial=trial)
        if not self.adopted:
            return replace(self, trial=None)
        base, alone = self.confirming_base, self.alone
        if alone is not None and base == self.settings:
            verdict, before_s, after_s = alone.verdict, alone.before_s, alone.after_s
            ended = replace(self, trial=None, confirmed=verdict, before_s=before_s, after_s=after_s)
            return ended._go_on_unfinished()
        exchanges = not base and any(row.is_costly for row in self.adopted)
        comparison = replace(Comparison() if exchanges else self.alike, looks=CONFIRMING_LOOKS)
        return replace(self, trial=Trial(arm=None, base=base, settings=self.settings, comparison=comparison))

    def _end(self, trial: Trial, verdict: Verdict) -> Session:
        """Adopt everything, or leave out what was adopted last and compare the rest again."""
        if verdict.outcome is not Outcome.ADOPTED:
            return self._drop_newest(f"not confirmed together: {verdict.why}")
        before_s, after_s = mean_times(trial.comparison.pairs)
        if self.alone is not None and trial.base:
            before_s = self.alone.before_s
        ended = replace(self, trial=None, confirmed=verdict, before_s=before_s, after_s=after_s)
        return ended._go_on_unfinished()

    def _drop_newest(self, why: str) -> Session:
        *kept, newest = self.adopted
        old = newest.in_place_of
        back = () if old is None else (old,)
        others = tuple(row for row in self.refused if old is None or (row.knob, row.value) != (old.knob, old.value))
        row = Refused(knob=newest.knob, value=newest.value, why=why)
        return replace(self, adopted=(*kept, *back), refused=(*others, row))._next()


def begin_session(
    knobs: Sequence[Knob], left: Sequence[NotTried], facts: Facts, gpu_times: GpuTimes | None = None
) -> Session:
    """Return a session that tries every value of `knobs` in their order; it has ended if there is none."""
    first = {knob.name: values[0] for knob in knobs if (values := knob.values(facts))}
    arms = [
        Arm(
            knob=knob.name,
            value=value,
            stop_after_loss=knob.stop_after_loss,
            stop_after_gain=knob.stop_after_gain,
            again_after=knob.again_after,
            along=tuple((name, first[name]) for name in knob.along if name in first),
            falls_apart=knob.falls_apart,
            idle_under=knob.idle_under,
            is_costly=knob.is_costly,
            keeps_losses=knob.keeps_losses(facts),
            after_review=knob.after_review,
        )
        for knob in knobs
        for value in knob.values(facts)
    ]
    return Session(queue=tuple(arms), left=tuple(left), gpu_times=gpu_times or GpuTimes())._next()


def _find_alone(trial: Trial, verdict: Verdict) -> Alone | None:
    """Return what a trial has proven over the owner's settings for good, None where it is to be proven once more."""
    if trial.arm is None or not trial.arm.is_costly or verdict.gain.low < PROVEN_ALONE:
        return None
    return _find_first(trial, verdict)


def _find_first(trial: Trial, verdict: Verdict) -> Alone | None:
    """Return what the steps of a trial have proven over the owner's settings, None where these were not its base."""
    if trial.base or verdict.remark:
        return None
    before_s, after_s = mean_times(trial.comparison.pairs)
    return Alone(settings=trial.settings, verdict=verdict, before_s=before_s, after_s=after_s)


def _list_adopted(arm: Arm, verdict: Verdict) -> tuple[Adopted, ...]:
    """Return the values of a proven arm."""
    return tuple(
        Adopted(
            knob=knob,
            value=value,
            gain=verdict.gain,
            remark=verdict.remark,
            is_joint=len(arm.settings) > 1,
            is_costly=arm.is_costly and knob == arm.knob,
            idle_under=arm.idle_under if knob == arm.knob else None,
        )
        for knob, value in arm.settings.items()
    )


def _list_passed(arms: Sequence[Arm], why: str) -> list[NotTried]:
    return [NotTried(knob=arm.knob, value=arm.value, why=why) for arm in arms]
