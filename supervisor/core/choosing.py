"""Which remedy comes next, from what was tried and what the machine offers; it applies nothing.

What has not helped at the same place will not help there: it is the data or the code, so the next remedy is taken,
and where none is left the answer is that none is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.core.course import Course
from supervisor.core.freed import CardMemory
from supervisor.core.remedies import (
    ADDING_UP,
    ASKED_AS,
    BY_THE_AGENT,
    BY_THE_FRAMEWORK,
    LAST_RESORTS,
    PASSING,
    WORDS,
    Remedies,
)
from supervisor.core.resorts import RESORTS, Resort, would_help
from supervisor.core.triage import Finding

PLAIN_TRIES = 2
"""How often a remedy that changes nothing may fail at different places of one episode."""
ON_A_CARD = frozenset({"reset_card", "allocator", "conv2d_workspace", "conv2d", "cudnn_off", "other_card"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What a remedy has come to on this machine against one cause."""

    cause: str
    remedy: str
    helped: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What of the machine and the settings decides which remedies there are."""

    agent: bool = True
    conv2d_auto: bool = True
    cpu_profile: bool = False
    free_cards: tuple[str, ...] = ()
    """PCI addresses of cards that answer and that no job uses, the best first."""
    answering_s: tuple[tuple[str, float], ...] = ()
    """For how long each card has answered without a gap."""
    experience: tuple[Experience, ...] = ()
    memory: tuple[CardMemory, ...] = ()
    """What is taken of each of the job's cards, as far as that is known and no other job has a part in it."""
    resorts: tuple[Resort, ...] = ()
    """The last resorts that there are, on or off, the milder first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What of an attempt that ended in trouble, and of its job, decides which remedy comes next."""

    cause: str
    step: int | None = None
    """Where the trouble was; None where no step is known."""
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
    card: str | None = None


def same_place(step: int | None, other: int | None, tolerance: int) -> bool:
    """Whether two troubles came at the same step; what is unknown is not the same."""
    return step is not None and other is not None and abs(step - other) <= tolerance


def choose(course: Course, remedies: Remedies, ended: Ended, ground: Ground) -> Choice:
    """Return the remedy for an attempt that ended; `course` knows of that already."""
    cause, step = ended.cause, ended.step
    if not remedies.enabled:
        return Choice(remedy="restart", reason="remedies are switched off")
    past = course.episode(cause)
    again = next((one for one in reversed(past) if same_place(one.step, step, remedies.same_steps)), None)
    told = []
    if again is not None:
        told.append(f"the same {cause} at the same place (step {step}, before it step {again.step})")
        told.append(f"{again.remedy} has not helped: it is the data or the code")
    order, said = _order(remedies, cause, ground)
    if ended.finding is not None:
        order, of_finding = _by_finding(order, ended.finding)
        said = [of_finding, *said]
    told += said
    for remedy in order:
        possible = remedies.allows(remedy) and _possible(remedy, course, ended, ground)
        if possible and not _used_up(remedy, course, remedies, ended):
            card = ground.free_cards[0] if remedy == "other_card" else None
            return Choice(remedy=remedy, reason="; ".join([*told, WORDS[remedy]]), card=card)
    in_vain = ended.finding.in_vain if ended.finding is not None else ()
    if again is None and remedies.allows("restart") and "restart" not in in_vain:
        why = "no remedy is left, and the place is another: " if past else "no remedy applies: "
        return Choice(remedy="restart", reason="; ".join([*told, why + WORDS["restart"]]))
    return Choice(remedy=None, reason="; ".join([*told, f"no remedy is left for {cause}"]))


def help_against(cause: str, remedies: Remedies, ground: Ground, taken: Iterable[str]) -> str:
    """Return in words which last resorts a person has against a cause, empty where they would not help."""
    return would_help([one for one in ground.resorts if one.kind in remedies.ladder(cause)], taken)


def _order(remedies: Remedies, cause: str, ground: Ground) -> tuple[tuple[str, ...], list[str]]:
    """Return the ladder in the order that experience gives it, and what is to be said about that."""
    ladder: tuple[str, ...] = remedies.ladder(cause)
    if not remedies.learn:
        return ladder, []
    known = {one.remedy: one for one in ground.experience if one.cause == cause}
    least = remedies.failures_passed_over
    hopeless = [
        one
        for one in dict.fromkeys(ladder)
        if one in known and known[one].helped == 0 and known[one].failed >= least and one not in PASSING
    ]
    good = [
        one
        for one in dict.fromkeys(ladder)
        if one in known and known[one].helped > known[one].failed and one not in LAST_RESORTS
    ]
    good.sort(key=lambda one: known[one].helped - known[one].failed, reverse=True)
    said = [f"{one} passed over: failed {known[one].failed} times on this machine" for one in hopeless]
    first = ladder[0] if ladder else None
    said += [f"{one} first: helped {known[one].helped} times on this machine" for one in good[:1] if one != first]
    ordered = [*good, *_without_first(ladder, good)]
    return tuple(one for one in ordered if one not in hopeless), said


def _by_finding(order: tuple[str, ...], finding: Finding) -> tuple[tuple[str, ...], str]:
    """Return the order as a triage's finding changes it: what it speaks for first, what would be in vain not at all."""
    first = [one for one in finding.speaks_for if one in order]
    rest = [one for one in _without_first(order, first) if one not in finding.in_vain]
    return (*first, *rest), f"triage says {finding.verdict.replace('_', ' ')}: {finding.words}"


def _without_first(ladder: Iterable[str], taken: list[str]) -> Iterable[str]:
    """Yield a ladder without the first stand of each remedy that was taken out of it."""
    left = list(taken)
    for one in ladder:
        if one in left:
            left.remove(one)
        else:
            yield one


def _possible(remedy: str, course: Course, ended: Ended, ground: Ground) -> bool:
    if remedy in ON_A_CARD and course.has("cpu_profile"):
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
        case "other_card":
            return bool(ground.free_cards)
        case "cpu_profile":
            return ground.cpu_profile and not course.has("cpu_profile")
        case "older_generation":
            # What it was resumed from took it beyond every trouble before: that was sound, unless it is the numbers.
            return ended.resumed and (ended.cause in ADDING_UP or not _came_further(course, ended))
        case "reset_card" | "reboot":
            free = any(one.kind == remedy and one.on and one.refused is None for one in ground.resorts)
            return free and remedy not in ended.resorts_taken
        case _:
            return True


def _came_further(course: Course, ended: Ended) -> bool:
    """Whether the trouble is known to be beyond every one of its cause before it."""
    places = [one.step for one in course.episode(ended.cause)]
    return bool(places) and all(place is not None and ended.step is not None and ended.step > place for place in places)


def _used_up(remedy: str, course: Course, remedies: Remedies, ended: Ended) -> bool:
    tried = [one for one in course.episode(ended.cause) if one.remedy == remedy]
    if remedy in RESORTS:
        return bool(tried)
    if remedy in PASSING:
        here = any(same_place(one.step, ended.step, remedies.same_steps) for one in tried)
        return here or len(tried) >= PLAIN_TRIES
    in_force = sum(one.remedy == remedy for one in course.in_force)
    listed = sum(one == remedy for one in remedies.ladder(ended.cause))
    return max(len(tried), in_force) >= listed


def back_to(course: Course, remedies: Remedies, ground: Ground, running_s: float) -> str | None:
    """Return the card to which a training on the CPU should go back, for it answers again; None: it stays."""
    lost = next((one for one in course.in_force if one.remedy == "cpu_profile" and one.cause == "card_lost"), None)
    if lost is None or course.backs >= remedies.backs or running_s < remedies.back_after_s:
        return None
    answering = dict(ground.answering_s)
    cards = [lost.card] if lost.card is not None else list(answering)
    well = [one for one in cards if answering.get(one, 0.0) >= remedies.back_after_s]
    return well[0] if well else None
