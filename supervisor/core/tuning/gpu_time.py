"""What a GPU computes for a step, as traces show it: which settings gain where steps are too uneven to prove it.

Steps that the host makes uneven differ by a fifth from one to the next; what the GPU computes for them by one in a
hundred. Where it computes clearly less with a setting, that is no chance, and less has to be shown of the steps: not
that chance explains them in one of a thousand tunes, but that they are more likely faster than slower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.core.tuning.bottleneck import Traced
from supervisor.core.tuning.compare import (
    CLEARLY_FASTER,
    Comparison,
    Outcome,
    Verdict,
    mean_log_gain,
)

GPU_GAIN_MIN = 0.04
"""What the GPU has to compute less for a step: traces of the same settings differ by one in a hundred."""
LOOKS = (8, 12, 16, 20, 24, 28)
"""After how many pairs it is asked whether steps are faster too."""
ENOUGH_PAIRS = 16
"""From so many on the last look asks for no more, however few others there were."""
LIKELY, UNLIKELY = 1.6, 1.5
"""Standard errors of the mean gain above none, from which on it is one, and below none, from which on it is not."""
LIKELY_AT_LAST = 0.1
"""The same at the last look.

Of settings that gain 5 % where blocks differ by 7 % 99 of a hundred are found so, of such that cost 5 % one in two
hundred: earlier looks ask for more, as chance has more of them.
"""
MISSING = 0.04
"""As many more for each pair of the last look that was not made."""
WAITED_PAIRS = 3
"""After so many pairs an arm that is clearly slower is refused, traced or not."""
TRACED_PAIRS = 5
"""By then an arm was traced, or is not: there were no steps left for that."""

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimes:
    """The seconds that a GPU computes for a step under settings, of those that were traced."""

    is_traceable: bool = False
    """Whether traces show them."""
    steps_s: Mapping[frozenset[tuple[str, object]], float] = field(default_factory=dict)

    def after(self, settings: Settings, traced: Traced | None) -> GpuTimes:
        """Return the times with those of a trace; none is asked for after one that shows no GPU's."""
        if traced is None or not traced.on_gpu or traced.computing_s <= 0:
            return replace(self, is_traceable=False)
        step_s = traced.computing_s / traced.steps
        return replace(self, is_traceable=True, steps_s={**self.steps_s, frozenset(settings.items()): step_s})

    def lacks(self, settings: Settings) -> bool:
        """Whether a trace of settings would show what is not known."""
        return self.is_traceable and frozenset(settings.items()) not in self.steps_s

    def find_gain(self, base: Settings, arm: Settings) -> float | None:
        """Return by what factor less the GPU computes with an arm, less one; None where either was not traced."""
        base_s, arm_s = (self.steps_s.get(frozenset(settings.items())) for settings in (base, arm))
        return None if base_s is None or arm_s is None else base_s / arm_s - 1


def is_unclear(comparison: Comparison) -> bool:
    """Whether the pairs so far do not show by themselves that an arm gains, or costs, much."""
    logs = [math.log(owner / arm) for owner, arm in comparison.pairs]
    return not logs or (min(logs) < CLEARLY_FASTER and max(logs) > -CLEARLY_FASTER)


def judge_steps(comparison: Comparison, gpu_gain: float | None, *, is_awaited: bool = False) -> Verdict | None:
    """Return the verdict on an arm of which is known by how much less the GPU computes with it; None: go on.

    What steps prove by themselves holds. `is_awaited`: a trace is about to show what the GPU computes with it, and
    nothing that may be chance is made of its first pairs.
    """
    verdict, count = comparison.verdict(), len(comparison.pairs)
    if gpu_gain is not None and gpu_gain >= GPU_GAIN_MIN:
        is_proven = verdict is not None and verdict.outcome is Outcome.ADOPTED
        return verdict if is_proven else _judge_supported(comparison, gpu_gain)
    if verdict is not None and verdict.outcome is not Outcome.ADOPTED and gpu_gain is None and is_awaited:
        is_slower = verdict.outcome is Outcome.REFUSED and count >= WAITED_PAIRS
        return verdict if is_slower or count >= TRACED_PAIRS else None
    return verdict


def judge_last(comparison: Comparison, gpu_gain: float | None) -> Verdict | None:
    """Return the verdict on an arm of which no more pairs can be made; None where they are too few for one."""
    if gpu_gain is None or gpu_gain < GPU_GAIN_MIN or len(comparison.pairs) < LOOKS[0]:
        return None
    return _judge_supported(comparison, gpu_gain, is_last=True)


def _judge_supported(comparison: Comparison, gpu_gain: float, *, is_last: bool = False) -> Verdict | None:
    """Return the verdict on an arm with which the GPU computes clearly less: steps have to be faster, if by little."""
    count, gain = len(comparison.pairs), comparison.gain()
    is_last = is_last or count >= LOOKS[-1]  # more of them are made where losses are not known to be no worse
    if not is_last and count not in LOOKS:
        return None
    mean = mean_log_gain(comparison.pairs)
    error = math.sqrt(2 / count) * comparison.find_deviation()[0]
    less = f"the GPU computes {1 - 1 / (1 + gpu_gain):.0%} less for a step"
    least = LIKELY_AT_LAST + MISSING * max(0, ENOUGH_PAIRS - count)
    if mean >= LIKELY * error or (is_last and mean >= least * error):
        why = f"likely, not proven by steps alone: {less}"
        return Verdict(outcome=Outcome.ADOPTED, gain=gain, why=why, pairs=count, remark=why)
    if mean <= -UNLIKELY * error or is_last:
        why = f"not settled: {less}, and steps are not clearly faster after {count} pairs of blocks"
        return Verdict(outcome=Outcome.NOT_SETTLED, gain=gain, why=why, pairs=count)
    return None
