"""A larger batch as an arm of starts: what it changes of the training, and by what rule its learning rate follows.

It is another training, so it is tried only with `--may batch`. The rate follows the samples of an update: in proportion
for SGD (Goyal et al., "Accurate, large minibatch SGD", 2017), by the square root for Adam and its kin (Malladi et al.,
"On the SDEs and scaling rules for adaptive gradient algorithms", 2022); for other optimizers no rule is known here. It
is set together with the batch, because a larger batch at the old rate is another training as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.core.tuning.knob import Facts, Kind, NotTried
from supervisor.core.tuning.restarts import StartArm
from supervisor.core.tuning.start_order import FACTORS_OUTRANKED_BY

BATCH = "batch"
"""The knob, and the word of `--may` without which it is not tried; that word permits the starts that it takes."""
FACTOR = 2.0
ASKED = "batch_factor"
"""The setting of a script that asks for it: the one that `half_batch` changes."""
OF_LOADER = "loader_batch_factor"
"""That of loaders which draw in random order."""
LR = "lr_factor"
LINEAR, SQUARE_ROOT = "linear", "square root"
OWN_BATCH = {
    "ultralytics": "it counts its steps by epochs: with a larger batch what was saved before would pass for newer",
    "transformers": "its Trainer takes the batch from its arguments; micro_batch computes those of an update as one",
}
"""Frameworks that take the batch from their own settings, and why it is not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """What is known of the batches of a training, besides what its agent reports of its loader."""

    samples: int | None
    """Of a step that is recorded; None where it is not known."""
    framework: str | None
    adjustable: tuple[str, ...]
    """Settings that its script asks for."""


def find_rule(optimizer: str | None) -> str | None:
    """Return by what rule the learning rate of an optimizer follows the batch; None where none is known."""
    name = (optimizer or "").lower()
    if name == "sgd":
        return LINEAR
    return SQUARE_ROOT if "adam" in name or name == "rmsprop" else None


def plan_batch(facts: Facts, batches: Batches, remedied: Iterable[str]) -> StartArm | NotTried:
    """Return the arm that doubles the batch, or why it is not tried."""
    rule, samples = find_rule(facts.optimizer), (batches.samples or 0) * (facts.steps_per_update or 0)
    why = _find_reason_against(facts, batches, set(remedied))
    if why is not None or rule is None or not samples:
        return NotTried(knob=BATCH, why=why or "the samples of an update are not known")
    lr = FACTOR if rule == LINEAR else math.sqrt(FACTOR)
    is_asked = ASKED in batches.adjustable
    of_loader = "" if is_asked else f"{_write_doubled(facts.batch_size or 0)} samples a micro-batch, "
    rate = f"learning rate x{lr:.3g} ({rule}, {facts.optimizer})"
    return StartArm(
        knob=BATCH,
        value=f"x{FACTOR:g}: {of_loader}{_write_doubled(samples)} samples an update, {rate}",
        kind=Kind.OPTIMISATION,
        factors=((ASKED if is_asked else OF_LOADER, FACTOR), (LR, lr)),
        samples_factor=FACTOR,
    )


def _write_doubled(count: int) -> str:
    return f"{count} -> {FACTOR * count:.0f}"


def _find_reason_against(facts: Facts, batches: Batches, remedied: set[str]) -> str | None:
    found = sorted(remedied.intersection(FACTORS_OUTRANKED_BY))
    if found:
        return f"the remedy setting {found[0]} outranks it"
    if batches.framework is not None:
        return OWN_BATCH.get(batches.framework, f"{batches.framework} takes the batch from its own settings")
    if find_rule(facts.optimizer) is None:
        return f"by what rule the learning rate of {facts.optimizer or 'its optimizer'} follows the batch is not known"
    if ASKED in batches.adjustable or facts.batch_size is not None:
        return None
    return facts.batch_why_not or "the agent of this attempt cannot"
