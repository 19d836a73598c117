"""Looks for the place to resume from: finds the checkpoints of a job, has them proven, lets `core` choose.

It never opens a checkpoint itself; a prover in the job's own interpreter does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from glob import iglob
from pathlib import Path

from supervisor.core.checkpoints import (
    Checkpoint,
    Fingerprint,
    ResumePoint,
    Verdict,
    before_trouble,
    choose,
    of_this_training,
    older,
)

Prove = Callable[[Path], Checkpoint]
PROVEN_AT_MOST = 50
"""Checkpoints that one search has proven; what was judged before costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to look through."""

    known: tuple[Checkpoint, ...]
    """Checkpoints that the record knows, each with the fingerprint it had then."""
    globs: tuple[str, ...]
    cwd: str
    trouble_unix_s: float | None
    trouble_step: int | None
    batches_per_epoch: int | None
    began_unix_s: float | None = None
    """When the training was last started from the beginning; what is older belongs to another run."""
    older_than: Checkpoint | None = None
    """One that is older than this is looked for before the others."""
    generations: tuple[Checkpoint, ...] = ()
    """What is kept on the shelf, with the verdicts that lie there."""
    shelf: str | None = None
    """Where: what else lies there is no checkpoint."""
    condemned: str | None = None
    """Why the checkpoint that was last resumed from is no good, where that is the trouble."""


def fingerprint(path: Path) -> Fingerprint | None:
    """Return what `stat` tells about a file, or None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return Fingerprint(size_bytes=stat.st_size, modified_ns=stat.st_mtime_ns, inode=stat.st_ino)


def barred(path: Path) -> str | None:
    """Return why nobody here may look whether the file is there; None where one may."""
    try:
        path.stat()
    except PermissionError:
        shut = next((one for one in reversed(path.parents) if not os.access(one, os.X_OK)), path.parent)
        return f"{shut} is closed to the daemon: `chmod g+rx {shut}`, then start the job again"
    except OSError:
        return None
    return None


def candidates(search: Search) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of this run that exist now, last written first; a verdict holds for an unchanged file.

    One that may not be looked at counts as there, with the verdict it has: nobody knows that it is gone.
    """
    known = {one.key: one for one in search.known}
    paths = dict.fromkeys([one.path for one in search.known] + list(globbed(search.globs, search.cwd)))
    last = {one.path: one for one in search.known}
    found = [_with_record(one, known.get(one.key)) for one in search.generations]
    for path in paths:
        if search.shelf is not None and Path(path).parent.parent == Path(search.shelf):
            continue
        now = fingerprint(Path(path))
        if now is None and path in last and (why := barred(Path(path))) is not None:
            found.append(replace(last[path], verdict=Verdict.REJECTED, reason=why))
        elif now is not None:
            found.extend(_own(known.get((path, now), Checkpoint(path=path, fingerprint=now)), search))
    ours = of_this_training(found, search.began_unix_s)
    ordered = sorted(ours, key=lambda one: one.saved_unix_s, reverse=True)
    unproven = [one for one in ordered if one.verdict is None]
    # However many were rejected since: the last proven one stays among them.
    beyond = {one.key for one in unproven[PROVEN_AT_MOST:]}
    return tuple(one for one in ordered if one.key not in beyond)


def _with_record(generation: Checkpoint, known: Checkpoint | None) -> Checkpoint:
    """Return a generation with the verdict on the shelf; one that the record condemned stays condemned."""
    if known is not None and known.verdict is Verdict.REJECTED:
        return replace(generation, verdict=known.verdict, reason=known.reason)
    return generation


def _own(one: Checkpoint, search: Search) -> Iterable[Checkpoint]:
    """Yield the training's own file, unless it is kept; with the verdict of the generation that was let go of it."""
    if any(generation.is_of(one) for generation in search.generations):
        return
    gone = next((other for other in search.known if other.is_of(one) and other.verdict is not None), None)
    if gone is not None and one.verdict is None:
        one = replace(one, verdict=gone.verdict, reason=gone.reason, epoch=gone.epoch, step=gone.step)
    yield one


def globbed(globs: Iterable[str], cwd: str) -> Iterable[str]:
    """Return the files that the configured patterns name; relative patterns start from the job's directory."""
    for pattern in globs:
        for path in iglob(str(Path(cwd) / Path(pattern).expanduser()), recursive=True):  # noqa: PTH207 - absolute
            if Path(path).is_file():
                yield str(Path(path))


def find(search: Search, prove: Prove, tell: Callable[[Checkpoint], None]) -> ResumePoint:
    """Return where to resume; `tell` hears every verdict, also of those condemned for being too new."""
    todo = tuple(placed(one, search.batches_per_epoch) for one in candidates(search))
    sound = {one.key for one in before_trouble(todo, search.trouble_unix_s, search.trouble_step)}
    judged: list[Checkpoint] = []
    for one in todo:
        proven = any(other.verdict is Verdict.PROVEN and older(other, search.older_than) for other in judged)
        verdict = one
        if one.key not in sound:
            why = one.reason if one.verdict is Verdict.REJECTED else search.condemned
            verdict = replace(one, verdict=Verdict.REJECTED, reason=why or "saved after the trouble began")
        elif one.verdict is None and not proven:
            verdict = placed(merged(one, prove(Path(one.path))), search.batches_per_epoch)
        if verdict != one:
            tell(verdict)
        judged.append(verdict)
    return choose(
        judged,
        search.trouble_unix_s,
        search.trouble_step,
        began_unix_s=search.began_unix_s,
        older_than=search.older_than,
    )


def merged(known: Checkpoint, proof: Checkpoint) -> Checkpoint:
    """Return the proof with what the training itself had said about the same content."""
    if proof.fingerprint != known.fingerprint:
        return proof
    return replace(
        proof,
        epoch=known.epoch if proof.epoch is None else proof.epoch,
        step=known.step if proof.step is None else proof.step,
        kind=known.kind,
        source=proof.source or known.source,
        kept_by=proof.kept_by or known.kept_by,
    )


def placed(one: Checkpoint, batches_per_epoch: int | None) -> Checkpoint:
    """Return it with the step at which a training resumed from it goes on, where only its epoch is known."""
    if one.step is not None or one.epoch is None or batches_per_epoch is None:
        return one
    return replace(one, step=(one.epoch + 1) * batches_per_epoch)
