"""Checkpoints: what is known of each, and which one a retry may resume from; it opens no file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from supervisor.core.curve import Curve


class Verdict(Enum):
    """What proving a checkpoint came to."""

    PROVEN = "proven"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Identity of a file's content as far as `stat` tells: a rewritten file is another checkpoint."""

    size_bytes: int
    modified_ns: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Saved training state in one file."""

    path: str
    fingerprint: Fingerprint
    epoch: int | None = None
    """Last epoch that is contained whole, counted from 0."""
    step: int | None = None
    """Step after which a training resumed from it goes on; a save in mid-epoch may hold newer weights than that."""
    verdict: Verdict | None = None
    reason: str | None = None
    """Why it was rejected."""
    kind: str = "checkpoint"
    """checkpoint, as the training saves it by itself, or snapshot, as the agent saves it in mid-epoch."""
    source: str | None = None
    """Path that the training wrote, where this is the generation that was kept of it; None: the training's own file."""
    fitness: float | None = None
    """How well it did at its validation, more being better."""
    kept_by: str | None = None
    """Which of the limits keep a generation, in words; empty where it was let go."""

    @property
    def saved_unix_s(self) -> float:
        """When the file was last written, Unix seconds."""
        return self.fingerprint.modified_ns / 1e9

    @property
    def title(self) -> str:
        """Its path; of a generation the file that it was taken from, and its number."""
        number = self.path.split("/")[-2:-1]
        return f"{self.source} (generation {number[0].lstrip('0')})" if self.source and number else self.path

    @property
    def key(self) -> tuple[str, Fingerprint]:
        """What makes it this checkpoint and not an earlier or later one under the same path."""
        return (self.path, self.fingerprint)

    def is_of(self, other: Checkpoint) -> bool:
        """Whether this is the generation that was kept of `other` as it is now."""
        mine, its = self.fingerprint, other.fingerprint
        return self.source == other.path and (mine.size_bytes, mine.modified_ns) == (its.size_bytes, its.modified_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The answer to "from where": a proven checkpoint, the beginning, or nowhere with the reason."""

    checkpoint: Checkpoint | None
    possible: bool
    reason: str
    curve: Curve | None = None
    """The losses that were made around the checkpoint's step, which the resumed training is to continue."""


def newest_first(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Order checkpoints and snapshots by the training they contain, then by the time they were written.

    The step counts before the epoch, which a snapshot in mid-epoch shares with the checkpoint before it. A checkpoint
    of which neither is known counts by its time alone, after those that are known: a known position is better ground
    than a file date. Of two that are alike the kept generation comes first: nobody writes into it.
    """

    def rank(one: Checkpoint) -> tuple[bool, int, int, float, bool]:
        known = one.step is not None or one.epoch is not None
        step = -1 if one.step is None else one.step
        epoch = -1 if one.epoch is None else one.epoch
        return (known, step, epoch, one.saved_unix_s, one.source is not None)

    return tuple(sorted(checkpoints, key=rank, reverse=True))


def told_once(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return them without the files of which a generation was taken, newest first: that is the same save.

    A verdict is on a content: what a search found about the file, before a copy was there, holds for the generation.
    """
    everything = tuple(checkpoints)
    files = {_content(one.path, one): one for one in everything if one.source is None}
    generations = [one for one in everything if one.source is not None]
    taken = {_content(one.source or "", one) for one in generations}
    return newest_first(
        [
            *(one for content, one in files.items() if content not in taken),
            *(_with_verdict(one, files.get(_content(one.source or "", one))) for one in generations),
        ]
    )


def _content(path: str, one: Checkpoint) -> tuple[str, int, int]:
    return (path, one.fingerprint.size_bytes, one.fingerprint.modified_ns)


def _with_verdict(generation: Checkpoint, file: Checkpoint | None) -> Checkpoint:
    if file is None or generation.verdict is not None:
        return generation
    return replace(generation, verdict=file.verdict, reason=file.reason)


def before_trouble(
    checkpoints: Iterable[Checkpoint], trouble_unix_s: float | None, trouble_step: int | None
) -> tuple[Checkpoint, ...]:
    """Return the checkpoints written before the trouble began, newest first.

    Both measures must agree where both are known: neither saved after the trouble's time nor holding its step.
    `trouble_unix_s` None means that nothing happened that could have spoilt a checkpoint.
    """

    def clean(one: Checkpoint) -> bool:
        if trouble_unix_s is not None and not one.saved_unix_s < trouble_unix_s:
            return False
        return not (trouble_step is not None and one.step is not None and one.step >= trouble_step)

    return newest_first(one for one in checkpoints if clean(one))


def of_this_training(checkpoints: Iterable[Checkpoint], began_unix_s: float | None) -> tuple[Checkpoint, ...]:
    """Return the checkpoints written since the training was last started from the beginning.

    What an earlier training left under the same paths is further ahead and belongs to another run. None: all count.
    """
    return tuple(one for one in checkpoints if began_unix_s is None or one.saved_unix_s >= began_unix_s)


def older(one: Checkpoint, other: Checkpoint | None) -> bool:
    """Whether `one` comes before `other` in the training; where there is no other, every one does."""
    return other is None or (one.key != other.key and newest_first((one, other))[0].key == other.key)


def exact_before(checkpoints: Iterable[Checkpoint], step: int) -> Checkpoint | None:
    """Return the newest proven snapshot of before a step: from it, unlike from a framework's own, all is made again."""
    sound = (one for one in checkpoints if one.kind == "snapshot" and one.verdict is Verdict.PROVEN)
    before = (one for one in sound if one.step is not None and one.step < step)
    return max(before, key=lambda one: (one.step, one.saved_unix_s), default=None)


def choose(
    checkpoints: Iterable[Checkpoint],
    trouble_unix_s: float | None = None,
    trouble_step: int | None = None,
    *,
    began_unix_s: float | None = None,
    older_than: Checkpoint | None = None,
) -> ResumePoint:
    """Choose where a retry resumes: the newest proven checkpoint of this training that is older than the trouble.

    Where nothing was ever saved the training begins anew, which loses nothing that could be had. Where something was
    saved and none of it can be trusted, the answer is nowhere: beginning anew would hide that loss. One that is older
    than `older_than` is taken before the others, as far as there is one.
    """
    everything = of_this_training(checkpoints, began_unix_s)
    if not everything:
        return ResumePoint(checkpoint=None, possible=True, reason="no checkpoint was saved yet: from the beginning")
    sound = before_trouble(everything, trouble_unix_s, trouble_step)
    for one in sorted(sound, key=lambda one: not older(one, older_than)):
        if one.verdict is Verdict.PROVEN:
            return ResumePoint(checkpoint=one, possible=True, reason=f"newest proven checkpoint: {one.title}")
    return ResumePoint(checkpoint=None, possible=False, reason=_why_none(everything, trouble_unix_s, trouble_step))


def _why_none(everything: tuple[Checkpoint, ...], trouble_unix_s: float | None, trouble_step: int | None) -> str:
    older = {one.key for one in before_trouble(everything, trouble_unix_s, trouble_step)}
    parts = []
    for one in newest_first(everything):
        if one.key not in older:
            parts.append(f"{one.title}: saved after the trouble began")
        elif one.verdict is Verdict.REJECTED:
            parts.append(f"{one.title}: {one.reason or 'rejected'}")
        else:
            parts.append(f"{one.title}: not proven")
    return "none of the saved checkpoints is proven (" + "; ".join(parts) + ")"
