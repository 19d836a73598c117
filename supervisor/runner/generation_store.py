"""The generation store of one job: copies of its checkpoints, each in a folder of its own.

STATE/jobs/JOB/generations/SERIAL/ holds the file under its own name, `generation.json` with what is known of it and
`profile.json`. It lies with the daemon's state and not beside the checkpoint: there the daemon may write whatever
sandbox it runs in, and a training that clears its run folder clears none of it. A folder appears whole, by one rename.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

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
from supervisor.runner.clone_file import bring
from supervisor.runner.folder_checkpoints import files_in, fingerprint_of

FACTS, PROFILE, SERIAL = "generation.json", "profile.json", "serial"
DRAFT, GOING = ".taking-", ".going-"
FOLDER_MODE = 0o750
"""The training looks into it through the group that it shares with the daemon; nobody but the daemon writes."""
BESIDE = "trainer_state.json"
"""Where this lies beside a checkpoint, the whole folder is one: so the Trainer of Hugging Face saves."""
LINKED_AFTER = 2
"""A path that was replaced by a new file so many times in a row is never rewritten in place."""
NOTE_LIMIT_BYTES = 1 << 26
COMPARED_BYTES = 1 << 20
REASON_CHARS_MAX = 1000


class ChangedError(RuntimeError):
    """The file was written on while it was taken: what is to come of it will be told again."""


class NotTheirsError(RuntimeError):
    """The file belongs to somebody else than the training: it must not be handed on to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A file that was saved and is to be kept."""

    seen: Checkpoint
    """As it was when somebody spoke of it; a later content is not this one."""
    attempt: int
    owner: int | None
    """User of the training, None where nobody knows: then nothing is taken."""


class GenerationStore:
    """Generations of one job; one thread takes, any may look, judge, mark and drop."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        """`reserve_bytes` stay free on the disk: what trainings and the record need comes before a copy."""
        self.folder = folder
        self._reserve_bytes = reserve_bytes
        self._noting = threading.Lock()

    def take(self, wanted: Wanted) -> Checkpoint:
        """Keep a file as a new generation and return it; one thread at a time.

        Raises ChangedError, NotTheirsError, NoRoomError (of bring), or OSError where it cannot be read or kept.
        """
        self.folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        serial = self._next_serial()
        draft = self.folder / f"{DRAFT}{serial:06d}"
        draft.mkdir(mode=FOLDER_MODE)
        try:
            taken = self._fill(draft, wanted)
            target = self.folder / f"{serial:06d}"
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync(self.folder)
        return replace(taken, path=str(target / Path(taken.path).name))

    def _fill(self, draft: Path, wanted: Wanted) -> Checkpoint:
        source, seen = Path(wanted.seen.path), wanted.seen
        linked = seen.kind == "snapshot" or self._replaced(seen)
        target = draft / source.name
        if source.is_dir():
            how = self._bring_folder(source, target, wanted)
        else:
            how = self._bring(source, target, wanted, seen=seen.fingerprint, linked=linked)
            for path in _beside(source):
                self._bring(path, draft / path.name, wanted, linked=linked)
        taken = replace(seen, path=str(target), fingerprint=fingerprint_of(target), source=seen.path)
        facts = {**_facts(taken), "how": how, "attempt": wanted.attempt, "source_inode": seen.fingerprint.inode}
        _write(draft / FACTS, facts)
        _sync(draft)
        return taken

    def _bring_folder(self, source: Path, target: Path, wanted: Wanted) -> str:
        """Bring every file of a folder, which is one save, as long as nothing in it changes."""
        ways: list[str] = []
        for path in files_in(source):
            place = target / path.relative_to(source)
            place.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            ways.append(self._bring(path, place, wanted, linked=False))
        if not ways:
            raise ChangedError(f"{source} contains no file")
        if fingerprint_of(source) != wanted.seen.fingerprint:
            raise ChangedError(f"{source} changed after it was saved")
        return min(ways)

    def _bring(
        self, source: Path, target: Path, wanted: Wanted, *, linked: bool, seen: Fingerprint | None = None
    ) -> str:
        """Bring one file; with `seen`, only while it is that content."""
        fd = _open_source(source)
        try:
            before = os.fstat(fd)
            whole = seen is None or _fingerprint(before) == seen
            if not stat.S_ISREG(before.st_mode) or not whole:
                raise ChangedError(f"{source} changed after it was saved")
            if before.st_uid != wanted.owner:
                raise NotTheirsError(f"{source} does not belong to the user of the training")
            how = bring(fd, target, reserve_bytes=self._reserve_bytes, linked=linked)
            if _fingerprint(os.fstat(fd)) != _fingerprint(before):
                raise ChangedError(f"{source} was modified while it was captured")
            if how == "link" and target.lstat().st_ino != before.st_ino:
                raise ChangedError(f"{source} was replaced while it was captured")
        finally:
            os.close(fd)
        return how

    def _replaced(self, seen: Checkpoint) -> bool:
        """Whether the writer of this path makes a new file each time: then nobody will write into a link of this."""
        inodes = [facts.get("source_inode") for facts in self._notes() if facts.get("source") == seen.path]
        last = [*inodes[-LINKED_AFTER:], seen.fingerprint.inode]
        return len(last) > LINKED_AFTER and len(set(last)) == len(last)

    def has_taken(self, seen: Fingerprint) -> bool:
        """Whether this content was taken, under whatever name: a link beside the file is the same save."""
        content = [seen.inode, seen.size_bytes, seen.modified_ns]
        return any(
            [facts.get("source_inode"), facts.get("size_bytes"), facts.get("modified_ns")] == content
            for facts in self._notes()
        )

    def all(self) -> tuple[Checkpoint, ...]:
        """Return every generation, the first taken first; what its writer has written into is none any more."""
        return tuple(checkpoint for checkpoint in map(self._read, self._folders()) if checkpoint is not None)

    def _read(self, folder: Path) -> Checkpoint | None:
        facts = _note(folder / FACTS)
        name, verdict = as_path(facts.get("name"), FILE_NAME_CHARS_MAX), facts.get("verdict")
        if name is None or "/" in name:
            return None
        try:
            if not _is_own((folder / name).lstat()):
                return None  # a link holds nothing
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
        """Whether a checkpoint is one of these."""
        return Path(checkpoint.path).parent.parent == self.folder

    def judge(self, checkpoint: Checkpoint, profile: object = None) -> None:
        """Keep what a generation's proof, or its resume, came to; one that was dropped meanwhile stays dropped."""
        found = _facts(checkpoint)
        names = ("epoch", "step", "verdict", "reason", "fitness")
        self._note(Path(checkpoint.path).parent, {name: found[name] for name in names}, profile)

    def mark(self, checkpoint: Checkpoint, kept_by: str) -> None:
        """Keep which limits keep a generation."""
        self._note(Path(checkpoint.path).parent, {"kept_by": kept_by})

    def _note(self, folder: Path, changes: dict[str, object], profile: object = None) -> None:
        with self._noting, contextlib.suppress(FileNotFoundError):
            known = _note(folder / FACTS)
            if known and profile is not None:
                _write(folder / PROFILE, profile)
            if known:
                _write(folder / FACTS, {**known, **changes})

    def profile(self, checkpoint: Checkpoint) -> object:
        """Return the profile that was kept of a generation; {} where there is none."""
        return _note(Path(checkpoint.path).parent / PROFILE)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Let a generation go; a drop that was cut short is finished by `tidy`."""
        folder = Path(checkpoint.path).parent
        going = folder.with_name(GOING + folder.name)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(going)
        shutil.rmtree(going, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what a daemon left that was killed while it took or dropped."""
        for path in self.folder.glob(".*"):
            if path.name.startswith((DRAFT, GOING)):
                shutil.rmtree(path, ignore_errors=True)

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.name.isdigit())
        except OSError:
            return []

    def _notes(self) -> Iterator[dict[str, object]]:
        yield from (_note(path / FACTS) for path in self._folders())

    def _next_serial(self) -> int:
        """Return a number that no generation had before, not even one that is gone: a path names one content."""
        last = as_int(_note(self.folder / SERIAL).get("last")) or 0
        highest = max((int(path.name) for path in self._folders()), default=0)
        serial = max(last, highest) + 1
        _write(self.folder / SERIAL, {"last": serial})
        shutil.rmtree(self.folder / f"{DRAFT}{serial:06d}", ignore_errors=True)
        return serial


def same_content(kept: Path, source: Path) -> bool:
    """Whether a kept file and one of the training's hold the same bytes; raise OSError where one cannot be read."""
    first = os.open(kept, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        second = _open_source(source)
        try:
            return _equal(first, second)
        finally:
            os.close(second)
    finally:
        os.close(first)


def _equal(first: int, second: int) -> bool:
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
    """Return a descriptor of what a path leads to now: some writers replace a link at each save (Lightning's last)."""
    try:
        return os.open(os.path.realpath(source), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ChangedError(f"{source} was replaced while it was captured") from error
        raise


def _beside(source: Path) -> list[Path]:
    if not (source.parent / BESIDE).is_file():
        return []
    return sorted(path for path in source.parent.iterdir() if path.is_file() and path != source)


def _facts(checkpoint: Checkpoint) -> dict[str, object]:
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


def _fingerprint(found: os.stat_result) -> Fingerprint:
    return Fingerprint(size_bytes=found.st_size, modified_ns=found.st_mtime_ns, inode=found.st_ino)


def _write(path: Path, value: object) -> None:
    """Write a note that is either there in full or as it was."""
    draft = path.with_name(path.name + ".tmp")
    with draft.open("w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(value, file, ensure_ascii=True)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _note(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return read_json_object(file.read(NOTE_LIMIT_BYTES)) or {}
    except OSError:
        return {}


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
