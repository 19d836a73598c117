"""Finds damaged saves of a program that loads its newest one by itself and has died at its start with it."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.files_apart import apart
from supervisor.core.checkpoints.checkpoint import (
    AFTER_FAULT,
    LOADS_ITSELF,
    NONE_PROVEN,
    Checkpoint,
    ResumePoint,
    Verdict,
    before_fault,
    cannot_be_verified,
    inherit_verdict,
    merge_proof,
    newest_first,
    of_this_training,
)
from supervisor.core.checkpoints.damaged import (
    Save,
    WayCleared,
    accept_unverified,
    blame_newest,
    clear_way,
    group_saves,
    is_damaged,
    next_to_prove,
    reject_incomplete,
)
from supervisor.daemon.checkpoints.candidates import (
    Prove,
    Search,
    list_own_files,
    with_resume_step,
    with_step,
)
from supervisor.runner.folder_checkpoints import CAN_BE_PROVEN, MAY_BE_ANYTHING

log = logging.getLogger(__name__)

LOOKED_AT = 1000
"""The newest saves that are looked at."""
ENTRIES_LIMIT = 100_000
"""Of a folder with more it is not known which of its files belong together."""
END_BYTES = 64 << 10
PROVEN_AT_MOST = 12
"""Saves that are proven for this, in addition to those that the search for the resume point has proven."""


def move_damaged(
    search: Search,
    point: ResumePoint,
    prove: Prove,
    report: Callable[[Checkpoint], None],
    shared: Callable[[], frozenset[str]],
) -> ResumePoint:
    """Return the resume point with the damaged saves that are moved so that the program finds the proven one.

    `shared` returns the paths that may belong to another job as well, of which none is moved.
    """
    if search.died_unix_s is None or search.set_back is not None or point.checkpoint is None:
        return point
    way = _find_ours(search, shared, partial(_find_way, search, search.died_unix_s, prove, report))
    if way is None:
        return point
    chosen = point.checkpoint if point.checkpoint.kind == "snapshot" else way.stand_in
    reason = point.reason if chosen is point.checkpoint else f"newest proven checkpoint of its own: {chosen.title}"
    return replace(
        point, checkpoint=chosen, reason=reason, newer=way.moved, stand_in=way.stand_in, together=way.together
    )


def move_unverified(
    search: Search,
    point: ResumePoint,
    prove: Prove,
    report: Callable[[Checkpoint], None],
    shared: Callable[[], frozenset[str]],
) -> ResumePoint:
    """Return the resume point of a program whose saves cannot be verified with its newest one moved, if that is to be.

    It is where it is proven damaged all the same, or where the program has failed twice at its start with it: the save
    before it, which the program then finds, is no more in doubt than what any such program goes on from.
    """
    is_blamed = point.loads_itself and search.blamed_unix_s is not None
    is_damaged_alone = search.loads_itself and not point.possible and point.reason.startswith(NONE_PROVEN)
    until_unix_s = search.blamed_unix_s if is_blamed else search.ended_unix_s if is_damaged_alone else None
    if until_unix_s is None or search.set_back is not None:
        return point
    find = partial(_find_unverified_way, search, until_unix_s, prove, report, is_blamed=is_blamed)
    way = _find_ours(search, shared, find)
    if way is None:
        return point
    return ResumePoint(
        checkpoint=None, possible=True, reason=LOADS_ITSELF, loads_itself=True, newer=way.moved, stand_in=way.stand_in
    )


def _find_ours(
    search: Search, shared: Callable[[], frozenset[str]], find: Callable[[], WayCleared | None]
) -> WayCleared | None:
    """Return what `find` says to move; None where that is nothing, unknown, or may belong to another job as well.

    What cannot be examined or listed for now is not known to be damaged: the point is found without it, and no search
    waits for that.
    """
    try:
        way = find()
    except OSError as error:
        log.warning("damaged_saves.unknown", extra={"fields": {"cwd": search.cwd, "why": str(error)}})
        return None
    return way if way is not None and not any(map(way.holds, shared())) else None


def _find_unverified_way(
    search: Search, until_unix_s: float, prove: Prove, report: Callable[[Checkpoint], None], *, is_blamed: bool
) -> WayCleared | None:
    """Return what to move of saves of which those that stay cannot be verified; None where others would be left."""
    listed = _list_own(search)
    overwritten = _list_overwritten(listed, search)
    saves = _prove_newest(group_saves(listed, overwritten), search, prove, report)
    own = newest_first(part for save in saves for part in save.parts)
    judged = blame_newest(own, until_unix_s) if is_blamed else own
    way = clear_way(group_saves(map(accept_unverified, judged), overwritten), (), until_unix_s, {})
    if way is None or not all(cannot_be_verified(item) or way.holds(item.path) for item in judged):
        return None
    return way if is_blamed or all(map(is_damaged, _list_moved(judged, way))) else None


def _list_moved(own: Iterable[Checkpoint], way: WayCleared) -> Iterator[Checkpoint]:
    return (item for item in own if way.holds(item.path))


def _find_way(
    search: Search, died_unix_s: float, prove: Prove, report: Callable[[Checkpoint], None]
) -> WayCleared | None:
    listed = _list_own(search)
    found = group_saves(listed, _list_overwritten(listed, search))
    saves = reject_incomplete(_prove_newest(found, search, prove, report))
    damaged = {part.path for save in saves if save.is_damaged for part in save.parts}
    if not damaged:
        return None
    files = apart(_list_files, tuple({str(Path(path).parent) for path in damaged}), tuple(_suffixes_of(damaged)))
    kept = _before_fault(search.generations, search)
    files = apart(_date_copies, files, {item.path: item.saved_unix_s for item in kept if item.source in damaged})
    way = clear_way(saves, kept, died_unix_s, files)
    return None if way is None or _leaves_late(way, saves) else way


def _leaves_late(way: WayCleared, saves: Sequence[Save]) -> bool:
    """Whether a save from after the fault, with numbers, would be found in place of the one from before it."""
    moved = {name for save in saves if not way.moved_none_of(save) for name in save.names}
    late = (save for save in saves if any(part.reason == AFTER_FAULT for part in save.parts))
    return any(way.moved_none_of(save) and save.names & moved for save in late)


def _list_own(search: Search) -> tuple[Checkpoint, ...]:
    """Return what the patterns name, as it is now and with what is known of it; a link names another."""
    recorded = {checkpoint.key: checkpoint for checkpoint in search.known}
    found = []
    for path, now in list_own_files(search):
        file = recorded.get((path, now), Checkpoint(path=path, fingerprint=now))
        captured = (other for other in (*search.generations, *search.known) if other.is_of(file))
        file = inherit_verdict(file, next((other for other in captured if other.verdict is not None), file))
        found.append(with_resume_step(with_step(file, search), search.batches_per_epoch))
    mine = of_this_training(found, search.began_unix_s)
    usable = {item.key for item in _before_fault(mine, search)}
    return newest_first(item if item.key in usable else _forget_verdict(item) for item in mine)[:LOOKED_AT]


def _list_overwritten(own: Iterable[Checkpoint], search: Search) -> frozenset[str]:
    """Return the files that the training has written more than once, as far as they are recorded or there."""
    contents: dict[str, set[tuple[int, int]]] = {}
    for item in (*own, *search.known, *search.generations):
        seen = item.fingerprint.size_bytes, item.fingerprint.modified_ns
        contents.setdefault(item.source or item.path, set()).add(seen)
    return frozenset(path for path, found in contents.items() if len(found) > 1)


def _before_fault(checkpoints: Iterable[Checkpoint], search: Search) -> tuple[Checkpoint, ...]:
    return before_fault(checkpoints, search.fault_unix_s, search.fault_step, search.set_back)


def _forget_verdict(checkpoint: Checkpoint) -> Checkpoint:
    """Return a save from after the fault without a verdict: none of that time is used, but a spoilt one is in the way.

    That the training's numbers were lost is in its content; that it was saved too late, in its time.
    """
    return checkpoint if is_damaged(checkpoint) else replace(checkpoint, verdict=None, reason=None)


def _reject_late(checkpoint: Checkpoint, search: Search) -> Checkpoint:
    """Return it rejected where it is from after the fault, and not for its content."""
    if is_damaged(checkpoint) or _before_fault((checkpoint,), search):
        return checkpoint
    return replace(checkpoint, verdict=Verdict.REJECTED, reason=AFTER_FAULT)


def _prove_newest(
    saves: Sequence[Save], search: Search, prove: Prove, report: Callable[[Checkpoint], None]
) -> tuple[Save, ...]:
    """Return the saves with the verdicts that are needed to know which of them are damaged."""
    for _ in range(PROVEN_AT_MOST):
        file = next_to_prove(saves)
        if file is None:
            break
        proven = merge_proof(file, prove(Path(file.path)))
        if proven.fingerprint != file.fingerprint:
            break  # it is being written
        proven = _reject_late(with_resume_step(proven, search.batches_per_epoch), search)
        report(proven)
        saves = tuple(_replace_part(save, proven) for save in saves)
    return tuple(saves)


def _replace_part(save: Save, proven: Checkpoint) -> Save:
    parts = tuple(proven if part.path == proven.path else part for part in save.parts)
    return replace(save, parts=parts)


def _date_copies(files: Mapping[str, float], kept: Mapping[str, float]) -> Mapping[str, float]:
    """Return the files with their times, a copy of what is kept with the time of that: it is of no later save.

    KataGo copies its last save to `checkpoint_prev0.ckpt` before it writes the next one, at whose time it is written.
    """
    times = {_read_ends(path): unix_s for path, unix_s in kept.items()}
    times.pop(None, None)
    if not times:
        return files
    return {path: min(unix_s, times.get(_read_ends(path), unix_s)) for path, unix_s in files.items()}


def _read_ends(path: str) -> tuple[int | bytes, ...] | None:
    """Return what tells two saves of one kind apart: the end of a file of torch holds the checksums of its numbers."""
    folder, name = Path(path).parent, Path(path).name
    try:
        found = untrusted_files.file_status(folder, name)
        if found is None:
            return None
        ends = (untrusted_files.read_part(folder, name, at, END_BYTES) for at in (0, max(0, found.st_size - END_BYTES)))
        return found.st_size, *ends
    except OSError:
        return None


def _suffixes_of(paths: Iterable[str]) -> set[str]:
    return {*CAN_BE_PROVEN, MAY_BE_ANYTHING, *(Path(path).suffix for path in paths)}


def _list_files(folders: Sequence[str], suffixes: Sequence[str]) -> Mapping[str, float]:
    """Return the files of these suffixes in each folder with the times at which they were written."""
    return dict(entry for folder in folders for entry in _scan(folder, suffixes))


def _scan(folder: str, suffixes: Sequence[str]) -> Iterator[tuple[str, float]]:
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= ENTRIES_LIMIT:
                raise OSError(f"{folder} has more than {ENTRIES_LIMIT} entries")
            if entry.name.endswith(tuple(filter(None, suffixes))):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield entry.path, found.st_mtime
