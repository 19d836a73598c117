"""A checkpoint's tensors in figures, and what is wrong with them by themselves or beside another's; it opens no file.

A number that is finite can still be a ruin: frameworks write zeros or the largest number where NaN was. The limits lie
far outside of what trainings do from one checkpoint to the next. Of a YOLO trained from scratch the matrices kept 97 %
of their signs and grew to at most twice their size while the number of steps doubled; in the wild first 80 steps
(AdamW, lr 0.01) they kept 78 %, and one matrix grew 3.7 times. Random numbers share half of their signs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

OPTIMIZER = re.compile(r"(?P<optimizer>(?:.*\.)?optimizer\w*(?:\.\d+)?)\.state\.(?P<index>\d+)\.(?P<what>\w+)\Z")
"""Name of a tensor in an optimizer's state, as torch writes it."""
NO_MODEL = re.compile(
    r"(?:^|\.)(?:optimizer\w*|scaler|lr_schedulers?|scheduler|rng\w*|random\w*|loops|callbacks|train_metrics|"
    r"train_results)(?:\.|\Z)|@"
)
"""Tensors that are none of the model's: `@` marks what a module keeps beside its parameters and buffers."""
LIKE_A_PARAMETER = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta"})
"""States of torch's optimizers that have the shape of their parameter."""
AVERAGES = ((("model", "ema")), (("rocm_supervisor.model", "rocm_supervisor.ema")))
"""Parts of one checkpoint that hold a model and the running average of the same model."""
ROWS_LIMIT = 20_000

SIZE_FACTOR = 16.0
"""A weight matrix whose numbers grew or shrank by more than this since the generation before does not continue it."""
USUAL_FACTOR, SETTLED_FACTOR = 4.0, 2.0
"""The same for the median of all matrices, and once the training has settled."""
VARIANCE_FACTOR = 1000.0
"""The same for a running variance, which begins at 1 and finds its size in the first epoch."""
OPTIMIZER_FACTOR = 10_000.0
"""The same for the median of an optimizer's states: gradients may grow and shrink a lot."""
TINY_SHARE = 0.01
"""A matrix smaller than this share of the usual one may still grow as it likes: some begin at zero."""
ZERO_GROWTH = 0.05
"""Of a matrix, so much more of it zero than before."""
SIGNS_KEPT, SETTLED_SIGNS_KEPT = 0.6, 0.85
"""Share of its signs that the median matrix of a continuation keeps at least, and once the training has settled."""
SIGNS_OF_ONE, SETTLED_SIGNS_OF_ONE = 0.62, 0.7
"""A single matrix keeps at least so many where the median of all keeps SIGNS_OF_OTHERS."""
SIGNS_OF_OTHERS = 0.9
SETTLED_STEPS = 64
"""A training has settled after so many steps, as long as it has at most doubled them since the generation before."""
STEPS_SLACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFigures:
    """One tensor; rms and zeros are None for whole numbers, taken over a sample of large ones."""

    shape: tuple[int, ...]
    kind: str
    rms: float | None = None
    zeros: float | None = None
    """Share of exact zeros."""
    largest: int = 0
    """How many of its numbers are the largest that its kind can hold."""
    signs: str | None = None
    """Signs of up to 256 of its numbers, at the same places in every checkpoint."""

    @property
    def matrix(self) -> bool:
        """Whether it has rows and columns, as weights have."""
        return len(self.shape) > 1 and 0 not in self.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a checkpoint holds, by name."""

    tensors: Mapping[str, TensorFigures]
    optimizers: Mapping[str, int] = field(default_factory=dict)
    """How many parameters the groups of each optimizer count."""
    updates: int | None = None
    """How often the running average was updated, where the checkpoint says."""
    step: int | None = None
    """Step of the training that it holds, where that is known."""

    def settled(self, before: Profile) -> bool:
        """Whether this is a training that has settled, not far from where it stood before."""
        mine, its = (self.updates, before.updates)
        if mine is None or its is None:
            mine, its = self.step, before.step
        return mine is not None and its is not None and SETTLED_STEPS <= its <= mine <= 2 * its

    def parts(self) -> dict[str, dict[str, TensorFigures]]:
        """Return the model's tensors by the part of the checkpoint that they lie in (`ema`, `model`, `state_dict`)."""
        found: dict[str, dict[str, TensorFigures]] = {}
        for name, one in self.tensors.items():
            if NO_MODEL.search(name) is None:
                part, _, rest = _split(name)
                found.setdefault(part, {})[rest] = one
        return found

    def states(self) -> dict[str, dict[int, dict[str, TensorFigures]]]:
        """Return the optimizers' states by optimizer and number of the parameter."""
        found: dict[str, dict[int, dict[str, TensorFigures]]] = {}
        for name, one in self.tensors.items():
            if match := OPTIMIZER.match(name):
                numbers = found.setdefault(match["optimizer"], {})
                numbers.setdefault(int(match["index"]), {})[match["what"]] = one
        return found


def _split(name: str) -> tuple[str, str, str]:
    """Return (part, dot, name within): what our agent adds lies one level deeper, a bare state dict at the top."""
    first, dot, rest = name.partition(".")
    if first == "rocm_supervisor":
        second, dot, rest = rest.partition(".")
        return f"{first}.{second}", dot, rest
    if first in ("ema", "model", "state_dict", "model_state_dict", "net", "module"):
        return first, dot, rest
    return "", dot, name


def profile_of(answer: object) -> Profile | None:
    """Return the profile in a prover's answer; None where it has none or it is not sound."""
    if not isinstance(answer, dict) or not isinstance(answer.get("tensors"), list):
        return None
    tensors = {}
    for row in answer["tensors"][:ROWS_LIMIT]:
        read = _row(row)
        if read is None:
            return None
        tensors[read[0]] = read[1]
    counts = answer.get("optimizers")
    optimizers = {str(name): one for name, one in counts.items() if _whole(one)} if isinstance(counts, dict) else {}
    updates = answer.get("updates")
    return Profile(tensors=tensors, optimizers=optimizers, updates=updates if _whole(updates) else None)


def _row(row: object) -> tuple[str, TensorFigures] | None:
    if not isinstance(row, list) or len(row) != 7:
        return None
    name, kind, shape, rms, zeros, largest, signs = row
    sound = isinstance(name, str) and isinstance(kind, str) and _whole(largest)
    if not sound or not isinstance(shape, list) or not all(map(_whole, shape)):
        return None
    if not all(one is None or (isinstance(one, float | int) and math.isfinite(one)) for one in (rms, zeros)):
        return None
    text = signs if isinstance(signs, str) else None
    return name, TensorFigures(shape=tuple(shape), kind=kind, rms=rms, zeros=zeros, largest=largest, signs=text)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# --- by itself ----------------------------------------------------------------------------------------------------


def contradiction(profile: Profile) -> str | None:
    """Return what in a checkpoint contradicts itself, None where nothing does."""
    return (
        _ruin(profile) or _average_of_another(profile) or _optimizer_of_another(profile) or _steps_of_another(profile)
    )


def _ruin(profile: Profile) -> str | None:
    """Numbers that stand where no training puts them, but where NaN and infinity are written as finite numbers."""
    for part, tensors in profile.parts().items():
        for name, one in tensors.items():
            if one.largest and one.kind == "Half" and "mask" not in name.lower():
                return f"{one.largest} numbers of {_joined(part, name)} are the largest of its kind: they were infinite"
            if name.endswith("running_var") and one.rms == 0:
                return f"{_joined(part, name)} is all zero: it was not finite"
    return None


def _average_of_another(profile: Profile) -> str | None:
    parts = profile.parts()
    for model, average in AVERAGES:
        if model in parts and average in parts and (why := _other_shapes(parts[average], parts[model])) is not None:
            return f"its running average does not belong to its model: {why}"
    return None


def _optimizer_of_another(profile: Profile) -> str | None:
    shapes = [Counter(one.shape for one in part.values()) for part in profile.parts().values()]
    for name, states in profile.states().items():
        count = profile.optimizers.get(name)
        if count is not None and any(number >= count for number in states):
            return f"{name} has a state for parameter {max(states)} and {count} parameters"
        own = Counter(filter(None, map(_parameter_shape, states.values())))
        flat = all(len(shape) < 2 for shape in own)  # flattened, as a sharded training keeps them
        if not own or flat or not shapes:
            continue
        fewest = min((own - of_model for of_model in shapes), key=Counter.total)
        if fewest:
            shape = next(iter(fewest))
            return f"{name} belongs to another model: {fewest.total()} of its states fit no tensor, first {list(shape)}"
    return None


def _parameter_shape(state: Mapping[str, TensorFigures]) -> tuple[int, ...] | None:
    return next((one.shape for what, one in state.items() if what in LIKE_A_PARAMETER), None)


def _steps_of_another(profile: Profile) -> str | None:
    """Average and optimizer count the same steps; the optimizer leaves out those whose gradients were not finite."""
    if profile.updates is None:
        return None
    for name, states in profile.states().items():
        made = _steps_made(states)
        if made is None:
            continue
        if made > profile.updates + STEPS_SLACK or made < 0.5 * profile.updates - STEPS_SLACK:
            return f"{name} has made {made:.0f} steps and the running average {profile.updates}"
    return None


def _steps_made(states: Mapping[int, Mapping[str, TensorFigures]]) -> float | None:
    """Return the largest step counter: the root mean square of one number is that number."""
    steps = [one["step"].rms for one in states.values() if "step" in one and not one["step"].shape]
    return max((step for step in steps if step is not None), default=None)


# --- beside another -----------------------------------------------------------------------------------------------


def other_architecture(profile: Profile, before: Profile) -> str | None:
    """Return why the two hold different models, by the names and shapes in the parts that both have."""
    mine, its = profile.parts(), before.parts()
    for part in mine.keys() & its.keys():
        if (why := _other_shapes(mine[part], its[part])) is not None:
            return f"wrong architecture: {why} (the generation before is the measure)"
    states = before.states()
    for name, own in profile.states().items():
        if (why := _other_states(own, states.get(name, {}))) is not None:
            return f"{name} belongs to another model: {why}"
    return None


def _other_shapes(mine: Mapping[str, TensorFigures], its: Mapping[str, TensorFigures]) -> str | None:
    missing, new = its.keys() - mine.keys(), mine.keys() - its.keys()
    if missing or new:
        return f"{len(missing)} tensors are missing and {len(new)} are new, first {min(missing or new)}"
    other = sorted(name for name in mine if mine[name].shape != its[name].shape)
    if other:
        first = other[0]
        shapes = f"{list(mine[first].shape)} in place of {list(its[first].shape)}"
        return f"{len(other)} tensors have another shape, first {first}: {shapes}"
    return None


def _other_states(
    mine: Mapping[int, Mapping[str, TensorFigures]], its: Mapping[int, Mapping[str, TensorFigures]]
) -> str | None:
    for number in sorted(mine.keys() & its.keys()):
        own, old = _parameter_shape(mine[number]), _parameter_shape(its[number])
        if own is not None and old is not None and own != old:
            return f"the state of parameter {number} is {list(own)} and was {list(old)}"
    if len(mine) < 0.9 * len(its):
        return f"it has {len(mine)} states and had {len(its)}"
    made, made_before = _steps_made(mine), _steps_made(its)
    if made is not None and made_before is not None and made < made_before - STEPS_SLACK:
        return f"it has made {made:.0f} steps and had made {made_before:.0f}"
    return None


def drift(profile: Profile, before: Profile) -> str | None:
    """Return why the numbers cannot be the continuation of those of the generation before, None where they can."""
    mine, its = profile.parts(), before.parts()
    for part in mine.keys() & its.keys():
        pairs = {name: (one, its[part][name]) for name, one in mine[part].items() if name in its[part]}
        settled = profile.settled(before)
        why = _emptied(pairs) or _resized(pairs, settled=settled) or _replaced(pairs, settled=settled)
        if why is not None:
            return f"not the continuation of the generation before: in {part or 'the model'}, {why}"
    return _optimizer_resized(profile, before)


Pairs = Mapping[str, tuple[TensorFigures, TensorFigures]]


def _emptied(pairs: Pairs) -> str | None:
    for name, (one, old) in pairs.items():
        if one.zeros is None or old.zeros is None or not (one.matrix or name.endswith(("weight", "running_var"))):
            continue
        if one.zeros > old.zeros + ZERO_GROWTH and (one.matrix or one.zeros == 1):
            return f"{name} is zero for {one.zeros:.0%}, was for {old.zeros:.0%}"
    return None


def _resized(pairs: Pairs, *, settled: bool) -> str | None:
    sizes = [(one.rms, old.rms) for one, old in pairs.values() if old.matrix and old.rms and one.rms]
    tiny = TINY_SHARE * median(old for _, old in sizes) if sizes else 0.0
    usual, usual_limit = median(one / old for one, old in sizes) if sizes else 1.0, _usual_factor(settled=settled)
    if not 1 / usual_limit <= usual <= usual_limit:
        return f"its matrices are {usual:.3g} times as large as they were"
    for name, (one, old) in pairs.items():
        limit = SIZE_FACTOR if one.matrix else VARIANCE_FACTOR if name.endswith("running_var") else None
        if limit is None or one.rms is None or not old.rms or not one.rms:
            continue
        grown = one.rms / old.rms
        if grown > limit and (old.rms >= tiny or one.rms > limit * tiny / TINY_SHARE):
            return f"{name} is {grown:.3g} times as large as it was"
        if grown < 1 / limit and old.rms >= tiny:
            return f"{name} is {1 / grown:.3g} times as small as it was"
    return None


def _usual_factor(*, settled: bool) -> float:
    return SETTLED_FACTOR if settled else USUAL_FACTOR


def _replaced(pairs: Pairs, *, settled: bool) -> str | None:
    shares = {name: _kept(one.signs, old.signs) for name, (one, old) in pairs.items() if one.signs and old.signs}
    if not shares:
        return None
    usual = median(shares.values())
    if usual < (SETTLED_SIGNS_KEPT if settled else SIGNS_KEPT):
        return f"its matrices keep {usual:.0%} of their signs: these are other numbers"
    name = min(shares, key=lambda one: shares[one])
    if shares[name] < (SETTLED_SIGNS_OF_ONE if settled else SIGNS_OF_ONE) and usual >= SIGNS_OF_OTHERS:
        return f"{name} keeps {shares[name]:.0%} of its signs, the others {usual:.0%}: these are other numbers"
    return None


def _kept(mine: str | None, its: str | None) -> float:
    pairs = [(one, old) for one, old in zip(mine or "", its or "", strict=False) if old != "0"]
    return sum(one == old for one, old in pairs) / len(pairs) if pairs else 1.0


def _optimizer_resized(profile: Profile, before: Profile) -> str | None:
    theirs = before.states()
    for name, states in profile.states().items():
        for what in LIKE_A_PARAMETER:
            grown = list(_growth(states, theirs.get(name, {}), what))
            middle = median(grown) if grown else 1.0
            if not 1 / OPTIMIZER_FACTOR < middle < OPTIMIZER_FACTOR:
                return f"{name}: its {what} is {middle:.3g} times what it was"
    return None


def _growth(
    mine: Mapping[int, Mapping[str, TensorFigures]], its: Mapping[int, Mapping[str, TensorFigures]], what: str
) -> Iterable[float]:
    for number in mine.keys() & its.keys():
        one, old = mine[number].get(what), its[number].get(what)
        if one is not None and old is not None and one.rms and old.rms:
            yield one.rms / old.rms


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))


def judged(profile: Profile, before: Sequence[Profile]) -> tuple[str | None, bool]:
    """Return (what is wrong, whether time could prove it right), None where nothing is.

    `before` holds the generation before, newest first, with what else may be the measure: a training that has really
    changed its course is believed once a later checkpoint continues one that was doubted.
    """
    why = other_architecture(profile, before[0]) if before else None
    why = why or contradiction(profile)
    if why is not None or not before:
        return why, False
    doubts = [drift(profile, one) for one in before]
    return (None, False) if None in doubts else (doubts[0], True)
