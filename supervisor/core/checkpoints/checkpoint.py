"""Checkpoints: what is known of each, and which one a retry may resume from."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from supervisor.core.checkpoints.loss_curve import Curve

PATHS_NAMED = 3
EXACT_WORTH_S = 60.0
"""Work to redo for an exact state beyond an interval of snapshots, seconds."""
AFTER_FAULT = "saved after the fault began"
NO_TENSORS = "holds no tensor"
"""What the prover says of a valid file without weights, such as one with settings."""
NOTHING_KNOWN = "the folder contains no file of a type that can be proven"
TEXT = "no checkpoint: neither a torch file nor safetensors, but text"
OTHER_FORMATS = frozenset(
    {
        NOTHING_KNOWN,
        TEXT,
        "no checkpoint: neither a torch file nor safetensors",
        "no checkpoint: a zip archive, but not one of torch",
        "no checkpoint: a pickle that torch did not write",
    }
)
"""What a proof says of a file or folder of a format that it does not know; no sign that it is damaged."""
REFUSED = "it cannot be kept or proven: "
"""How the reason begins of a folder that is not looked into, such as one with a link in it."""
NONE_PROVEN = "none of the saved checkpoints is proven ("
"""How the reason begins where checkpoints were saved and none may be resumed from."""
LOADS_ITSELF = (
    "started without a checkpoint: the format of what it saves cannot be verified, so the program has to load that by "
    "itself, and none of it is proven"
)


class Verdict(Enum):
    """The result of proving a checkpoint."""

    PROVEN = "proven"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Identity of a file's content by `stat`: a rewritten file is another checkpoint."""

    size_bytes: int
    modified_ns: int
    inode: int


SUFFIXES = re.compile(r"(?:\.[A-Za-z][A-Za-z0-9]*)+(?:-\d+-of-\d+)?$")
"""LightGBM's `model.txt.snapshot_iter_225` ends with its number. TensorFlow names
the parts of a save behind its suffix: `ckpt-12.data-00000-of-00001`."""
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""A number in the name of a file: a step, an epoch, or a loss."""
_RANK = r"(?<![A-Za-z])(?:rank|shard|world_?size)[_-]?\d+"
RANK = re.compile(_RANK, re.IGNORECASE)
"""Which process wrote a file, or one of how many, as in `optim_000025_rank0.pt`: no number of a save."""
RANK_OR_NUMBER = re.compile(f"(?P<rank>{_RANK})|{NUMBER.pattern}", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Saved training state in one file."""

    path: str
    fingerprint: Fingerprint
    epoch: int | None = None
    """Last complete epoch that it contains, counted from 0."""
    step: int | None = None
    """Step after which a training resumed from it goes on; a save in mid-epoch may hold newer weights than that."""
    verdict: Verdict | None = None
    reason: str | None = None
    """Why it was rejected."""
    kind: str = "checkpoint"
    """`checkpoint`, which the training saves, or `snapshot`, which the agent saves in mid-epoch."""
    source: str | None = None
    """Path that the training wrote, where this is a generation of it; None: the training's own file."""
    fitness: float | None = None
    """Its validation result; higher is better."""
    kept_by: str | None = None
    """Which of the limits keep a generation, in words; empty where it was pruned."""

    @property
    def saved_unix_s(self) -> float:
        """When the file was last written, Unix seconds."""
        return self.fingerprint.modified_ns / 1e9

    @property
    def title(self) -> str:
        """Its path; of a generation the file that it was captured from, and its number."""
        number = self.path.split("/")[-2:-1]
        return f"{self.source} (generation {number[0].lstrip('0')})" if self.source and number else self.path

    @property
    def series(self) -> tuple[str, str]:
        """What it has in common with the others of one file or pattern: its kind, and its name without the numbers."""
        name = (self.source or self.path).rstrip("/").rpartition("/")[2]
        return self.kind, RANK_OR_NUMBER.sub(lambda found: found["rank"] or "#", name)

    @property
    def number(self) -> str | None:
        """The last number in its name; see `last_number`."""
        return last_number((self.source or self.path).rstrip("/").rpartition("/")[2])

    @property
    def key(self) -> tuple[str, Fingerprint]:
        """Identity of the checkpoint: path and content."""
        return (self.path, self.fingerprint)

    def is_of(self, other: Checkpoint) -> bool:
        """Whether this is a generation of the present content of `other`."""
        mine, its = self.fingerprint, other.fingerprint
        return self.source == other.path and (mine.size_bytes, mine.modified_ns) == (its.size_bytes, its.modified_ns)


def last_number(name: str) -> str | None:
    """Return the last number in a file's name, without leading zeros; None where there is none. A suffix has none.

    Nor is that of a rank or shard one.
    """
    numbers = list_numbers(name)
    return str(numbers[-1]) if numbers else None


def list_numbers(name: str) -> tuple[int, ...]:
    """Return the numbers in a file's name, from left to right; a suffix has none, and a rank or shard is none."""
    return tuple(map(int, re.findall(r"\d+", RANK.sub("", SUFFIXES.sub("", name)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """How much work may be redone to resume exactly; `given_between` computes it.

    Time includes validations and saves, which are no steps: either measure is enough.
    """

    seconds: float = 0.0
    steps: int = 0


def given_between(every_s: float, steps_per_s: float | None) -> Given:
    """Return the work to redo for exactness where a snapshot is taken every `every_s`; an unknown pace is None.

    When a training saves a checkpoint the newest snapshot is up to an interval old, and where that one is still being
    written it is the one before. Steps are not evenly long either, least of all on busy processors. A bound without
    that room would have an inexact checkpoint taken right where snapshots are frequent.
    """
    seconds = every_s + EXACT_WORTH_S
    return Given(seconds=seconds, steps=math.ceil(seconds * steps_per_s) if steps_per_s is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBack:
    """The wall clock was set back, from `from_unix_s`: a file of a time between now and then is from before that."""

    now_unix_s: float
    from_unix_s: float

    def precedes(self, unix_s: float) -> bool:
        """Whether what has this time is from before the clock was set back."""
        return self.now_unix_s < unix_s <= self.from_unix_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where to resume: at a proven checkpoint, at the beginning, or nowhere with the reason."""

    checkpoint: Checkpoint | None
    possible: bool
    reason: str
    curve: Curve | None = None
    """The losses around the checkpoint's step, which the resumed training is to continue."""
    environment_problem: str | None = None
    """Why the environment that a remedy chose cannot go on from here: the checkpoint does not load there."""
    loads_itself: bool = False
    """Whether files are there that cannot be verified, which the program has to find and load by itself."""
    newer: tuple[str, ...] = ()
    """Checkpoints newer than the chosen one that are moved out of the program's own search first."""
    stand_in: Checkpoint | None = None
    """What the program then finds as its newest, where those are damaged; of a generation, put into its place."""
    together: tuple[Checkpoint, ...] = ()
    """Generations of the other files of that save, each put into its place as well."""
    needs_others: bool = False
    """Whether the program failed, now or before, as other files were missing next to its checkpoint."""

    @property
    def moved_words(self) -> str:
        """What is moved out of the program's own search, to follow the reason; empty where nothing is."""
        if not self.newer:
            return ""
        if self.loads_itself:
            return f"; moved aside, so that it finds the save before: {describe_paths(self.newer)}"
        damaged = "" if self.stand_in is None else "damaged and "
        return f"; moved aside, {damaged}newer than it: {describe_paths(self.newer)}"


def describe_paths(paths: Sequence[str], named: int = PATHS_NAMED) -> str:
    """Return some paths as text, the first `named` of them by name."""
    more = f" and {len(paths) - named} more" if len(paths) > named else ""
    return ", ".join(paths[:named]) + more


BEGINNING_ASKED = ResumePoint(checkpoint=None, possible=True, reason="start from the beginning requested")
"""What a user's request for a fresh start resumes from."""


def newest_first(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Order checkpoints and snapshots by the training they contain, then by the time they were written.

    The step counts before the epoch, which a snapshot in mid-epoch shares with the checkpoint before it. A checkpoint
    of which neither is known comes right after the one that it follows by its name; without such a one it counts by
    its time alone, after those that are known: a known position is more reliable than a file date. Of two that are
    equal the generation comes first: no training writes into it.
    """
    listed = tuple(checkpoints)
    numbered = _sort_by_number(checkpoint for checkpoint in listed if _position(checkpoint) != UNPLACED)

    def rank(checkpoint: Checkpoint) -> tuple[tuple[int, int], bool, int, float, bool]:
        position, number = _position(checkpoint), 0
        followed = None if position != UNPLACED else _find_followed(checkpoint, numbered)
        if followed is not None:
            position, number = _position(followed), int(checkpoint.number or 0)
        by_file = (checkpoint.saved_unix_s, checkpoint.source is not None)
        return (position, followed is not None, number, *by_file)

    return tuple(sorted(listed, key=rank, reverse=True))


UNPLACED = (-1, -1)
"""The position of what says neither step nor epoch."""


def _position(checkpoint: Checkpoint) -> tuple[int, int]:
    step = -1 if checkpoint.step is None else checkpoint.step
    return step, -1 if checkpoint.epoch is None else checkpoint.epoch


Numbered = Mapping[tuple[str, str], Sequence[tuple[int, Checkpoint]]]
"""Checkpoints of each series, by the number in their names."""


def _sort_by_number(placed: Iterable[Checkpoint]) -> Numbered:
    """Return checkpoints of a known position by series. A name of several numbers, of an epoch and a loss, has none."""
    found: dict[tuple[str, str], list[tuple[int, Checkpoint]]] = {}
    for checkpoint in placed:
        series, number = checkpoint.series, checkpoint.number
        if number is not None and series[1].count("#") == 1:
            found.setdefault(series, []).append((int(number), checkpoint))
    return {series: sorted(rows, key=_number_of) for series, rows in found.items()}


def _number_of(row: tuple[int, Checkpoint]) -> int:
    return row[0]


def _find_followed(checkpoint: Checkpoint, numbered: Numbered) -> Checkpoint | None:
    """Return which checkpoint another follows: of its series, with the next lower number that was written before it.

    Number and time have to agree: a training that started over comes by the same numbers at a later time.
    """
    number, rows = checkpoint.number, numbered.get(checkpoint.series, ())
    if number is None:
        return None
    lower = reversed(rows[: bisect_left(rows, int(number), key=_number_of)])
    return next((other for _, other in lower if other.saved_unix_s < checkpoint.saved_unix_s), None)


def drop_captured_files(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return checkpoints without the files that a generation was captured of, newest first: they are the same save.

    A verdict is on a content: that on the file, from before it was copied, holds for the generation.
    """
    everything = tuple(checkpoints)
    files = {
        _identify_content(checkpoint.path, checkpoint): checkpoint
        for checkpoint in everything
        if checkpoint.source is None
    }
    generations = [
        (checkpoint, _identify_content(checkpoint.source, checkpoint))
        for checkpoint in everything
        if checkpoint.source is not None
    ]
    taken = {content for _, content in generations}
    return newest_first(
        [
            *(checkpoint for content, checkpoint in files.items() if content not in taken),
            *(_copy_verdict(checkpoint, files.get(content)) for checkpoint, content in generations),
        ]
    )


def _identify_content(path: str, checkpoint: Checkpoint) -> tuple[str, int, int]:
    return (path, checkpoint.fingerprint.size_bytes, checkpoint.fingerprint.modified_ns)


def _copy_verdict(generation: Checkpoint, file: Checkpoint | None) -> Checkpoint:
    if file is None or generation.verdict is not None:
        return generation
    return replace(generation, verdict=file.verdict, reason=file.reason)


def merge_proof(known: Checkpoint, proof: Checkpoint) -> Checkpoint:
    """Return a proof with what was known of the same content; of another content nothing of it holds.

    This is the only rule on which of the two counts where both name a position. The known step counts: it is the
    training's count, and a file may count otherwise (from its last resume). The file's epoch counts: it is the last
    one that the file contains in full, while a report may name the epoch under way.
    """
    return _merge_facts(known, proof) if proof.fingerprint == known.fingerprint else proof


def inherit_verdict(file: Checkpoint, generation: Checkpoint) -> Checkpoint:
    """Return the training's own file with the verdict on a generation of it, where it has none itself."""
    if file.verdict is not None or generation.verdict is None or not generation.is_of(file):
        return file
    proof = replace(file, verdict=generation.verdict, reason=generation.reason)
    return _merge_facts(file, replace(proof, epoch=generation.epoch, step=generation.step))


def _merge_facts(known: Checkpoint, proof: Checkpoint) -> Checkpoint:
    return replace(
        proof,
        epoch=known.epoch if proof.epoch is None else proof.epoch,
        step=proof.step if known.step is None else known.step,
        kind=known.kind,
        source=proof.source or known.source,
        kept_by=proof.kept_by or known.kept_by,
    )


def before_fault(
    checkpoints: Iterable[Checkpoint],
    fault_unix_s: float | None,
    fault_step: int | None,
    set_back: SetBack | None = None,
) -> tuple[Checkpoint, ...]:
    """Return the checkpoints written before a fault began, newest first.

    Both measures must agree where both are known: neither saved after the fault's time nor containing its step.
    `fault_unix_s` None means that no fault could have damaged a checkpoint. A fault of a time after the clock was
    `set_back` is later than what was written before that.
    """

    def in_time(checkpoint: Checkpoint) -> bool:
        if fault_unix_s is None or checkpoint.saved_unix_s < fault_unix_s:
            return True
        if set_back is None or set_back.precedes(fault_unix_s):
            return False
        return set_back.precedes(checkpoint.saved_unix_s)

    def clean(checkpoint: Checkpoint) -> bool:
        if not in_time(checkpoint):
            return False
        return not (fault_step is not None and checkpoint.step is not None and checkpoint.step >= fault_step)

    return newest_first(checkpoint for checkpoint in checkpoints if clean(checkpoint))


def of_this_training(checkpoints: Iterable[Checkpoint], began_unix_s: float | None) -> tuple[Checkpoint, ...]:
    """Return the checkpoints written since the training was last started from the beginning.

    Checkpoints of an earlier training under the same paths belong to another run. None: all count.
    """
    return tuple(
        checkpoint for checkpoint in checkpoints if began_unix_s is None or checkpoint.saved_unix_s >= began_unix_s
    )


def older(checkpoint: Checkpoint, other: Checkpoint | None) -> bool:
    """Whether `checkpoint` comes before `other` in the training; true where there is no other."""
    return other is None or (checkpoint.key != other.key and newest_first((checkpoint, other))[0].key == other.key)


def exact_before(checkpoints: Iterable[Checkpoint], step: int) -> Checkpoint | None:
    """Return the newest proven snapshot before a step: unlike a framework checkpoint, it reproduces every step."""
    usable = (
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.kind == "snapshot" and checkpoint.verdict is Verdict.PROVEN
    )
    before = (checkpoint for checkpoint in usable if checkpoint.step is not None and checkpoint.step < step)
    return max(before, key=lambda checkpoint: (checkpoint.step, checkpoint.saved_unix_s), default=None)


def choose(  # noqa: PLR0913 - each is a bound of its own
    checkpoints: Iterable[Checkpoint],
    fault_unix_s: float | None = None,
    fault_step: int | None = None,
    *,
    began_unix_s: float | None = None,
    older_than: Checkpoint | None = None,
    given: Given | None = None,
    loads_itself: bool = False,
    set_back: SetBack | None = None,
) -> ResumePoint:
    """Choose where a retry resumes: the newest proven checkpoint of this training that is older than the fault.

    Where nothing was ever saved the training starts from the beginning, which loses nothing. Where checkpoints exist
    and none can be trusted, the answer is nowhere: starting from the beginning would hide that loss. Checkpoints older
    than `older_than` come before the others, where there are any. A snapshot is exact, and a framework's own
    checkpoint is not (random states, the place in the data, weights in half precision): the snapshot is taken where
    no more than `given` of the work in the checkpoint has to be redone.

    With `loads_itself` no file is handed to the training. Where all that it saves is of a format that cannot be
    verified (XGBoost's, a program's own) it is started without one, by its resume command where it has one, and finds
    its own: these files are no sign of damage.
    """
    everything = of_this_training(checkpoints, began_unix_s)
    if not everything:
        return ResumePoint(checkpoint=None, possible=True, reason="no checkpoint saved yet: from the beginning")
    usable = before_fault(everything, fault_unix_s, fault_step, set_back)
    for checkpoint in sorted(usable, key=lambda item: not older(item, older_than)):
        if checkpoint.verdict is Verdict.PROVEN:
            alike = tuple(other for other in usable if older(other, older_than) or not older(checkpoint, older_than))
            exact = _find_exact(checkpoint, alike, given or Given())
            if exact is not None:
                reason = f"newest exact state: {exact.title}; {checkpoint.title} is newer and not exact"
                return ResumePoint(checkpoint=exact, possible=True, reason=reason)
            return ResumePoint(
                checkpoint=checkpoint, possible=True, reason=f"newest proven checkpoint: {checkpoint.title}"
            )
    if loads_itself and all(map(cannot_be_verified, everything)):
        return ResumePoint(checkpoint=None, possible=True, reason=LOADS_ITSELF, loads_itself=True)
    own = _explain_damaged(everything) if loads_itself and len(usable) == len(everything) else None
    reason = own or _explain_none(everything, {checkpoint.key for checkpoint in usable})
    return ResumePoint(checkpoint=None, possible=False, reason=reason)


def cannot_be_verified(checkpoint: Checkpoint) -> bool:
    """Whether nothing is known of a checkpoint, which is no sign that it is damaged."""
    return checkpoint.reason in OTHER_FORMATS or (checkpoint.reason or "").startswith(REFUSED)


def _explain_damaged(everything: tuple[Checkpoint, ...]) -> str | None:
    """Return what to do where the program would load a damaged file, and all others are of a format of its own."""
    damaged = tuple(item for item in newest_first(everything) if not cannot_be_verified(item))
    if len(damaged) == len(everything) or any(item.verdict is None or item.source is not None for item in damaged):
        return None  # nothing else is left, or it is known of a copy alone, whose file may be another by now
    return (
        f"{NONE_PROVEN}{_list_reasons(damaged[:PATHS_NAMED])}); the others are of a format "
        "that cannot be verified, and the program has to load them by itself: move "
        f"{describe_paths([item.path for item in damaged])} away, then `supervisorctl start` the job"
    )


def _list_reasons(rejected: Iterable[Checkpoint]) -> str:
    return "; ".join(f"{item.title}: {item.reason or 'rejected'}" for item in rejected)


def _find_exact(chosen: Checkpoint, usable: tuple[Checkpoint, ...], given: Given) -> Checkpoint | None:
    """Return the newest proven snapshot that is taken in place of an inexact checkpoint, None where there is none."""
    if chosen.kind == "snapshot":
        return None
    proven = newest_first(item for item in usable if item.kind == "snapshot" and item.verdict is Verdict.PROVEN)
    if not proven:
        return None
    newest = proven[0]
    few_steps = chosen.step is not None and newest.step is not None and chosen.step - newest.step <= given.steps
    return newest if few_steps or chosen.saved_unix_s - newest.saved_unix_s <= given.seconds else None


def _explain_none(everything: tuple[Checkpoint, ...], usable: set[tuple[str, Fingerprint]]) -> str:
    parts = []
    for checkpoint in newest_first(everything):
        if checkpoint.key not in usable:
            parts.append(f"{checkpoint.title}: {AFTER_FAULT}")
        elif checkpoint.verdict is Verdict.REJECTED:
            parts.append(f"{checkpoint.title}: {checkpoint.reason or 'rejected'}")
        else:
            parts.append(f"{checkpoint.title}: not proven")
    return NONE_PROVEN + "; ".join(parts) + ")"
