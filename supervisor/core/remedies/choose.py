"""Which remedy comes next, from what was tried and what the machine offers; it applies nothing.

What has not helped at the same place will not help there: it is the data or the code, so the next remedy is taken,
and where none is left the answer is that none is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.core.remedies.last_resorts import RESORTS, Resort, would_help
from supervisor.core.remedies.remedy import (
    ADDING_UP,
    ASKED_AS,
    BY_THE_AGENT,
    BY_THE_FRAMEWORK,
    LAST_RESORTS,
    PASSING,
    WORDS,
    Remedies,
)
from supervisor.core.remedies.trials import Course
from supervisor.core.scale import is_beyond, on_training, same_place
from supervisor.core.triage import Finding

PLAIN_TRIES = 2
"""How often a remedy that changes nothing may fail at different places of one episode."""
NEEDS_A_GPU = frozenset({"reset_gpu", "allocator", "conv2d_workspace", "conv2d", "cudnn_off", "other_gpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What a remedy has come to on this machine against one cause."""

    cause: str
    remedy: str
    helped: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyContext:
    """What of the machine and the settings decides which remedies there are."""

    agent: bool = True
    conv2d_auto: bool = True
    cpu_profile: bool = False
    free_gpus: tuple[str, ...] = ()
    """PCI addresses of GPUs that answer and that no job uses, the best first."""
    answering_s: tuple[tuple[str, float], ...] = ()
    """For how long each GPU has answered without a gap."""
    experience: tuple[Experience, ...] = ()
    memory: tuple[GpuMemory, ...] = ()
    """What is taken of each of the job's GPUs, as far as that is known and no other job has a part in it."""
    resorts: tuple[Resort, ...] = ()
    """The last resorts that there are, on or off, the milder first."""
    resume_command: bool = False
    """Whether its owner has written what it is resumed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What of an attempt that ended in trouble, and of its job, decides which remedy comes next."""

    cause: str
    step: int | None = None
    """Where in the training the trouble was; None where that is not known."""
    framework: str | None = None
    asked: tuple[str, ...] = ()
    """Settings that the script itself asks for."""
    torch: bool = False
    patched: bool = False
    """Whether it computed its Conv2d without MIOpen."""
    resumed: bool = False
    """Whether it had been resumed from a checkpoint, so that there is one to be older than."""
    resorts_taken: tuple[str, ...] = ()
    """The last resorts that were taken since it last made progress."""
    finding: Finding | None = None
    """What a triage said of the trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The next remedy, or None where none is left, and why."""

    remedy: str | None
    reason: str
    gpu: str | None = None


def choose(course: Course, remedies: Remedies, ended: Ended, ground: RemedyContext) -> Choice:
    """Return the remedy for an attempt that ended; `course` knows of that already."""
    cause, step = ended.cause, ended.step
    if not remedies.enabled:
        return Choice(remedy="restart", reason="remedies are disabled")
    past = course.episode(cause)
    again = next((trial for trial in reversed(past) if _is_same_place(trial.step, step, remedies)), None)
    told = []
    if again is not None:
        told.append(f"the same {cause} at the same place (step {step}, before it step {again.step})")
        told.append(f"{again.remedy} did not help: the data or the code is at fault")
    order, said = _order_by_experience(remedies, cause, ground)
    if ended.finding is not None:
        order, of_finding = _order_by_finding(order, ended.finding)
        said = [of_finding, *said]
    told += said
    for remedy in order:
        possible = remedies.allows(remedy) and _is_possible(remedy, course, ended, ground)
        if possible and not _is_used_up(remedy, course, remedies, ended):
            gpu = ground.free_gpus[0] if remedy == "other_gpu" else None
            return Choice(remedy=remedy, reason="; ".join([*told, WORDS[remedy]]), gpu=gpu)
    in_vain = ended.finding.in_vain if ended.finding is not None else ()
    if again is None and remedies.allows("restart") and "restart" not in in_vain:
        place = "place is not known" if step is None else "place is another"
        why = f"no remedy is left, and the {place}: " if past else "no remedy applies: "
        return Choice(remedy="restart", reason="; ".join([*told, why + WORDS["restart"]]))
    return Choice(remedy=None, reason="; ".join([*told, f"no remedy is left for {cause}"]))


def help_against(cause: str, remedies: Remedies, ground: RemedyContext, taken: Iterable[str]) -> str:
    """Return in words which last resorts a person has against a cause, empty where they would not help."""
    return would_help([resort for resort in ground.resorts if resort.kind in remedies.ladder(cause)], taken)


def _order_by_experience(remedies: Remedies, cause: str, ground: RemedyContext) -> tuple[tuple[str, ...], list[str]]:
    """Return the ladder in the order that experience gives it, and what is to be said about that."""
    ladder: tuple[str, ...] = remedies.ladder(cause)
    if not remedies.learn:
        return ladder, []
    known = {experience.remedy: experience for experience in ground.experience if experience.cause == cause}
    least = remedies.give_up_after_failures
    hopeless = [
        name
        for name in dict.fromkeys(ladder)
        if name in known and known[name].helped == 0 and known[name].failed >= least and name not in PASSING
    ]
    good = [
        name
        for name in dict.fromkeys(ladder)
        if name in known and known[name].helped > known[name].failed and name not in LAST_RESORTS
    ]
    good.sort(key=lambda name: known[name].helped - known[name].failed, reverse=True)
    said = [f"{name} skipped: failed {known[name].failed} times on this machine" for name in hopeless]
    first = ladder[0] if ladder else None
    said += [f"{name} first: helped {known[name].helped} times on this machine" for name in good[:1] if name != first]
    ordered = [*good, *_without_first(ladder, good)]
    return tuple(entry for entry in ordered if entry not in hopeless), said


def _order_by_finding(order: tuple[str, ...], finding: Finding) -> tuple[tuple[str, ...], str]:
    """Return the order as a triage's finding changes it: what it speaks for first, what would be in vain not at all."""
    first = [text for text in finding.speaks_for if text in order]
    rest = [text for text in _without_first(order, first) if text not in finding.in_vain]
    return (*first, *rest), f"triage: {finding.verdict.replace('_', ' ')}: {finding.words}"


def _without_first(ladder: Iterable[str], taken: list[str]) -> Iterable[str]:
    """Yield a ladder without the first stand of each remedy that was taken out of it."""
    left = list(taken)
    for text in ladder:
        if text in left:
            left.remove(text)
        else:
            yield text


def _is_possible(remedy: str, course: Course, ended: Ended, ground: RemedyContext) -> bool:
    if remedy in NEEDS_A_GPU and course.has("cpu_profile"):
        return False
    if remedy in BY_THE_FRAMEWORK:
        return ground.agent and (ended.framework == "ultralytics" or ASKED_AS[remedy] in ended.asked)
    if remedy in BY_THE_AGENT:
        return ground.agent and ended.torch
    match remedy:
        case "conv2d":
            return ground.agent and ground.conv2d_auto and not ended.patched
        case "conv2d_workspace":
            return ground.agent and ended.patched
        case "other_gpu":
            return bool(ground.free_gpus)
        case "cpu_profile":
            return ground.cpu_profile and not course.has("cpu_profile")
        case "older_generation":
            # What it was resumed from took it beyond every trouble before: that was sound, unless it is the numbers.
            return ended.resumed and (ended.cause in ADDING_UP or not _has_come_further(course, ended))
        case "reset_gpu" | "reboot":
            free = any(resort.kind == remedy and resort.on and resort.refused is None for resort in ground.resorts)
            return free and remedy not in ended.resorts_taken
        case _:
            return True


def _has_come_further(course: Course, ended: Ended) -> bool:
    """Whether the trouble is known to be beyond every one of its cause before it."""
    places = [on_training(trial.step) for trial in course.episode(ended.cause)]
    return bool(places) and all(is_beyond(on_training(ended.step), place) is True for place in places)


def _is_same_place(step: int | None, other: int | None, remedies: Remedies) -> bool:
    return same_place(on_training(step), on_training(other), remedies.same_place_steps)


def _is_used_up(remedy: str, course: Course, remedies: Remedies, ended: Ended) -> bool:
    tried = [trial for trial in course.episode(ended.cause) if trial.remedy == remedy]
    if remedy in RESORTS:
        return bool(tried)
    if remedy in PASSING:
        here = any(_is_same_place(trial.step, ended.step, remedies) for trial in tried)
        return here or len(tried) >= PLAIN_TRIES
    in_force = sum(item.remedy == remedy for item in course.in_force)
    listed = sum(text == remedy for text in remedies.ladder(ended.cause))
    return max(len(tried), in_force) >= listed


def back_to(course: Course, remedies: Remedies, ground: RemedyContext, running_s: float) -> str | None:
    """Return the GPU to which a training on the CPU goes back, since it answers again; None: it stays."""
    lost = next(
        (remedy for remedy in course.in_force if remedy.remedy == "cpu_profile" and remedy.cause == "gpu_lost"), None
    )
    if lost is None or course.returns >= remedies.max_returns or running_s < remedies.back_after_s:
        return None
    answering = dict(ground.answering_s)
    gpus = [lost.gpu] if lost.gpu is not None else list(answering)
    well = [gpu for gpu in gpus if answering.get(gpu, 0.0) >= remedies.back_after_s]
    return well[0] if well else None
