"""Which damaged saves stand in the way of a program that goes on from the newest one that it finds.

A save that a kill has cut short ends each start of such a program. It may be moved out of its search where what the
program finds in its place is known and proven: the save before it, or a generation of the same file, put there with
those of the other files of its save. All else stays as it is: what is of another format or was not examined, and
whatever may be one part of several of which others are not kept.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from supervisor.core.checkpoints.checkpoint import (
    NOTHING_KNOWN,
    RANK_OR_NUMBER,
    SUFFIXES,
    Checkpoint,
    Verdict,
    cannot_be_verified,
    last_number,
    list_numbers,
    newest_first,
)

DAMAGED = re.compile(
    r"(?:[^:]{1,300}: )?(?:truncated|damaged|empty\b|not finite|incomplete: |its pickle is damaged or cut short"
    r"|its manifest is cut short|storage \S{1,300} is missing|shard \S{1,300} is missing"
    r"|tensor .{1,300} needs \d+ bytes and its storage has|\S{1,300} was written \d+ s after its \.metadata"
    r"|no checkpoint: neither a torch file nor safetensors, and its first bytes are zero)"
)
"""How the prover (agent/prove) says that a content is not what was saved, or cannot be gone on from."""
INCOMPLETE = "incomplete: nothing in the folder can be proven, and others of its name are proven"
FOLDERS_ABOVE = 3
"""In how many folders above a file the number of its save is looked for."""
BLAMED = "damaged, as it seems: the program has failed twice at its start with it"
_INTEGER = re.compile(r"(?<![\d.])\d+(?![\d.])")


def is_damaged(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint was examined and found damaged: not one of another format, or doubted for its numbers."""
    return checkpoint.verdict is Verdict.REJECTED and DAMAGED.match(checkpoint.reason or "") is not None


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rstrip("/").rpartition("/")
    return folder, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """The files of one save that a program finds, or the one that it overwrites each time."""

    parts: tuple[Checkpoint, ...]
    folder: str | None = None
    """That of the save, where it has the number in its name and the files in it have none: `iter_80/model.pt`."""

    @property
    def is_numbered(self) -> bool:
        """Whether it has a name of its own, by which the program finds the one before where this is gone."""
        return self.folder is not None or self.parts[0].number is not None

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """What it has in common with the saves before it: folders, and names without numbers."""
        return frozenset(_without_numbers(part.path, self.folder) for part in self.parts)

    @property
    def own_names(self) -> frozenset[str]:
        """The names of its files, from the folder on that holds it."""
        above = None if self.folder is None else _split(self.folder)[0]
        return frozenset(
            _split(part.path)[1] if above is None else part.path[len(above) :].lstrip("/") for part in self.parts
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """What is moved to have it out of the way: its folder, or its files."""
        return tuple(part.path for part in self.parts) if self.folder is None else (self.folder,)

    @property
    def saved_unix_s(self) -> float:
        """When the last of its files was written, Unix seconds."""
        return max(part.saved_unix_s for part in self.parts)

    @property
    def is_proven(self) -> bool:
        """Whether each of its files is."""
        return all(part.verdict is Verdict.PROVEN for part in self.parts)

    @property
    def is_damaged(self) -> bool:
        """Whether one of its files is: the others are of no use then."""
        return any(map(is_damaged, self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class WayCleared:
    """What is moved, and what the program finds instead."""

    moved: tuple[str, ...]
    stand_in: Checkpoint
    """The save before, which lies in its place, or a generation that is put into its place first."""
    together: tuple[Checkpoint, ...] = ()
    """Generations of the other files of that save, each put into its place as well."""

    def moved_none_of(self, save: Save) -> bool:
        """Whether a save stays as it is."""
        return all(path not in self.moved for path in save.paths)

    def holds(self, path: str) -> bool:
        """Whether a file is moved, by itself or with its folder."""
        return any(path == moved or path.startswith(f"{moved}/") for moved in self.moved)


def group_saves(own: Iterable[Checkpoint], overwritten: Iterable[str] = ()) -> tuple[Save, ...]:
    """Return what a program finds as saves, the newest first: `model_40.pt` and `opt_40.pt` in one folder are one.

    So are the files without a number in a folder that has one, unless a file in such a folder was written a second
    time, as those in `overwritten`: that with `train3/last.pt` is the folder of a run.
    """
    numbered_folders = (_find_numbered_folder(path) for path in overwritten)
    of_runs = {_without_numbers(folder, None) for folder in numbered_folders if folder is not None}
    saves: dict[object, list[Checkpoint]] = {}
    folders: dict[object, str] = {}
    for checkpoint in newest_first(own):
        folder, name = _split(checkpoint.path)
        numbers = tuple(map(int, _INTEGER.findall(SUFFIXES.sub("", name))))
        suffix = (SUFFIXES.search(name) or [""])[0]
        key: object = (folder, numbers, suffix) if checkpoint.number is not None and numbers else checkpoint.path
        numbered = _find_numbered_folder(checkpoint.path)
        if numbered is not None and _without_numbers(numbered, None) not in of_runs:
            key = folders[numbered] = numbered
        saves.setdefault(key, []).append(checkpoint)
    return tuple(Save(parts=tuple(parts), folder=folders.get(key)) for key, parts in saves.items())


def _find_numbered_folder(path: str) -> str | None:
    """Return the folder in whose name a file's number is, one of the nearest above it; None where it has its own."""
    folder, name = _split(path)
    if last_number(name) is not None:
        return None
    for _ in range(FOLDERS_ABOVE):
        above, name = _split(folder)
        if last_number(name) is not None:
            return folder
        folder = above
    return None


def _without_numbers(path: str, folder: str | None) -> tuple[str, str]:
    """Return where a file or its folder lies, and its name from there on without the numbers of the save."""
    above, name = _split(path if folder is None else folder)
    rest = "" if folder is None else path[len(folder) :]
    return above, RANK_OR_NUMBER.sub(lambda found: found["rank"] or "#", name) + rest


def next_to_prove(saves: Sequence[Save]) -> Checkpoint | None:
    """Return the file without a verdict that has to be proven next, None where nothing depends on a further proof."""
    settled: set[tuple[str, str]] = set()
    for save in saves:
        if save.names <= settled or save.is_damaged:
            continue
        unproven = next((part for part in save.parts if part.verdict is None), None)
        if unproven is not None:
            return unproven
        if save.is_proven:
            settled |= save.names
    return None


def reject_incomplete(saves: Sequence[Save]) -> tuple[Save, ...]:
    """Return the saves, with a folder as damaged that a kill has left without weights: others of its name have some."""
    proven = {name for save in saves if save.is_proven for name in save.names}
    return tuple(
        replace(save, parts=tuple(replace(part, reason=INCOMPLETE) for part in save.parts))
        if save.names <= proven and all(part.reason == NOTHING_KNOWN for part in save.parts)
        else save
        for save in saves
    )


def accept_unverified(checkpoint: Checkpoint) -> Checkpoint:
    """Return it as proven where it is of a format that cannot be verified, as all is that its program goes on from."""
    return replace(checkpoint, verdict=Verdict.PROVEN) if cannot_be_verified(checkpoint) else checkpoint


def blame_newest(own: Sequence[Checkpoint], before_unix_s: float) -> tuple[Checkpoint, ...]:
    """Return the saves of a program with the files of its newest one as damaged, which was there at its start."""
    newest = max((item for item in own if item.saved_unix_s < before_unix_s), key=_saved_at, default=None)
    if newest is None:
        return tuple(own)
    return tuple(
        replace(item, verdict=Verdict.REJECTED, reason=BLAMED) if _is_of_save(item, newest) else item for item in own
    )


def _saved_at(checkpoint: Checkpoint) -> float:
    return checkpoint.saved_unix_s


def _is_of_save(checkpoint: Checkpoint, other: Checkpoint) -> bool:
    """Whether two files are the same, or lie in one folder with the same numbers, whatever their suffixes."""
    (folder, name), (its_folder, its_name) = _split(checkpoint.path), _split(other.path)
    numbers = list_numbers(name)
    return checkpoint.path == other.path or (
        folder == its_folder and numbers != () and numbers == list_numbers(its_name)
    )


def clear_way(
    saves: Sequence[Save], kept: Iterable[Checkpoint], before_unix_s: float, others: Mapping[str, float]
) -> WayCleared | None:
    """Return what to move of the saves, newest first; None where nothing, or what it leads to is not known.

    `kept` are the generations, `others` all files of a checkpoint's kind in the folders of damaged saves, with their
    times. What was written since `before_unix_s`, when the attempt was launched that died with it, may be being
    written by another, and has not ended that attempt.
    """
    generations = tuple(kept)
    found = [
        (save, stand_ins)
        for save, before in _list_damaged(saves)
        if save.saved_unix_s < before_unix_s
        and (stand_ins := _find_stand_ins(save, before, saves, generations, others))
    ]
    if not found:
        return None
    stand_in, *together = found[0][1]
    # One save is put into its place at a launch; what needs another stays.
    ready = [save for save, (other, *_) in found if other.source is None or other.path == stand_in.path]
    damaged = found[0][0]
    later = () if damaged.is_numbered else _list_numbered_later(damaged.parts[0], stand_in, others)
    moved = (*(path for save in ready for path in save.paths), *(part.source or "" for part in together), *later)
    return WayCleared(moved=tuple(dict.fromkeys(moved)), stand_in=stand_in, together=tuple(together))


def _list_damaged(saves: Sequence[Save]) -> Iterator[tuple[Save, Save | None]]:
    """Yield the damaged saves that no proven one follows, each with the newest proven one of the same names before."""
    for number, save in enumerate(saves):
        if not save.is_damaged:
            continue
        alike = [other for other in saves if other is not save and other.names & save.names]
        older = [other for other in saves[number + 1 :] if other in alike]
        newer_is_proven = any(other.is_proven for other in alike if other not in older)
        if not newer_is_proven:
            yield save, next((other for other in older if other.is_proven), None)


def _find_stand_ins(
    save: Save,
    before: Save | None,
    saves: Sequence[Save],
    generations: Sequence[Checkpoint],
    others: Mapping[str, float],
) -> tuple[Checkpoint, ...]:
    """Return what a program goes on from where a damaged save is gone; none where that is not known."""
    if not save.is_numbered:
        return _find_generations(save.parts[0], generations, others)
    stand_in = None if _may_be_shards(save, saves) else _find_stand_in(save, before, saves, generations)
    return () if stand_in is None else (stand_in,)


def _find_stand_in(
    save: Save, before: Save | None, saves: Sequence[Save], generations: Sequence[Checkpoint]
) -> Checkpoint | None:
    if before is not None:
        return before.parts[0] if before.names >= save.names and not _lies_elsewhere(save, before, saves) else None
    return _find_rotated(save, saves, generations)


def _find_generations(
    file: Checkpoint, generations: Sequence[Checkpoint], others: Mapping[str, float]
) -> tuple[Checkpoint, ...]:
    """Return the newest proven generation of a file that is overwritten, and those of the other files of that save.

    Another file that was written nearer to it than to that generation would be read together with an older part. None
    where no proven generation of it is from that save too, unless it is one of a series and is moved.
    """
    kept = _find_newest(file.path, generations)
    if kept is None:
        return ()
    half_s = (file.saved_unix_s - kept.saved_unix_s) / 2
    later, own = _list_later(file, kept, others), _list_numbered_later(file, kept, others)
    parts = [path for path in later if path not in own]
    of_that_save = [item for item in generations if abs(item.saved_unix_s - kept.saved_unix_s) <= half_s]
    found = [item for item in (_find_newest(path, of_that_save) for path in parts) if item is not None]
    return (kept, *found) if len(found) == len(parts) else ()


def _list_later(file: Checkpoint, kept: Checkpoint, others: Mapping[str, float]) -> tuple[str, ...]:
    """Return what was written next to a file nearer to it than to the generation that is put into its place."""
    folder, between_unix_s = _split(file.path)[0], (file.saved_unix_s + kept.saved_unix_s) / 2
    found = ((path, unix_s) for path, unix_s in others.items() if path != file.path and _split(path)[0] == folder)
    return tuple(path for path, unix_s in found if unix_s > between_unix_s)


def _list_numbered_later(file: Checkpoint, kept: Checkpoint, others: Mapping[str, float]) -> tuple[str, ...]:
    """Return the later ones that are saves of a series: the one before lies next to `epoch_3.ckpt`, as `epoch_2.ckpt`.

    The save of the file that is put back ends with that one, and what is later is moved.
    """
    later = _list_later(file, kept, others)
    before = {_without_numbers(path, None) for path in others if path not in later and path != file.path}
    numbered = (path for path in later if last_number(_split(path)[1]) is not None)
    return tuple(path for path in numbered if _without_numbers(path, None) in before)


def _find_newest(path: str, generations: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the newest proven generation of a file."""
    mine = [item for item in generations if item.source == path and item.verdict is Verdict.PROVEN]
    return next(iter(newest_first(mine)), None)


def _find_rotated(save: Save, saves: Sequence[Save], generations: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the newest proven generation of the same names whose file the program has removed since.

    None where one that lies in its place would be found before it, or where there were other parts.
    """
    if len(save.parts) > 1 or any(other is not save and other.names & save.names for other in saves):
        return None
    (name,) = save.names
    folders = [item for item in generations if item.source is not None and _split(item.source)[0] == name[0]]
    mine = [item for item in folders if item.series[1] == name[1] and item.verdict is Verdict.PROVEN]
    kept = next(iter(newest_first(item for item in mine if not item.is_of(save.parts[0]))), None)
    if kept is None or any(item.number == kept.number and item.source != kept.source for item in folders):
        return None
    return kept


def _may_be_shards(save: Save, saves: Sequence[Save]) -> bool:
    """Whether files of the same names share one number and differ in another, as `step_40_rank_0.pt`.

    So may the saves of one epoch; then it stays. Each rank that takes its newest file would take another step.
    """
    alike = {_numbers_of(part.path) for other in saves if other.names & save.names for part in other.parts}
    return any(
        len(first) == len(other) and first != other and any(map(operator.eq, first, other))
        for first, other in combinations(alike, 2)
    )


def _numbers_of(path: str) -> tuple[str, ...]:
    return tuple(_INTEGER.findall(SUFFIXES.sub("", _split(path)[1])))


def _lies_elsewhere(save: Save, before: Save, saves: Sequence[Save]) -> bool:
    """Whether another folder has a save of the same name and time: each rank may have a folder of its own."""
    alike = (other for other in saves if other is not save and other.own_names & save.own_names)
    return any(part.saved_unix_s > before.saved_unix_s for other in alike for part in other.parts)
