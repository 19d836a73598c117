"""What is wrong with a checkpoint's numbers, by themselves or compared with the previous generation.

A number that is finite can still be a ruin: frameworks write zeros or the largest number where NaN was. The limits lie
far outside of what trainings do from one checkpoint to the next. Of a YOLO trained from scratch the matrices kept 97 %
of their signs and grew to at most twice their size while the number of steps doubled; in the wild first 80 steps
(AdamW, lr 0.01) they kept 78 %, and one matrix grew 3.7 times. Random numbers share half of their signs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from supervisor.core.checkpoints.tensor_stats import Profile, TensorFigures

LIKE_A_PARAMETER = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta"})
"""States of torch's optimizers that have the shape of their parameter."""
AVERAGES = (("model", "ema"), ("rocm_supervisor.model", "rocm_supervisor.ema"))
"""Parts of one checkpoint that hold a model and the running average of the same model."""
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
MEDIAN_OF_MATRICES = 3
"""Of fewer the median is that of a single matrix, and so is its limit once the training has settled.

OpenNMT saves the output layer apart from the model: at SGD's rate of 1.0 it kept 74 to 78 % of its signs while the
steps doubled, the 12 matrices of the model 92 to 98 %.
"""
SIGNS_OF_OTHERS = 0.9
OUTGROWN_FACTOR = 2.0
"""A matrix that has grown by this much before the training has settled consists of what it learned, and has its signs.

Where the steps do not depend on what it began with, 67 % of the signs are kept at twice the size and 56 % at five
times: weights of MACE that begin at 1 % of the size of the others had 43 % of 92 signs after 45 steps, the others 94 to
98 %.
"""
SETTLED_STEPS = 64
"""A training has settled after so many steps, as long as it has at most doubled them since the generation before."""
STEPS_SLACK = 100


Figures = Mapping[str, TensorFigures]
"""The tensors of one part, by name."""

# --- by itself ----------------------------------------------------------------------------------------------------


def find_contradiction(profile: Profile) -> str | None:
    """Return what in a checkpoint contradicts itself, None where nothing does."""
    return _find_overflow(profile) or _check_average(profile) or _check_optimizer(profile) or _check_steps(profile)


def _find_overflow(profile: Profile) -> str | None:
    """Find float16 limits and zero variances: so finite-only formats write what was NaN or infinity."""
    for part, tensors in profile.parts().items():
        for name, figures in tensors.items():
            if figures.largest and figures.kind == "Half" and "mask" not in name.lower():
                where = _join_name(part, name)
                return f"{figures.largest} numbers of {where} are at the limit of float16: they overflowed"
            if name.endswith("running_var") and figures.rms == 0:
                return f"{_join_name(part, name)} is all zero: it was not finite"
    return None


def _check_average(profile: Profile) -> str | None:
    parts = profile.parts()
    for model, average in AVERAGES:
        if model not in parts or average not in parts:
            continue
        is_ours = average.startswith("rocm_supervisor.")
        compare = _compare_shapes if is_ours else _compare_average
        if (why := compare(parts[average], parts[model])) is not None:
            return f"its running average does not belong to its model: {why}"
    return None


def _compare_average(average: Figures, model: Figures) -> str | None:
    """Return what of an average that a program has saved cannot be of its model, None where nothing is.

    A wrapper puts its name in front of each tensor and adds counters: `module.` torch's AveragedModel and RT-DETR's
    average, `ema_model.` ema-pytorch's. One of the trained parameters alone lacks the buffers and what is frozen, and
    may name them otherwise: torch-ema numbers them.
    """
    front = _find_front(average, model)
    own = {name.removeprefix(front): figures for name, figures in average.items() if name.startswith(front)}
    own = {name: figures for name, figures in own.items() if figures.shape}
    shared = {name: model[name] for name in own.keys() & model.keys()}
    if not shared and not Counter(each.shape for each in own.values()) - Counter(each.shape for each in model.values()):
        return None
    return _compare_shapes(own, shared or model)


def _find_front(average: Figures, model: Figures) -> str:
    """Return what precedes the model's names in those of its average: most often nothing."""
    fronts: Counter[str] = Counter()
    for name in average:
        starts = [0, *(at + 1 for at, letter in enumerate(name) if letter == ".")]
        fronts.update(name[:at] for at in starts if name[at:] in model)
    return max(fronts, key=lambda front: fronts[front], default="")


def _check_optimizer(profile: Profile) -> str | None:
    states_by_name = profile.states()
    for name, states in states_by_name.items():
        count = profile.optimizers.get(name)
        if count is not None and any(number >= count for number in states):
            return f"{name} has a state for parameter {max(states)} and {count} parameters"
    shapes = [Counter(figures.shape for figures in part.values()) for part in profile.parts().values()]
    if shapes:
        shapes.append(sum(shapes, Counter()))  # OpenNMT-py keeps its output layer, `generator`, apart from its `model`
    unlike = {name: _find_unlike(states, shapes) for name, states in states_by_name.items()}
    if any(fewest is not None and not fewest for fewest in unlike.values()):
        return None  # of several networks some may be saved in a file of their own, as a GAN's generator
    for name, fewest in unlike.items():
        if fewest:
            shape = next(iter(fewest))
            return f"{name} belongs to another model: {fewest.total()} of its states fit no tensor, first {list(shape)}"
    return None


def _find_unlike(
    states: Mapping[int, Mapping[str, TensorFigures]], shapes: Sequence[Counter[tuple[int, ...]]]
) -> Counter[tuple[int, ...]] | None:
    """Return the shapes of an optimizer's states that no tensor of the most alike part has; None where none tells."""
    own = Counter(filter(None, map(_parameter_shape, states.values())))
    flat = all(len(shape) < 2 for shape in own)  # flattened, as a sharded training keeps them
    if not own or flat or not shapes:
        return None
    return min((own - of_model for of_model in shapes), key=Counter.total)


def _parameter_shape(state: Mapping[str, TensorFigures]) -> tuple[int, ...] | None:
    return next((figures.shape for what, figures in state.items() if what in LIKE_A_PARAMETER), None)


def _check_steps(profile: Profile) -> str | None:
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
    steps = [entry["step"].rms for entry in states.values() if "step" in entry and not entry["step"].shape]
    return max((step for step in steps if step is not None), default=None)


# --- compared with another ----------------------------------------------------------------------------------------


def other_architecture(profile: Profile, before: Profile) -> str | None:
    """Return why the two hold different models, by the names and shapes in the parts that both have."""
    mine, its = profile.parts(), before.parts()
    for part in mine.keys() & its.keys():
        if _is_named_otherwise(mine[part], its[part]):
            continue
        if (why := _compare_shapes(mine[part], its[part])) is not None:
            return f"wrong architecture: {why} (compared with the previous generation)"
    states = before.states()
    for name, own in profile.states().items():
        if (why := _compare_states(own, states.get(name, {}))) is not None:
            return f"{name} belongs to another model: {why}"
    return None


def _is_named_otherwise(mine: Figures, its: Figures) -> bool:
    """Whether one holds the tensors of the other under names of which they share none.

    Llama's own weights are named `model.*`, which a file of them alone has at the top and a snapshot below its `model`.
    """
    if mine.keys() & its.keys():
        return False
    shapes, others = (Counter(figures.shape for figures in part.values()) for part in (mine, its))
    return shapes <= others or others <= shapes


def _compare_shapes(mine: Figures, its: Figures) -> str | None:
    missing, new = its.keys() - mine.keys(), mine.keys() - its.keys()
    if missing or new:
        return f"{len(missing)} tensors are missing and {len(new)} are new, first {min(missing or new)}"
    other = sorted(name for name in mine if mine[name].shape != its[name].shape)
    if other:
        first = other[0]
        shapes = f"{list(mine[first].shape)} in place of {list(its[first].shape)}"
        return f"{len(other)} tensors have another shape, first {first}: {shapes}"
    return None


def _compare_states(
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


def find_drift(profile: Profile, before: Profile) -> str | None:
    """Return why the numbers cannot be the continuation of those of the generation before, None where they can."""
    mine, its = profile.parts(), before.parts()
    for part in mine.keys() & its.keys():
        pairs = {name: (figures, its[part][name]) for name, figures in mine[part].items() if name in its[part]}
        settled = _has_settled(profile, before)
        why = _find_zeroed(pairs) or _find_resized(pairs, settled=settled) or _find_replaced(pairs, settled=settled)
        if why is not None:
            return f"does not continue the previous generation: in {part or 'the model'}, {why}"
    return _find_resized_optimizer(profile, before)


def _has_settled(profile: Profile, before: Profile) -> bool:
    """Whether the training has settled: many steps, and at most twice those of the previous generation."""
    mine, its = profile.updates, before.updates
    if mine is None or its is None:
        mine, its = profile.step, before.step
    return mine is not None and its is not None and SETTLED_STEPS <= its <= mine <= 2 * its


Pairs = Mapping[str, tuple[TensorFigures, TensorFigures]]


def _find_zeroed(pairs: Pairs) -> str | None:
    for name, (figures, old) in pairs.items():
        if (
            figures.zeros is None
            or old.zeros is None
            or not (figures.matrix or name.endswith(("weight", "running_var")))
        ):
            continue
        if figures.zeros > old.zeros + ZERO_GROWTH and (figures.matrix or figures.zeros == 1):
            return f"{name} is zero for {figures.zeros:.0%}, was for {old.zeros:.0%}"
    return None


def _find_resized(pairs: Pairs, *, settled: bool) -> str | None:
    sizes = [(figures.rms, old.rms) for figures, old in pairs.values() if old.matrix and old.rms and figures.rms]
    tiny = TINY_SHARE * median(old for _, old in sizes) if sizes else 0.0
    usual, usual_limit = median(size / old for size, old in sizes) if sizes else 1.0, _usual_factor(settled=settled)
    if not 1 / usual_limit <= usual <= usual_limit:
        return f"its matrices are {usual:.3g} times as large as they were"
    for name, (figures, old) in pairs.items():
        limit = SIZE_FACTOR if figures.matrix else VARIANCE_FACTOR if name.endswith("running_var") else None
        if limit is None or figures.rms is None or not old.rms or not figures.rms:
            continue
        grown, shrunk = (
            figures.rms / old.rms,
            old.rms / figures.rms,
        )  # of the smallest numbers either may be 0 or infinite
        if grown > limit and (old.rms >= tiny or figures.rms > limit * tiny / TINY_SHARE):
            return f"{name} is {grown:.3g} times as large as it was"
        if shrunk > limit and old.rms >= tiny:
            return f"{name} is {shrunk:.3g} times as small as it was"
    return None


def _usual_factor(*, settled: bool) -> float:
    return SETTLED_FACTOR if settled else USUAL_FACTOR


def _find_replaced(pairs: Pairs, *, settled: bool) -> str | None:
    shares = {
        name: _share_of_kept_signs(figures.signs, old.signs)
        for name, (figures, old) in pairs.items()
        if figures.signs and old.signs
    }
    if not shares:
        return None
    usual = median(shares.values())
    if usual < _usual_share(len(shares), settled=settled):
        return f"its matrices keep {usual:.0%} of their signs: these are other numbers"
    judged_alone = {name: share for name, share in shares.items() if settled or not _has_outgrown(*pairs[name])}
    name = min(judged_alone, key=lambda text: shares[text], default=None)
    if name is None:
        return None
    if shares[name] < (SETTLED_SIGNS_OF_ONE if settled else SIGNS_OF_ONE) and usual >= SIGNS_OF_OTHERS:
        return f"{name} keeps {shares[name]:.0%} of its signs, the others {usual:.0%}: these are other numbers"
    return None


def _usual_share(matrices: int, *, settled: bool) -> float:
    """Return the share of its signs that the median of so many matrices keeps at least."""
    if not settled:
        return SIGNS_KEPT
    return SETTLED_SIGNS_KEPT if matrices >= MEDIAN_OF_MATRICES else SETTLED_SIGNS_OF_ONE


def _has_outgrown(figures: TensorFigures, old: TensorFigures) -> bool:
    """Whether a matrix has grown so much that its signs say nothing of what it was."""
    return figures.rms is not None and old.rms is not None and figures.rms >= OUTGROWN_FACTOR * old.rms


def _share_of_kept_signs(mine: str, its: str) -> float:
    pairs = [pair for pair in zip(mine, its) if pair[1] != "0"]  # noqa: B905 - of numbers that both have
    return sum(pair == old for pair, old in pairs) / len(pairs) if pairs else 1.0


def _find_resized_optimizer(profile: Profile, before: Profile) -> str | None:
    theirs = before.states()
    for name, states in profile.states().items():
        for what in LIKE_A_PARAMETER:
            grown = list(_list_growth(states, theirs.get(name, {}), what))
            middle = median(grown) if grown else 1.0
            if not 1 / OPTIMIZER_FACTOR < middle < OPTIMIZER_FACTOR:
                return f"{name}: its {what} is {middle:.3g} times what it was"
    return None


def _list_growth(
    mine: Mapping[int, Mapping[str, TensorFigures]], its: Mapping[int, Mapping[str, TensorFigures]], what: str
) -> Iterable[float]:
    for number in mine.keys() & its.keys():
        figures, old = mine[number].get(what), its[number].get(what)
        if figures is not None and old is not None and figures.rms and old.rms:
            yield figures.rms / old.rms


def _join_name(*parts: str) -> str:
    return ".".join(filter(None, parts))


def judge_profile(profile: Profile, before: Sequence[Profile]) -> tuple[str | None, bool]:
    """Return (what is wrong, whether time could prove it right), None where nothing is.

    `before` holds the generation before, newest first, with what else may be the measure: a training that has really
    changed its course is believed once a later checkpoint continues one that was doubted.
    """
    why = other_architecture(profile, before[0]) if before else None
    why = why or find_contradiction(profile)
    if why is not None or not before:
        return why, False
    doubts = [find_drift(profile, earlier) for earlier in before]
    return (None, False) if None in doubts else (doubts[0], True)
