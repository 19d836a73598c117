"""A job's life as a sequence of segments, each of one class, without gaps or overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from supervisor.core.reports.strides import Strides


class Use(Enum):
    """What a second was spent on."""

    SETUP = "setup"
    COMPILE = "compile"
    """Kernel search, compilation and warm-up: from the first batch to the first step."""
    TRAIN = "train"
    DATA_WAIT = "data_wait"
    VALIDATE = "validate"
    CHECKPOINT = "checkpoint"
    LOST = "lost"
    """Work that had to be redone: the training was resumed from before it."""
    DOWN = "down"
    """From the last sign of progress before a fault to the next launch."""
    TRIAGE = "triage"
    """Replaying a bad step before a retry, to find its cause."""
    WAITING = "waiting"
    """Stopped by a person."""
    UNSEEN = "unseen"
    """It ran, and its stages were not reported."""


EFFECTIVE = frozenset({Use.TRAIN, Use.DATA_WAIT, Use.VALIDATE, Use.CHECKPOINT})
_WORK = EFFECTIVE | {Use.UNSEEN}
_OF_STAGE = {
    "setup": Use.SETUP,
    "warmup": Use.COMPILE,
    "compile": Use.COMPILE,
    "step": Use.TRAIN,
    "loop": Use.TRAIN,
    "data_wait": Use.DATA_WAIT,
    "validate": Use.VALIDATE,
    "checkpoint": Use.CHECKPOINT,
    "ended": Use.TRAIN,
    "exiting": Use.TRAIN,
}
"""Work after the last epoch and the end of the program belong to the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One attempt as the record knows it."""

    number: int
    launched_unix_s: float
    ended_unix_s: float | None
    """None while it runs."""
    resume_step: int | None = None
    """Step of the checkpoint that it resumed from, 0 for the beginning, None where that is not known."""
    resume_saved_unix_s: float | None = None
    """When that checkpoint was saved, None where that is not known."""
    from_beginning: bool = False
    """Whether a person had it start a new training: earlier work is then not lost."""
    entered: tuple[tuple[float, str], ...] = ()
    """Stages and when they began, Unix seconds, in order."""
    strides: Strides = field(default_factory=Strides)
    counts_itself: bool = False
    """Whether its strides are numbered by its own count, which cannot be compared with other attempts' steps."""
    cause: str | None = None
    """The rule and class of the fault that ended it."""
    wanted: bool = False
    """Whether its end was wanted: it finished, or a person stopped it."""
    triage: tuple[float, float] | None = None
    """When its bad step was replayed after its end: from, to, in Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A period of one class; `data_wait_s` of it was spent waiting for data."""

    use: Use
    began_unix_s: float
    ended_unix_s: float
    data_wait_s: float = 0.0
    cause: str | None = None
    """The fault that caused it."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended_unix_s - self.began_unix_s

    def within(self, began_unix_s: float, ended_unix_s: float) -> Segment | None:
        """Return the part of it within a window."""
        began, ended = max(self.began_unix_s, began_unix_s), min(self.ended_unix_s, ended_unix_s)
        if began >= ended:
            return None
        share = (ended - began) / self.seconds
        return replace(self, began_unix_s=began, ended_unix_s=ended, data_wait_s=self.data_wait_s * share)


def timeline(lives: Sequence[Life], until_unix_s: float) -> Iterator[Segment]:
    """Return a job's life without gaps or overlaps, in order of time.

    It extends to `until_unix_s` unless the last end was wanted: nothing is charged after a job finished or was stopped.
    """
    ordered = _without_overlap(lives, until_unix_s)
    for index, (life, ended) in enumerate(ordered):
        came_of = ordered[index - 1][0].cause if index else None
        cut, cut_by = _find_cut(ordered, index)
        for segment in _list_segments(life, ended):
            yield from _split_lost(_charge_setup(segment, came_of), cut, cut_by)
        last = index + 1 == len(ordered)
        after = until_unix_s if last else ordered[index + 1][0].launched_unix_s
        if life.ended_unix_s is not None and after > ended and not (last and life.wanted):
            use = Use.WAITING if life.wanted else Use.DOWN
            gap = Segment(use=use, began_unix_s=ended, ended_unix_s=after, cause=None if life.wanted else life.cause)
            yield from _with_triage(gap, life.triage)


def _with_triage(gap: Segment, triage: tuple[float, float] | None) -> Iterator[Segment]:
    """Return the time between two attempts, its triage separate; one without an end lasts to the next attempt."""
    made = gap.within(*triage) if triage is not None and gap.use is Use.DOWN else None
    if made is None:
        yield gap
        return
    before = gap.within(gap.began_unix_s, made.began_unix_s)
    after = gap.within(made.ended_unix_s, gap.ended_unix_s)
    yield from (segment for segment in (before, replace(made, use=Use.TRIAGE), after) if segment is not None)


def _without_overlap(lives: Sequence[Life], until_unix_s: float) -> list[tuple[Life, float]]:
    """Return each life with its end; a wall clock that was set back must not count a second twice."""
    bounded: list[tuple[Life, float]] = []
    cursor = lives[0].launched_unix_s if lives else until_unix_s
    for index, life in enumerate(lives):
        launched = max(cursor, life.launched_unix_s)
        if launched >= until_unix_s:
            break
        # An attempt whose end is not recorded was over when the next one began.
        following = lives[index + 1].launched_unix_s if index + 1 < len(lives) else until_unix_s
        ended = following if life.ended_unix_s is None else life.ended_unix_s
        cursor = max(launched, min(ended, until_unix_s))
        bounded.append((replace(life, launched_unix_s=launched), cursor))
    return bounded


def _find_cut(ordered: Sequence[tuple[Life, float]], index: int) -> tuple[float | None, str | None]:
    """Return the time from which the work of a life was redone, and the cause; None: all of it was kept."""
    cut: float | None = None
    by: str | None = None
    if not ordered[index][0].strides:  # nothing to be redone: thousands of attempts that crash at once are such
        return None, None
    for (before, _), (later, _) in pairwise(ordered[index:]):
        if later.from_beginning:
            break
        at = _find_redone_from(*ordered[index], later)
        if at is not None and (cut is None or at < cut):
            cut, by = at, before.cause
    return cut, by


def _find_redone_from(life: Life, ended: float, later: Life) -> float | None:
    """Return the time from which the work of a life was redone because of where a later one resumed; None: none was.

    Steps are compared where both are the training's; otherwise all work after the save counts as lost.
    """
    kept, saved = later.resume_step, later.resume_saved_unix_s
    if kept is not None and (kept == 0 or not life.counts_itself):
        stride = life.strides.find_beyond(kept)
        if stride is None:
            return None
        here = saved is not None and life.launched_unix_s < saved < ended
        return saved if here else stride.made_at(kept)
    if saved is None or saved >= ended or not life.strides:
        return None
    return max(saved, life.strides[0].first_unix_s)


def _charge_setup(segment: Segment, came_of: str | None) -> Segment:
    """Charge the set-up after a fault to that fault."""
    return replace(segment, cause=came_of) if segment.use in (Use.SETUP, Use.COMPILE) else segment


def _split_lost(segment: Segment, cut: float | None, cut_by: str | None) -> Iterator[Segment]:
    """Return the segment, its lost part separate."""
    if cut is None or segment.use not in _WORK or segment.ended_unix_s <= cut:
        yield segment
        return
    kept = segment.within(segment.began_unix_s, cut)
    if kept is not None:
        yield kept
    began = max(cut, segment.began_unix_s)
    yield Segment(use=Use.LOST, began_unix_s=began, ended_unix_s=segment.ended_unix_s, cause=cut_by)


def _list_segments(life: Life, ended: float) -> Iterator[Segment]:
    """Return the segments of one attempt from its launch to its end."""
    alive_until = max(life.launched_unix_s, _find_last_sign(life, ended))
    marks = [(life.launched_unix_s, Use.SETUP if life.entered else Use.UNSEEN)]
    for at, stage in life.entered:
        marks.append((min(max(at, marks[-1][0]), alive_until), _OF_STAGE.get(stage, Use.UNSEEN)))
    marks.append((alive_until, Use.DOWN))
    for (began, use), (until, _) in pairwise(marks):
        if until > began:
            wait_s = _waited_s(life.strides, began, until) if use is Use.TRAIN else 0.0
            yield Segment(use=use, began_unix_s=began, ended_unix_s=until, data_wait_s=wait_s)
    if ended > alive_until:
        yield Segment(use=Use.DOWN, began_unix_s=alive_until, ended_unix_s=ended, cause=life.cause)


def _find_last_sign(life: Life, ended: float) -> float:
    """Return the last sign of progress of an attempt that a fault ended; any other progressed to its end."""
    if life.cause is None:
        return ended
    signs = [stride.last_unix_s for stride in life.strides[-1:]] + [at for at, _ in life.entered[-1:]]
    return min(ended, max(signs, default=ended))


def _waited_s(strides: Strides, began: float, ended: float) -> float:
    """Return how many seconds of a period of training were spent waiting for data."""
    waited = 0.0
    for stride in strides.list_overlapping(began, ended):
        overlap = min(ended, stride.last_unix_s) - max(began, stride.first_unix_s)
        length = stride.last_unix_s - stride.first_unix_s
        if overlap > 0 and length > 0:
            waited += min(stride.data_wait_s, length) * overlap / length
    return min(waited, ended - began)
