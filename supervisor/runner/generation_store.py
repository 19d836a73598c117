"""The generation store of one job: copies of its checkpoints, each in a folder of its own.

STATE/jobs/JOB/generations/SERIAL/ contains the file under its own name, `generation.json` with its facts, and
`profile.json`. It is in the state directory, which the daemon may write in any sandbox, so a training that deletes its
run folder does not delete it. A folder appears complete, by one rename.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from supervisor.children.files_apart import apart
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.foreign_values import (
    EPOCH_MAX,
    FILE_NAME_CHARS_MAX,
    STEP_MAX,
    as_float,
    as_int,
    as_message,
    as_path,
    as_text,
    read_json_object,
)
from supervisor.runner.clone_file import clone_file
from supervisor.runner.folder_checkpoints import files_in, fingerprint_of

FACTS, PROFILE, SERIAL = "generation.json", "profile.json", "serial"
DRAFT, GOING = ".taking-", ".going-"
FOLDER_MODE = 0o750
"""The training reads it through the group that it shares with the daemon; only the daemon writes."""
TRAINER_STATE = "trainer_state.json"
"""If this file is in a checkpoint's folder, the complete folder is one save, as of Hugging Face's Trainer."""
LINKED_AFTER = 2
"""After this many consecutive replacements by a new file, a path is assumed not to be rewritten in place."""
NOTE_LIMIT_BYTES = 1 << 26
NO_WAIT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe in place of a file is not waited for."""
COMPARED_BYTES = 1 << 20
REASON_CHARS_MAX = 1000


class ChangedError(RuntimeError):
    """The file was modified or removed before it was captured; its next save will be reported again."""


class NotTheirsError(RuntimeError):
    """The file belongs to another user than the training's, so the training must not get a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A saved file that is to be captured."""

    seen: Checkpoint
    """The file as it was when it was reported; later content is another save."""
    attempt: int
    owner: int | None
    """Uid of the training; None if unknown: then nothing is captured."""


class GenerationStore:
    """Generations of one job; one thread captures, any thread may read, judge, mark and drop."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        """`reserve_bytes` stay free on the disk for trainings and the database."""
        self.folder = folder
        self._reserve_bytes = reserve_bytes
        self._noting = threading.Lock()

    def take(self, wanted: Wanted) -> Checkpoint:
        """Capture a file as a new generation and return it; one thread at a time.

        Raises ChangedError, NotTheirsError, NoRoomError (of clone_file), or OSError if it cannot be read or written.
        """
        self.folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        serial = self._next_serial()
        draft = self.folder / f"{DRAFT}{serial:06d}"
        draft.mkdir(mode=FOLDER_MODE)
        try:
            taken = self._fill_draft(draft, wanted)
            target = self.folder / f"{serial:06d}"
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync_folder(self.folder)
        return replace(taken, path=str(target / Path(taken.path).name))

    def _fill_draft(self, draft: Path, wanted: Wanted) -> Checkpoint:
        seen, target = wanted.seen, draft / Path(wanted.seen.path).name
        linked = seen.kind == "snapshot" or self._is_always_replaced(seen)
        # The disk of the training may never answer.
        how = apart(_capture, draft, wanted, linked=linked, reserve_bytes=self._reserve_bytes)
        taken = replace(seen, path=str(target), fingerprint=fingerprint_of(target), source=seen.path)
        facts = {**_build_facts(taken), "how": how, "attempt": wanted.attempt, "source_inode": seen.fingerprint.inode}
        _write_json(draft / FACTS, facts)
        _sync_folder(draft)
        return taken

    def _is_always_replaced(self, seen: Checkpoint) -> bool:
        """Whether this path is replaced by a new file at each save, so that a hard link to it is not modified."""
        inodes = [facts.get("source_inode") for facts in self._read_all_facts() if facts.get("source") == seen.path]
        last = [*inodes[-LINKED_AFTER:], seen.fingerprint.inode]
        return len(last) > LINKED_AFTER and len(set(last)) == len(last)

    def has_taken(self, seen: Fingerprint) -> bool:
        """Whether this content was captured, under any name: a second link to a file is the same save."""
        content = [seen.inode, seen.size_bytes, seen.modified_ns]
        return any(
            [facts.get("source_inode"), facts.get("size_bytes"), facts.get("modified_ns")] == content
            for facts in self._read_all_facts()
        )

    def all(self) -> tuple[Checkpoint, ...]:
        """Return every generation, oldest first, without those whose file was modified after the capture."""
        return tuple(
            checkpoint for checkpoint in map(self._read_generation, self._list_folders()) if checkpoint is not None
        )

    def _read_generation(self, folder: Path) -> Checkpoint | None:
        facts = _read_json(folder / FACTS)
        name, verdict = as_path(facts.get("name"), FILE_NAME_CHARS_MAX), facts.get("verdict")
        if name is None or "/" in name:
            return None
        try:
            if not _is_own((folder / name).lstat()):
                return None  # a link
            fingerprint = fingerprint_of(folder / name)
        except OSError:
            return None
        if [fingerprint.size_bytes, fingerprint.modified_ns] != [facts.get("size_bytes"), facts.get("modified_ns")]:
            return None
        return Checkpoint(
            path=str(folder / name),
            fingerprint=fingerprint,
            epoch=as_int(facts.get("epoch"), -1, EPOCH_MAX),
            step=as_int(facts.get("step"), maximum=STEP_MAX),
            verdict=Verdict(verdict) if verdict in ("proven", "rejected") else None,
            reason=as_message(facts.get("reason"), REASON_CHARS_MAX),
            kind=as_text(facts.get("kind")) or "checkpoint",
            source=as_path(facts.get("source")) or "",
            fitness=as_float(facts.get("fitness")),
            kept_by=as_message(facts.get("kept_by")),
        )

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is a generation of this store."""
        return Path(checkpoint.path).parent.parent == self.folder

    def judge(self, checkpoint: Checkpoint, profile: object = None) -> None:
        """Store the result of a generation's proof or resume; has no effect if it was dropped meanwhile."""
        found = _build_facts(checkpoint)
        names = ("epoch", "step", "verdict", "reason", "fitness")
        self._update_facts(Path(checkpoint.path).parent, {name: found[name] for name in names}, profile)

    def mark(self, checkpoint: Checkpoint, kept_by: str) -> None:
        """Store which limits keep a generation."""
        self._update_facts(Path(checkpoint.path).parent, {"kept_by": kept_by})

    def _update_facts(self, folder: Path, changes: dict[str, object], profile: object = None) -> None:
        with self._noting, contextlib.suppress(FileNotFoundError):
            known = _read_json(folder / FACTS)
            if known and profile is not None:
                _write_json(folder / PROFILE, profile)
            if known:
                _write_json(folder / FACTS, {**known, **changes})

    def profile(self, checkpoint: Checkpoint) -> object:
        """Return the stored profile of a generation; {} if there is none."""
        return _read_json(Path(checkpoint.path).parent / PROFILE)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Remove a generation; an interrupted removal is finished by `tidy`."""
        folder = Path(checkpoint.path).parent
        going = folder.with_name(GOING + folder.name)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(going)
        shutil.rmtree(going, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what an interrupted capture or removal has left."""
        for path in self.folder.glob(".*"):
            if path.name.startswith((DRAFT, GOING)):
                shutil.rmtree(path, ignore_errors=True)

    def _list_folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.name.isdigit())
        except OSError:
            return []

    def _read_all_facts(self) -> Iterator[dict[str, object]]:
        yield from (_read_json(path / FACTS) for path in self._list_folders())

    def _next_serial(self) -> int:
        """Return a number that no generation ever had, so that a path always refers to the same content."""
        last = as_int(_read_json(self.folder / SERIAL).get("last")) or 0
        highest = max((int(path.name) for path in self._list_folders()), default=0)
        serial = max(last, highest) + 1
        _write_json(self.folder / SERIAL, {"last": serial})
        shutil.rmtree(self.folder / f"{DRAFT}{serial:06d}", ignore_errors=True)
        return serial


def _capture(draft: Path, wanted: Wanted, *, linked: bool, reserve_bytes: int) -> str:
    """Capture a file and those of the same save, or a folder, into a draft; return the method of `clone_file`."""
    source = Path(wanted.seen.path)
    clone = partial(clone_file, reserve_bytes=reserve_bytes, linked=linked)
    if source.is_dir():
        folder_clone = partial(clone_file, reserve_bytes=reserve_bytes, linked=wanted.seen.kind == "snapshot")
        return _capture_folder(source, draft / source.name, wanted, folder_clone)
    how = _capture_file(source, draft / source.name, wanted, clone, seen=wanted.seen.fingerprint)
    for path in _list_sibling_files(source):
        _capture_file(path, draft / path.name, wanted, clone)
    return how


def _capture_folder(source: Path, target: Path, wanted: Wanted, clone: Callable[[int, Path], str]) -> str:
    """Capture every file of a folder as one save; return the method of `clone_file`."""
    ways: list[str] = []
    for path in files_in(source):
        place = target / path.relative_to(source)
        place.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        ways.append(_capture_file(path, place, wanted, clone))
    if not ways:
        raise ChangedError(f"{source} contains no file")
    if _fingerprint_now(source) != wanted.seen.fingerprint:
        raise ChangedError(f"{source} changed after it was saved")
    return min(ways)


def _capture_file(
    source: Path, target: Path, wanted: Wanted, clone: Callable[[int, Path], str], *, seen: Fingerprint | None = None
) -> str:
    """Capture one file, with `seen` only if it has that content; return the method of `clone_file`."""
    fd = _open_source(source)
    try:
        before = os.fstat(fd)
        is_same = seen is None or _fingerprint_from(before) == seen
        if not stat.S_ISREG(before.st_mode) or not is_same:
            raise ChangedError(f"{source} changed after it was saved")
        if before.st_uid != wanted.owner:
            user = "the training" if wanted.owner is not None else f"attempt {wanted.attempt}, which is not known"
            raise NotTheirsError(f"{source} does not belong to the user of {user}")
        how = clone(fd, target)
        if _fingerprint_from(os.fstat(fd)) != _fingerprint_from(before):
            raise ChangedError(f"{source} was modified while it was captured")
        if how == "link" and target.lstat().st_ino != before.st_ino:
            raise ChangedError(f"{source} was replaced while it was captured")
    finally:
        os.close(fd)
    return how


def same_content(kept: Path, source: Path) -> bool:
    """Whether a kept file and a file of the training have the same bytes. Raises OSError if one cannot be read."""
    first = os.open(kept, NO_WAIT)
    try:
        second = _open_source(source)
        try:
            return _have_same_bytes(first, second)
        finally:
            os.close(second)
    finally:
        os.close(first)


def _have_same_bytes(first: int, second: int) -> bool:
    info, other = os.fstat(first), os.fstat(second)
    if not (stat.S_ISREG(info.st_mode) and stat.S_ISREG(other.st_mode)) or info.st_size != other.st_size:
        return False
    at = 0
    while at < info.st_size:
        piece = os.pread(first, COMPARED_BYTES, at)
        if not piece or piece != os.pread(second, COMPARED_BYTES, at):
            return False
        at += len(piece)
    return True


def _open_source(source: Path) -> int:
    """Open the file that a path resolves to: some writers replace a link at each save (Lightning's `last`)."""
    try:
        return os.open(os.path.realpath(source), NO_WAIT)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ChangedError(f"{source} was replaced while it was captured") from error
        if error.errno == errno.ENOENT:
            raise ChangedError(f"{source} was removed before it was captured") from error
        raise


def _fingerprint_now(source: Path) -> Fingerprint | None:
    try:
        return fingerprint_of(source)
    except FileNotFoundError:
        return None  # removed meanwhile


def _list_sibling_files(source: Path) -> list[Path]:
    if not (source.parent / TRAINER_STATE).is_file():
        return []
    return sorted(path for path in source.parent.iterdir() if path.is_file() and path != source)


def _build_facts(checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "name": Path(checkpoint.path).name,
        "size_bytes": checkpoint.fingerprint.size_bytes,
        "modified_ns": checkpoint.fingerprint.modified_ns,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "verdict": checkpoint.verdict.value if checkpoint.verdict else None,
        "reason": checkpoint.reason,
        "kind": checkpoint.kind,
        "source": checkpoint.source,
        "fitness": checkpoint.fitness,
        "kept_by": checkpoint.kept_by,
    }


def _is_own(found: os.stat_result) -> bool:
    """Whether it is a file or a folder, and not a link to one."""
    return stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)


def _fingerprint_from(found: os.stat_result) -> Fingerprint:
    return Fingerprint(size_bytes=found.st_size, modified_ns=found.st_mtime_ns, inode=found.st_ino)


def _write_json(path: Path, value: object) -> None:
    """Replace a JSON file atomically."""
    draft = path.with_name(path.name + ".tmp")
    with draft.open("w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(value, file, ensure_ascii=True)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _read_json(path: Path) -> dict[str, object]:
    try:
        with os.fdopen(os.open(path, NO_WAIT), "rb") as file:
            return read_json_object(file.read(NOTE_LIMIT_BYTES)) or {}
    except OSError:
        return {}


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
