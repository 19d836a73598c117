"""The shelf of one job: kept copies of its checkpoints, each in a folder of its own; it proves none and chooses none.

STATE/jobs/JOB/generations/SERIAL/ holds the file under its own name, `generation.json` with what is known of it and
`profile.json`. It lies with the daemon's state and not beside the checkpoint: there the daemon may write whatever
sandbox it runs in, and a training that clears its run folder clears none of it. A folder appears whole, by one rename.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.core.checkpoints import Checkpoint, Fingerprint, Verdict
from supervisor.runner.bring import bring

FACTS, PROFILE, SERIAL = "generation.json", "profile.json", "serial"
DRAFT, GOING = ".taking-", ".going-"
FOLDER_MODE = 0o750
"""The training looks into it through the group that it shares with the daemon; nobody but the daemon writes."""
BESIDE = "trainer_state.json"
"""Where this lies beside a checkpoint, the whole folder is one: so the Trainer of Hugging Face saves."""
LINKED_AFTER = 2
"""A path that was replaced by a new file so many times in a row is never rewritten in place."""
NOTE_LIMIT_BYTES = 1 << 26


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


class Shelf:
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
        how = self._bring(source, target, wanted, linked=linked)
        for one in _beside(source):
            self._bring(one, draft / one.name, wanted, linked=linked)
        taken = replace(seen, path=str(target), fingerprint=_fingerprint(target.stat()), source=seen.path)
        facts = {**_facts(taken), "how": how, "attempt": wanted.attempt, "source_inode": seen.fingerprint.inode}
        _write(draft / FACTS, facts)
        _sync(draft)
        return taken

    def _bring(self, source: Path, target: Path, wanted: Wanted, *, linked: bool) -> str:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = os.fstat(fd)
            whole = target.name != Path(wanted.seen.path).name or _fingerprint(before) == wanted.seen.fingerprint
            if not stat.S_ISREG(before.st_mode) or not whole:
                raise ChangedError(f"{source} is not what was saved any more")
            if before.st_uid != wanted.owner:
                raise NotTheirsError(f"{source} does not belong to the user of the training")
            how = bring(fd, source, target, reserve_bytes=self._reserve_bytes, linked=linked)
            if _fingerprint(os.fstat(fd)) != _fingerprint(before):
                raise ChangedError(f"{source} was written while it was taken")
            if how == "link" and target.stat().st_ino != before.st_ino:
                raise ChangedError(f"{source} was replaced while it was taken")
        finally:
            os.close(fd)
        return how

    def _replaced(self, seen: Checkpoint) -> bool:
        """Whether the writer of this path makes a new file each time: then nobody will write into a link of this."""
        inodes = [facts.get("source_inode") for facts in self._notes() if facts.get("source") == seen.path]
        last = [*inodes[-LINKED_AFTER:], seen.fingerprint.inode]
        return len(last) > LINKED_AFTER and len(set(last)) == len(last)

    def all(self) -> tuple[Checkpoint, ...]:
        """Return every generation, the first taken first; what its writer has written into is none any more."""
        return tuple(one for one in map(self._read, self._folders()) if one is not None)

    def _read(self, folder: Path) -> Checkpoint | None:
        facts = _note(folder / FACTS)
        name, verdict = facts.get("name"), facts.get("verdict")
        if not isinstance(name, str) or "/" in name:
            return None
        try:
            fingerprint = _fingerprint((folder / name).stat())
        except OSError:
            return None
        if [fingerprint.size_bytes, fingerprint.modified_ns] != [facts.get("size_bytes"), facts.get("modified_ns")]:
            return None
        fitness = facts.get("fitness")
        return Checkpoint(
            path=str(folder / name),
            fingerprint=fingerprint,
            epoch=_whole(facts.get("epoch")),
            step=_whole(facts.get("step")),
            verdict=Verdict(verdict) if verdict in ("proven", "rejected") else None,
            reason=_text(facts.get("reason")),
            kind=_text(facts.get("kind")) or "checkpoint",
            source=_text(facts.get("source")) or "",
            fitness=fitness if isinstance(fitness, float) else None,
            kept_by=_text(facts.get("kept_by")),
        )

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is one of these."""
        return Path(checkpoint.path).parent.parent == self.folder

    def judge(self, one: Checkpoint, profile: object = None) -> None:
        """Keep what a generation's proof, or its resume, came to; one that was dropped meanwhile stays dropped."""
        found = _facts(one)
        names = ("epoch", "step", "verdict", "reason", "fitness")
        self._note(Path(one.path).parent, {name: found[name] for name in names}, profile)

    def mark(self, one: Checkpoint, kept_by: str) -> None:
        """Keep which limits keep a generation."""
        self._note(Path(one.path).parent, {"kept_by": kept_by})

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
        for one in self.folder.glob(".*"):
            if one.name.startswith((DRAFT, GOING)):
                shutil.rmtree(one, ignore_errors=True)

    def _folders(self) -> list[Path]:
        try:
            return sorted(one for one in self.folder.iterdir() if one.name.isdigit())
        except OSError:
            return []

    def _notes(self) -> Iterator[dict[str, object]]:
        yield from (_note(one / FACTS) for one in self._folders())

    def _next_serial(self) -> int:
        """Return a number that no generation had before, not even one that is gone: a path names one content."""
        last = _whole(_note(self.folder / SERIAL).get("last")) or 0
        highest = max((int(one.name) for one in self._folders()), default=0)
        serial = max(last, highest) + 1
        _write(self.folder / SERIAL, {"last": serial})
        shutil.rmtree(self.folder / f"{DRAFT}{serial:06d}", ignore_errors=True)
        return serial


def _beside(source: Path) -> list[Path]:
    if not (source.parent / BESIDE).is_file():
        return []
    return sorted(one for one in source.parent.iterdir() if one.is_file() and one != source)


def _facts(one: Checkpoint) -> dict[str, object]:
    return {
        "name": Path(one.path).name,
        "size_bytes": one.fingerprint.size_bytes,
        "modified_ns": one.fingerprint.modified_ns,
        "epoch": one.epoch,
        "step": one.step,
        "verdict": one.verdict.value if one.verdict else None,
        "reason": one.reason,
        "kind": one.kind,
        "source": one.source,
        "fitness": one.fitness,
        "kept_by": one.kept_by,
    }


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
            found = json.loads(file.read(NOTE_LIMIT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
