"""What replays of a step that went wrong say together: data, numerics or hardware; it replays nothing.

The order is that of proof: a batch that is wrong by itself needs no replay, what does not come back on the same
device was no matter of the numbers, and only what comes back everywhere is left to data and code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["data", "numerics", "hardware", "data_or_numerics", "unknown"]
RUNS = ("device", "float32", "cpu", "other_batch")
"""As it was; without mixed precision; on the CPU; with the batch before in place of the bad one."""


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
    problem: str | None = None

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


def conclude(replays: tuple[Replay, ...]) -> Finding:
    """Return what the replays say; `unknown` where the one on the same device did not get to the step."""
    known = {one.name: one for one in replays if one.seen is not None}
    first = known.get("device")
    wrong = next((one for one in known.values() if one.seen and (one.not_finite or one.out_of_range)), None)
    if wrong is not None:
        return _of_batch(wrong)
    if first is None:
        problem = next((one.problem for one in replays if one.name == "device" and one.problem), "it was not replayed")
        return Finding(verdict="unknown", words=f"the step could not be replayed: {problem}")
    if not first.seen:
        words = (
            f"the same step on the same device ({first.device}) is finite now: the hardware, or a race in its software"
        )
        return Finding(verdict="hardware", words=words)
    return _comes_back(first, known)


def needed(replays: tuple[Replay, ...]) -> str | None:
    """Return the next replay that would tell more, None once the verdict stands."""
    done = {one.name: one for one in replays}
    if "device" not in done:
        return "device"
    first = done["device"]
    if not first.seen or first.not_finite or first.out_of_range:
        return None
    if first.half and "float32" not in done:
        return "float32"
    if "float32" in done and done["float32"].seen is False:
        return None
    if not first.on_cpu and "cpu" not in done:
        return "cpu"
    if "cpu" in done and done["cpu"].seen is False:
        return None
    return None if "other_batch" in done else "other_batch"


def _of_batch(one: Replay) -> Finding:
    said = [f"{name} is not finite" for name in one.not_finite] + [
        f"{name} is out of range" for name in one.out_of_range
    ]
    files = one.bad_files or one.files
    return Finding(
        verdict="data", words=f"the batch of step {one.step} is wrong by itself: {', '.join(said)}", files=files
    )


def _comes_back(first: Replay, known: dict[str, Replay]) -> Finding:
    where = f", first in {first.module}" if first.module else ", in the loss itself"
    single, cpu, other = known.get("float32"), known.get("cpu"), known.get("other_batch")
    if single is not None and not single.seen:
        return Finding(verdict="numerics", words=f"it comes back in half precision and not in float32{where}")
    if cpu is not None and not cpu.seen:
        words = (
            f"it comes back on {first.device} and not on the CPU, state and batch the same{where}: a kernel or the card"
        )
        return Finding(verdict="hardware", words=words)
    if other is not None and not other.seen:
        words = f"it comes back with this batch and not with another{where}, though the batch is finite"
        return Finding(verdict="data", words=words, files=first.files)
    if other is not None:
        return Finding(
            verdict="numerics", words=f"it comes back with another batch as well{where}: the model or its state"
        )
    return Finding(verdict="data_or_numerics", words=f"it comes back everywhere{where}", files=first.files)
