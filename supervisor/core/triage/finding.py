"""The verdict of the replays of a bad step: data, numerics or hardware.

The order is that of proof: an invalid batch needs no replay, what does not come back on the same
device was no matter of the numbers, and only what comes back everywhere is left to data and code. That something does
not come back proves nothing unless the replay followed the training up to there, which its losses show.
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
"""What became non-finite."""
LEAST_COMPARED = 3
"""Losses of a replay that must be those of the training before it counts as the same course."""
LOSS_TOLERANCE = 0.01
"""Share by which they may differ: batches of one training differ by more, kernels and precisions by less."""
MANY_COMPARED, CHANGE_SHARE = 8, 0.25
"""After thousands of steps on a GPU, which sums in another order each time, the same batches give losses further apart.
With so many losses, the courses are the same if they differ by less than this share of the change from step to step."""
FINDING_FILES = 16
"""Files that a finding names; the report names all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of one replay."""

    name: str
    """`device`: as it was; `float32`: without mixed precision; `cpu`; `other_batch`: with the batch before."""
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
        """Whether it shows that the fault is not reproduced this way."""
        return self.seen is False and self.same_course is True

    @property
    def on_cpu(self) -> bool:
        """Whether it was computed on the CPU."""
        return self.device is not None and self.device.startswith("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict and its description."""

    verdict: Verdict
    words: str
    files: tuple[str, ...] = ()
    """What to look at first, of the data."""
    speaks_for: tuple[str, ...] = ()
    """Remedies that it supports, the likeliest first."""
    in_vain: tuple[str, ...] = ()
    """Remedies that cannot help if it is right."""


def inconclusive(why: str) -> Finding:
    """Return the finding of an inconclusive triage."""
    return Finding(verdict="unknown", words=why)


def same_course(replayed: Mapping[int, float], recorded: Mapping[int, float]) -> bool | None:
    """Return whether losses of a replay, by step, are those that the training recorded; None: too few are known.

    On a GPU a loss may be recorded a step late, since nothing waits for it; on a CPU it is not.
    """
    results = [
        _compare_losses({step + late: value for step, value in replayed.items()}, recorded) for late in (0, 1, -1)
    ]
    return True if True in results else results[0]


def _compare_losses(replayed: Mapping[int, float], recorded: Mapping[int, float]) -> bool | None:
    pairs = [(value, recorded[step]) for step, value in sorted(replayed.items()) if step in recorded]
    finite = [(pair, other) for pair, other in pairs if math.isfinite(pair) and math.isfinite(other)]
    if len(finite) < LEAST_COMPARED:
        return None
    near = LOSS_TOLERANCE * median(abs(other) for _, other in finite)
    if all(math.isclose(value, other, rel_tol=LOSS_TOLERANCE, abs_tol=near) for value, other in finite):
        return True
    apart = median(abs(value - other) for value, other in finite)
    change = median(abs(later - other) for (_, other), (_, later) in pairwise(finite))
    return len(finite) >= MANY_COMPARED and apart <= CHANGE_SHARE * change


def conclude(replays: tuple[Replay, ...]) -> Finding:
    """Return the finding of the replays; `unknown` where they do not suffice."""
    known = {replay.name: replay for replay in replays if replay.seen or replay.gone}
    first = known.get("device")
    wrong = next(
        (replay for replay in known.values() if replay.seen and (replay.not_finite or replay.out_of_range)), None
    )
    if wrong is not None:
        return _conclude_on_batch(wrong)
    if first is None:
        return inconclusive(
            _explain_not_replayed(next((replay for replay in replays if replay.name == "device"), None))
        )
    if not first.seen:
        where = f" ({first.device})" if first.device else ""
        words = f"the same step on the same device{where} is finite on replay: the hardware, or a race condition"
        return Finding(verdict="hardware", words=words)
    return _conclude_reproduced(first, known, {replay.name: replay for replay in replays})


def needed(replays: tuple[Replay, ...]) -> str | None:
    """Return the next replay that would add information, None once the verdict is certain."""
    done = {replay.name: replay for replay in replays}
    if "device" not in done:
        return "device"
    first = done["device"]
    if not first.seen or first.not_finite or first.out_of_range or first.device is None:
        return None  # without a device the replay was not instrumented, and nothing can be varied in it
    if first.half and "float32" not in done:
        return "float32"
    if "float32" in done and not done["float32"].seen:
        return None
    if "other_batch" not in done:
        return "other_batch"
    # Last, because it may take longer than all others: a CPU makes a tenth of a GPU's steps, or less.
    return "cpu" if not first.on_cpu and "cpu" not in done else None


def _explain_not_replayed(replay: Replay | None) -> str:
    if replay is None or replay.seen is None:
        return (
            f"the step could not be replayed: {replay.problem if replay and replay.problem else 'it was not replayed'}"
        )
    why = "too few earlier steps to compare" if replay.same_course is None else "its losses before that step differ"
    return f"not reproduced, but the replay may differ from the training: {why}"


def _conclude_on_batch(replay: Replay) -> Finding:
    defects = [f"{name} is not finite" for name in replay.not_finite] + [
        f"{name} is out of range" for name in replay.out_of_range
    ]
    files = replay.bad_files or replay.files
    words = f"the batch of step {replay.step} is invalid: {', '.join(defects)}"
    return _conclude_on_data(words, files)


def _conclude_on_data(words: str, files: tuple[str, ...]) -> Finding:
    return Finding(
        verdict="data", words=words, files=files, speaks_for=("skip_data",), in_vain=("restart", "older_generation")
    )


def _conclude_reproduced(first: Replay, known: Mapping[str, Replay], made: Mapping[str, Replay]) -> Finding:
    where = f", first in {first.module}" if first.module else ", in the loss itself"
    single, cpu, other = known.get("float32"), known.get("cpu"), known.get("other_batch")
    if single is not None and not single.seen:
        words = f"reproduced in half precision and not in float32{where}"
        return Finding(verdict="numerics", words=words, speaks_for=("amp_off", "lower_lr"), in_vain=("restart",))
    missing = _find_missing(first, known, made)
    if missing is not None and (other is None or other.seen or (first.half and single is None)):
        return inconclusive(f"reproduced on {first.device or 'the same device'}{where}; {missing}")
    if cpu is not None and not cpu.seen:
        compared = f"reproduced on {first.device} and not on the CPU with the same state and batch"
        words = f"{compared}{where}: a GPU kernel or the GPU itself"
        return Finding(
            verdict="hardware",
            words=words,
            speaks_for=("other_gpu", "cpu_profile"),
            in_vain=("restart", "older_generation"),
        )
    if other is not None and not other.seen:
        words = f"reproduced with this batch and not with another{where}, though the batch is finite"
        return _conclude_on_data("; ".join(filter(None, (words, missing))), first.files)
    if other is not None:
        words = f"reproduced with another batch as well{where}: the model or its state"
        return Finding(verdict="numerics", words=words, speaks_for=("lower_lr", "clip_gradients"), in_vain=("restart",))
    words = f"reproduced in every replay{where}"
    return Finding(verdict="data_or_numerics", words=words, files=first.files, in_vain=("restart",))


def _find_missing(first: Replay, known: Mapping[str, Replay], made: Mapping[str, Replay]) -> str | None:
    """Return what has to be known before precision and device are ruled out, None where all of it is."""
    asked = (("float32", "in float32", first.half), ("cpu", "on the CPU", not first.on_cpu))
    for name, where, due in asked:
        if due and name not in known:
            replay = made.get(name)
            why = (
                (replay.problem or "its losses before that step differ")
                if replay is not None
                else "it was not replayed"
            )
            return f"whether {where} as well is not known: {why}"
    return None
