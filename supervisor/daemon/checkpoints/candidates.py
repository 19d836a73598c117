"""The search for a resume point: lists a job's checkpoints, has them proven and lets `core` choose.

It never opens a checkpoint itself; a prover in the job's own interpreter does.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from glob import iglob
from itertools import islice
from pathlib import Path

from supervisor.checkpoint_patterns import advise, ends_with_name, place_of
from supervisor.children.files_apart import apart
from supervisor.core.checkpoints.checkpoint import (
    AFTER_FAULT,
    REFUSED,
    Checkpoint,
    Fingerprint,
    Given,
    ResumePoint,
    SetBack,
    Verdict,
    before_fault,
    choose,
    inherit_verdict,
    merge_proof,
    of_this_training,
    older,
)
from supervisor.daemon.checkpoints.unreadable import find_unreadable
from supervisor.runner.folder_checkpoints import HOLDS_WEIGHTS, describe_refused, fingerprint_of

Prove = Callable[[Path], Checkpoint]
UNFINISHED = re.compile(r"\.(rocm-supervisor-part|aside-\d+)$|orbax-checkpoint-tmp|\.tmp$")
"""Names of folders that are being written, or that were set aside."""
LOOKED_AT = 1000
"""Entries of a folder that are looked at for the end of a file's name."""
PROVEN_AT_MOST = 50
"""Checkpoints that one search proves; those with a verdict are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where a search looks for checkpoints."""

    known: tuple[Checkpoint, ...]
    """Checkpoints that the record knows, each with the fingerprint it had then."""
    globs: tuple[str, ...]
    cwd: str
    fault_unix_s: float | None
    fault_step: int | None
    batches_per_epoch: int | None
    began_unix_s: float | None = None
    """When the training was last started from the beginning; older files belong to another run."""
    set_back: SetBack | None = None
    """That the wall clock was set back during the training."""
    older_than: Checkpoint | None = None
    """Checkpoints older than this are searched first."""
    generations: tuple[Checkpoint, ...] = ()
    """The job's stored generations, each with its stored verdict."""
    generations_folder: str | None = None
    """Folders whose other content is no checkpoint."""
    snapshots: str | None = None
    """The folder of the agent's snapshots, of which one may lie there that nothing reported."""
    replicas: str | None = None
    """The second folder of its snapshots, where one is set."""
    given: Given = field(default_factory=Given)
    """How much work of a newer checkpoint may be redone so that the newest snapshot, which is exact, is used."""
    step_of: Callable[[Fingerprint], int | None] = lambda _: None
    """Returns the step after which a file was saved whose save was not reported."""
    loads_itself: bool = False
    """Whether no file is handed to the training: no command that takes one is configured, nor a place for one."""
    set_newer_aside: bool = False
    """Whether the training takes the newest checkpoint that it finds, so that newer ones are moved out of its way."""
    died_unix_s: float | None = None
    """When the attempt was launched that died at its start; None: no damaged save has to be moved for the program."""
    ended_unix_s: float | None = None
    """When the attempt ended; None where that is not known."""
    blamed_unix_s: float | None = None
    """When the attempt was launched that failed, again, with the newest save that its program loads by itself."""
    rejected_because: str | None = None
    """Why the checkpoint last resumed from is rejected, where it caused the fault."""


def fingerprint(path: Path) -> Fingerprint | None:
    """Return the `stat` values of a file, or of a folder's files; None where there is neither."""
    try:
        return apart(fingerprint_of, path)
    except OSError:
        return None


def was_renamed(path: Path, seen: Fingerprint) -> bool:
    """Whether a file was given its name after the last write to it, as one that is saved whole or not at all is."""
    try:
        return apart(_has_changed_since_write, path, seen)
    except OSError:
        return False


def _has_changed_since_write(path: Path, seen: Fingerprint) -> bool:
    facts = path.stat()
    is_same = (facts.st_ino, facts.st_size, facts.st_mtime_ns) == (seen.inode, seen.size_bytes, seen.modified_ns)
    # A write sets both times; a new name sets this one alone.
    return is_same and stat.S_ISREG(facts.st_mode) and facts.st_ctime_ns > facts.st_mtime_ns


def find_refused(path: Path) -> tuple[Checkpoint, ...]:
    """Return the folder of weights that is not looked into, rejected with the reason; none for any other path."""
    try:
        refused = apart(describe_refused, path)
    except OSError:
        return ()
    if refused is None:
        return ()
    return (
        Checkpoint(path=str(path), fingerprint=refused[0], verdict=Verdict.REJECTED, reason=f"{REFUSED}{refused[1]}"),
    )


def describe_denied(path: Path) -> str | None:
    """Return why the daemon has no permission to check for the file; None where it has."""
    return apart(_find_closed_folder, path)


def _find_closed_folder(path: Path) -> str | None:
    try:
        path.stat()
    except PermissionError:
        shut = next((parent for parent in reversed(path.parents) if not os.access(parent, os.X_OK)), path.parent)
        return f"{shut} is closed to the daemon: `chmod g+rx {shut}`, then start the job again"
    except OSError:
        return None
    return None


def candidates(search: Search) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of this run that exist now, last written first; a verdict holds for an unchanged file.

    A checkpoint in a folder closed to the daemon counts as present and keeps its verdict.
    """
    known = {checkpoint.key: checkpoint for checkpoint in search.known}
    paths = dict.fromkeys(
        [checkpoint.path for checkpoint in search.known] + list(expand_globs(search.globs, search.cwd))
    )
    last = {checkpoint.path: checkpoint for checkpoint in search.known}
    found = [_with_record(checkpoint, known.get(checkpoint.key)) for checkpoint in search.generations]
    for path in paths:
        if search.generations_folder is not None and Path(path).parent.parent == Path(search.generations_folder):
            continue
        now = fingerprint(Path(path))
        if now is None and path in last and (why := describe_denied(Path(path))) is not None:
            found.append(replace(last[path], verdict=Verdict.REJECTED, reason=why))
        elif now is None:
            found.extend(find_refused(Path(path)))
        elif now is not None:
            own = str(Path(path).parent) in (search.snapshots, search.replicas)
            kind = "snapshot" if own else "checkpoint"
            found.extend(
                _exclude_captured(known.get((path, now), Checkpoint(path=path, fingerprint=now, kind=kind)), search)
            )
    ours = of_this_training(found, search.began_unix_s)
    ordered = sorted(ours, key=lambda checkpoint: checkpoint.saved_unix_s, reverse=True)
    unproven = [checkpoint for checkpoint in ordered if checkpoint.verdict is None]
    # However many were rejected since, the last proven one stays in the list.
    beyond = {checkpoint.key for checkpoint in unproven[PROVEN_AT_MOST:]}
    return tuple(checkpoint for checkpoint in ordered if checkpoint.key not in beyond)


def _with_record(generation: Checkpoint, known: Checkpoint | None) -> Checkpoint:
    """Return a generation with its stored verdict; one that the record rejected stays rejected."""
    if known is not None and known.verdict is Verdict.REJECTED:
        return replace(generation, verdict=known.verdict, reason=known.reason)
    return generation


def _exclude_captured(checkpoint: Checkpoint, search: Search) -> Iterable[Checkpoint]:
    """Yield the training's own file, unless a generation holds it, with the verdict of the generation pruned of it."""
    if any(generation.is_of(checkpoint) for generation in search.generations):
        return
    pruned = (other for other in search.known if other.is_of(checkpoint) and other.verdict is not None)
    yield inherit_verdict(checkpoint, next(pruned, checkpoint))


def expand_globs(globs: Iterable[str], cwd: str) -> Iterable[str]:
    """Return what the configured patterns name; relative patterns start from the job's directory.

    A pattern that ends in `/` names folders, each of which is one checkpoint; any other names files.
    """
    return apart(list_matches, tuple(globs), cwd)


def list_matches(globs: tuple[str, ...], cwd: str) -> tuple[str, ...]:
    """As `expand_globs`, in this process.

    A link to a folder that a pattern names as well is no checkpoint of its own: `last`, which the program moves on.
    """
    found = tuple(_find_matches(globs, cwd))
    links = {path for path in found if Path(path).is_symlink() and Path(path).is_dir()}
    named = {os.path.realpath(path) for path in found if path not in links} if links else set()
    return tuple(path for path in found if path not in links or os.path.realpath(path) not in named)


def _find_matches(globs: tuple[str, ...], cwd: str) -> Iterator[str]:
    for pattern in globs:
        folders = pattern.endswith("/")
        for found in iglob(place_of(pattern, cwd), recursive=True):  # noqa: PTH207 - absolute
            path = Path(found)
            if path.is_dir() and not UNFINISHED.search(path.name) if folders else path.is_file():
                yield str(path)


def find_folders(globs: Iterable[str], cwd: str) -> tuple[str, ...]:
    """Return which patterns for files end with the name of a folder, each with what to write in its place."""
    return apart(_find_folders, tuple(globs), cwd)


def _find_folders(globs: tuple[str, ...], cwd: str) -> tuple[str, ...]:
    return tuple(found for pattern in globs if (found := _describe_folder(pattern, cwd)) is not None)


def _describe_folder(pattern: str, cwd: str) -> str | None:
    """Return what to write in place of a pattern for files that names a folder, or folders of weights alone."""
    if pattern.endswith("/"):
        return None
    places = list(map(Path, islice(iglob(place_of(pattern, cwd)), LOOKED_AT)))  # noqa: PTH207 - absolute
    if ends_with_name(pattern):
        folder = next((place for place in places if place.is_dir()), None)
        is_what = "is the folder"
    else:
        folder = None if any(place.is_file() for place in places) else next(filter(_holds_weights, places), None)
        is_what = "matches folders alone, such as"
    return None if folder is None else f'"{pattern}" {is_what} {folder}: {advise(pattern, _find_suffix(folder))}'


def _holds_weights(folder: Path) -> bool:
    """Whether a folder or one in it has a file that may hold weights."""
    found = (path for pattern in ("*", "*/*") for path in islice(folder.glob(pattern), LOOKED_AT))
    return any(path.name.endswith(HOLDS_WEIGHTS) and path.is_file() for path in found)


def _find_suffix(folder: Path) -> str:
    """Return how the name of a file in the folder ends, of one of the first few: of weights, where one has any."""
    try:
        with os.scandir(folder) as entries:
            files = sorted(entry.name for entry in islice(entries, LOOKED_AT) if entry.is_file())
    except OSError:
        return ".pt"
    ends = [suffix for name in files if (suffix := Path(name).suffix)]
    return next((suffix for suffix in ends if suffix in HOLDS_WEIGHTS), ends[0] if ends else ".pt")


def find(search: Search, prove: Prove, report: Callable[[Checkpoint], None]) -> ResumePoint:
    """Return where to resume; `report` is called with every verdict, also of those rejected as too new.

    A file of a folder that the patterns name is resumed from only where no folder of them can be.
    """
    return find_among(search, candidates(search), prove, report)[0]


def find_among(
    search: Search, found: Sequence[Checkpoint], prove: Prove, report: Callable[[Checkpoint], None]
) -> tuple[ResumePoint, tuple[Checkpoint, ...]]:
    """Return as `find` does where to resume of these candidates, and them with their verdicts for another search."""
    parts = tuple(checkpoint for checkpoint in found if _is_in_named_folder(checkpoint, search))
    judged = _judge(search, (item for item in found if item not in parts), (), prove, report)
    left, point = parts, _choose_among(search, judged)
    if parts and point.checkpoint is None:
        judged, left = _judge(search, parts, judged, prove, report), ()
        point = _choose_among(search, judged)
    return _complete(search, point, judged), (*judged, *left)


def _complete(search: Search, point: ResumePoint, judged: Sequence[Checkpoint]) -> ResumePoint:
    """Return the point with what is moved for it; none where checkpoints that cannot be read may be newer."""
    barriers = find_unreadable(search.globs, search.cwd)
    if point.checkpoint is not None and search.set_newer_aside:
        point = replace(point, newer=_without_parts(_find_newer(search, point.checkpoint, judged)))
    unknown = barriers.patterns or (() if point.checkpoint is not None or not point.possible else barriers.everything)
    return _refuse_start(unknown) if unknown else point


def _is_in_named_folder(checkpoint: Checkpoint, search: Search) -> bool:
    """Whether it lies in what a pattern for folders names: the agent reports the file of such a folder's weights."""
    folders = [place_of(pattern, search.cwd) for pattern in search.globs if pattern.endswith("/")]
    places = Path(checkpoint.source or checkpoint.path).parents
    return checkpoint.kind != "snapshot" and any(fnmatchcase(str(place), name) for name in folders for place in places)


def _judge(
    search: Search,
    found: Iterable[Checkpoint],
    before: Sequence[Checkpoint],
    prove: Prove,
    report: Callable[[Checkpoint], None],
) -> list[Checkpoint]:
    """Return the checkpoints `found` with their verdicts after those of `before`, each proven where that is needed."""
    by_key = {checkpoint.key: with_step(checkpoint, search) for checkpoint in found}
    todo = tuple(with_resume_step(checkpoint, search.batches_per_epoch) for checkpoint in by_key.values())
    clean = before_fault(todo, search.fault_unix_s, search.fault_step, search.set_back)
    usable = {checkpoint.key for checkpoint in clean}
    judged = list(before)
    for checkpoint in todo:
        verdict = checkpoint
        if checkpoint.key not in usable:
            why = checkpoint.reason if checkpoint.verdict is Verdict.REJECTED else search.rejected_because
            verdict = replace(checkpoint, verdict=Verdict.REJECTED, reason=why or AFTER_FAULT)
        elif checkpoint.verdict is None and not any(_makes_proof_unneeded(item, checkpoint, search) for item in judged):
            verdict = with_resume_step(
                merge_proof(by_key[checkpoint.key], prove(Path(checkpoint.path))), search.batches_per_epoch
            )
        if verdict != checkpoint:
            report(verdict)
        judged.append(verdict)
    return judged


def _find_newer(search: Search, chosen: Checkpoint, judged: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield what the patterns name that is newer than the chosen checkpoint: by steps where both are known.

    None next to a snapshot, which the agent loads, and none where the times of files are no order. A link is left: it
    is what names the newest one. So is a file that the training has only reported: it may be a part of a folder.
    """
    if chosen.kind == "snapshot" or search.set_back is not None:
        return
    place = Path(chosen.source or chosen.path)
    for path, now in list_own_files(search):
        if place in Path(path).parents:
            continue
        own = Checkpoint(path=path, fingerprint=now)
        if chosen.key == own.key or chosen.is_of(own):
            continue
        step = next((item.step for item in judged if item.key == own.key or item.is_of(own)), search.step_of(now))
        is_later = now.modified_ns > chosen.fingerprint.modified_ns
        if step > chosen.step if step is not None and chosen.step is not None else is_later:
            yield path


def _without_parts(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that lie in none of the others: a folder is moved with what it holds."""
    found = sorted(paths)
    folders = set(map(Path, found))
    return tuple(path for path in found if folders.isdisjoint(Path(path).parents))


def list_own_files(search: Search) -> Iterator[tuple[str, Fingerprint]]:
    """Yield what the patterns name of the training's own, as it is now: no snapshot, no generation, and no link."""
    paths = tuple(dict.fromkeys(expand_globs(search.globs, search.cwd)))
    links = set(apart(_list_links, paths))
    for path in paths:
        now = None if path in links or _is_ours(path, search) else fingerprint(Path(path))
        if now is not None:
            yield path, now


def _list_links(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in paths if Path(path).is_symlink())


def _is_ours(path: str, search: Search) -> bool:
    """Whether a path is a snapshot of the agent or lies in a generation."""
    parent = Path(path).parent
    in_generation = search.generations_folder is not None and parent.parent == Path(search.generations_folder)
    return in_generation or str(parent) in (search.snapshots, search.replicas)


def _refuse_start(barriers: tuple[str, ...]) -> ResumePoint:
    """Return that the saved checkpoints are unknown; a start could overwrite unreadable ones."""
    why = f"checkpoints cannot be read, and a start could overwrite them: {'; '.join(barriers)}"
    return ResumePoint(checkpoint=None, possible=False, reason=f"{why}; then start the job again")


def _choose_among(search: Search, judged: list[Checkpoint]) -> ResumePoint:
    return choose(
        judged,
        search.fault_unix_s,
        search.fault_step,
        began_unix_s=search.began_unix_s,
        older_than=search.older_than,
        given=search.given,
        loads_itself=search.loads_itself,
        set_back=search.set_back,
    )


def _makes_proof_unneeded(proven: Checkpoint, other: Checkpoint, search: Search) -> bool:
    """Whether a checkpoint is proven so that no older one has to be; for a snapshot only a snapshot counts."""
    if proven.verdict is not Verdict.PROVEN or not older(proven, search.older_than):
        return False
    return proven.kind == "snapshot" or other.kind != "snapshot"


def with_step(checkpoint: Checkpoint, search: Search) -> Checkpoint:
    """Return it with the step after which its file was saved, where that is known otherwise."""
    return (
        checkpoint if checkpoint.step is not None else replace(checkpoint, step=search.step_of(checkpoint.fingerprint))
    )


def with_resume_step(checkpoint: Checkpoint, batches_per_epoch: int | None) -> Checkpoint:
    """Return it with the step at which a training resumed from it goes on, where only its epoch is known."""
    if checkpoint.step is not None or checkpoint.epoch is None or batches_per_epoch is None:
        return checkpoint
    return replace(checkpoint, step=(checkpoint.epoch + 1) * batches_per_epoch)
