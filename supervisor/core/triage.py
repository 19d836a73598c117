"""What replays of a step that went wrong say together: data, numerics or hardware; it replays nothing.

The order is that of proof: a batch that is wrong by itself needs no replay, what does not come back on the same
device was no matter of the numbers, and only what comes back everywhere is left to data and code. That something does
not come back proves nothing unless the replay went the way of the training up to there: its losses tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["data", "numerics", "hardware", "data_or_numerics", "unknown"]
LookedFor: TypeAlias = Literal["loss", "gradients"]
"""What ceased to be a number."""
RUNS = ("device", "float32", "cpu", "other_batch")
"""As it was; without mixed precision; on the CPU; with the batch before in place of the bad one."""
LEAST_COMPARED = 3
"""Losses of a replay that must be those of the training before it counts as the same course."""
LOSS_TOLERANCE = 0.01
"""Share by which they may differ: batches of one training differ by more, kernels and precisions by less."""
MANY_COMPARED, CHANGE_SHARE = 8, 0.25
"""After thousands of steps on a card, whose sums come in another order each time, the same batches give losses further
apart. Of so many they are told by lying closer together than this share of what the loss changes from step to step."""
FINDING_FILES = 16
"""Files that a finding names; the report names all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of one replay."""

    name: str
    seen: bool | None
    """Whether something not finite came back; None where the replay did not get that far."""
    step: int | None = None
    device: str | None = None
    half: bool = False
    module: str | None = None
    """The first module that returned something not finite, with its kind."""
    not_finite: tuple[str, ...] = ()
    """Inputs of the step that are not finite by themselves."""
    out_of_range: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    bad_files: tuple[str, ...] = ()
    same_course: bool | None = None
    """Whether its losses up to the step were those of the training; None where too few could be compared."""
    problem: str | None = None

    @property
    def gone(self) -> bool:
        """Whether it shows that the trouble does not come back this way."""
        return self.seen is False and self.same_course is True

    @property
    def on_cpu(self) -> bool:
        """Whether it was computed on the CPU."""
        return self.device is not None and self.device.startswith("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict, and the words for it."""

    verdict: Verdict
    words: str
    files: tuple[str, ...] = ()
    """What to look at first, of the data."""
    speaks_for: tuple[str, ...] = ()
    """Remedies that it speaks for, the likeliest first."""
    in_vain: tuple[str, ...] = ()
    """Remedies that cannot help if it is true."""


def unsaid(why: str) -> Finding:
    """Return the finding of a triage that came to none."""
    return Finding(verdict="unknown", words=why)


def same_course(replayed: Mapping[int, float], recorded: Mapping[int, float]) -> bool | None:
    """Return whether losses of a replay, by step, are those that the training recorded; None: too few are known.

    On a card a loss may be recorded a step late, for nobody waits for it, and on a CPU it is not.
    """
    said = [_alike({step + late: one for step, one in replayed.items()}, recorded) for late in (0, 1, -1)]
    return True if True in said else said[0]


def _alike(replayed: Mapping[int, float], recorded: Mapping[int, float]) -> bool | None:
    pairs = [(one, recorded[step]) for step, one in sorted(replayed.items()) if step in recorded]
    finite = [(one, other) for one, other in pairs if math.isfinite(one) and math.isfinite(other)]
    if len(finite) < LEAST_COMPARED:
        return None
    near = LOSS_TOLERANCE * median(abs(other) for _, other in finite)
    if all(math.isclose(one, other, rel_tol=LOSS_TOLERANCE, abs_tol=near) for one, other in finite):
        return True
    apart = median(abs(one - other) for one, other in finite)
    change = median(abs(later - other) for (_, other), (_, later) in pairwise(finite))
    return len(finite) >= MANY_COMPARED and apart <= CHANGE_SHARE * change


def conclude(replays: tuple[Replay, ...]) -> Finding:
    """Return what the replays say; `unknown` where they do not suffice."""
    known = {one.name: one for one in replays if one.seen or one.gone}
    first = known.get("device")
    wrong = next((one for one in known.values() if one.seen and (one.not_finite or one.out_of_range)), None)
    if wrong is not None:
        return _of_batch(wrong)
    if first is None:
        return unsaid(_not_replayed(next((one for one in replays if one.name == "device"), None)))
    if not first.seen:
        where = f" ({first.device})" if first.device else ""
        words = f"the same step on the same device{where} is finite now: the hardware, or a race in its software"
        return Finding(verdict="hardware", words=words)
    return _comes_back(first, known, {one.name: one for one in replays})


def needed(replays: tuple[Replay, ...]) -> str | None:
    """Return the next replay that would tell more, None once the verdict stands."""
    done = {one.name: one for one in replays}
    if "device" not in done:
        return "device"
    first = done["device"]
    if not first.seen or first.not_finite or first.out_of_range or first.device is None:
        return None  # without a device nobody looked into it, and nothing could be changed in it
    if first.half and "float32" not in done:
        return "float32"
    if "float32" in done and not done["float32"].seen:
        return None
    if "other_batch" not in done:
        return "other_batch"
    # Last, for it may take longer than all the others: a CPU makes a tenth of a card's steps, or less.
    return "cpu" if not first.on_cpu and "cpu" not in done else None


def _not_replayed(one: Replay | None) -> str:
    if one is None or one.seen is None:
        return f"the step could not be replayed: {one.problem if one and one.problem else 'it was not replayed'}"
    why = "too few steps before it could be compared" if one.same_course is None else "its losses were others before it"
    return f"it did not come back, yet the replay may not have been the same training: {why}"


def _of_batch(one: Replay) -> Finding:
    said = [f"{name} is not finite" for name in one.not_finite] + [
        f"{name} is out of range" for name in one.out_of_range
    ]
    files = one.bad_files or one.files
    words = f"the batch of step {one.step} is wrong by itself: {', '.join(said)}"
    return _of_data(words, files)


def _of_data(words: str, files: tuple[str, ...]) -> Finding:
    return Finding(
        verdict="data", words=words, files=files, speaks_for=("skip_data",), in_vain=("restart", "older_generation")
    )


def _comes_back(first: Replay, known: Mapping[str, Replay], made: Mapping[str, Replay]) -> Finding:
    where = f", first in {first.module}" if first.module else ", in the loss itself"
    single, cpu, other = known.get("float32"), known.get("cpu"), known.get("other_batch")
    if single is not None and not single.seen:
        words = f"it comes back in half precision and not in float32{where}"
        return Finding(verdict="numerics", words=words, speaks_for=("amp_off", "lower_lr"), in_vain=("restart",))
    missing = _missing(first, known, made)
    if missing is not None and (other is None or other.seen or (first.half and single is None)):
        return unsaid(f"it comes back on {first.device or 'the same device'}{where}; {missing}")
    if cpu is not None and not cpu.seen:
        words = (
            f"it comes back on {first.device} and not on the CPU, state and batch the same{where}: a kernel or the card"
        )
        return Finding(
            verdict="hardware",
            words=words,
            speaks_for=("other_card", "cpu_profile"),
            in_vain=("restart", "older_generation"),
        )
    if other is not None and not other.seen:
        words = f"it comes back with this batch and not with another{where}, though the batch is finite"
        return _of_data("; ".join(filter(None, (words, missing))), first.files)
    if other is not None:
        words = f"it comes back with another batch as well{where}: the model or its state"
        return Finding(verdict="numerics", words=words, speaks_for=("lower_lr", "clip_gradients"), in_vain=("restart",))
    words = f"it comes back everywhere{where}"
    return Finding(verdict="data_or_numerics", words=words, files=first.files, in_vain=("restart",))


def _missing(first: Replay, known: Mapping[str, Replay], made: Mapping[str, Replay]) -> str | None:
    """Return what has to be known before precision and device are ruled out, None where all of it is."""
    asked = (("float32", "in float32", first.half), ("cpu", "on the CPU", not first.on_cpu))
    for name, where, due in asked:
        if due and name not in known:
            one = made.get(name)
            why = (one.problem or "its losses were others before it") if one is not None else "it was not replayed"
            return f"whether {where} as well is not known: {why}"
    return None
