"""Takes every saved checkpoint as a generation as soon as it is whole, and lets go of what no limit keeps.

Taking comes before proving and waits for no proof: the next save may be written over this one. It chooses no checkpoint
to resume from, and while a job looks for one it lets nothing go.
"""

from __future__ import annotations

import filecmp
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from supervisor.config.derive import policy_of
from supervisor.config.settings import JobSettings
from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.checkpoints import Checkpoint, Fingerprint, newest_first
from supervisor.core.generations import kept
from supervisor.core.job import ALIVE, Attempt, Job
from supervisor.core.moments import Moment
from supervisor.daemon.attempt_watch import Clock
from supervisor.daemon.checkpoint_watch import CheckpointWatch, Saved
from supervisor.daemon.proofs import Proofs
from supervisor.daemon.resume import fingerprint
from supervisor.runner.bring import NoRoomError
from supervisor.runner.generations import ChangedError, NotTheirsError, Shelf, Wanted
from supervisor.runner.proving import Proof

log = logging.getLogger(__name__)

SETTLED_AFTER_S = 1.0
"""A file of which nobody tells when it is whole has not been written for so long."""
SAME_SAVE_S = 60.0
"""Files of one save are written so close together; a training begun anew may write the same bytes again."""
RESERVE_BYTES = 1_000_000_000
"""A copy leaves so much of the disk free: half of what `disk_low` tells of by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the keeper needs from the rest of the daemon; each may be asked in any thread."""

    clock: Clock
    put: Callable[[ev.Event], None]
    state: Path
    settings: Callable[[str], JobSettings]
    job: Callable[[str], Job | None]
    examine: Callable[[Path], Proof]
    reserve_bytes: int = RESERVE_BYTES


class Keeper(threading.Thread):
    """One thread that takes; `proofs`, `shelf` and `sweep` are for other threads too."""

    def __init__(self, world: World, watch: CheckpointWatch) -> None:
        super().__init__(name="keeper", daemon=True)
        self._world = world
        self._watch = watch
        self._shelves: dict[str, Shelf] = {}
        self._waiting: dict[tuple[str, Path, Fingerprint], Saved] = {}
        self._looked: dict[tuple[str, Path], Fingerprint] = {}
        self._wake = threading.Condition()
        self._sweeping = threading.Lock()
        self._ended = False
        self.proofs = Proofs(world.examine, world.job, self.shelf)

    def shelf(self, job: str) -> Shelf:
        """Return the generations of a job."""
        with self._wake:
            if job in self._shelves:
                return self._shelves[job]
            folder = self._world.state / "jobs" / job / fo.GENERATIONS
            self._shelves[job] = shelf = Shelf(folder, self._world.reserve_bytes)
        self._take_up(job, shelf)
        return shelf

    def _take_up(self, job: str, shelf: Shelf) -> None:
        """Finish what an earlier daemon began: its drafts go, and what it took is proven."""
        shelf.tidy()
        known = self._world.job(job)
        for one in shelf.all():
            if one.verdict is None and known is not None:
                prove = partial(self.proofs.prove, job)
                self._watch.saved(Saved(job=job, attempt=known.number, path=Path(one.path), prove=prove))

    def saved(self, saved: Saved, seen: Fingerprint) -> None:
        """Take a file, with the content that it had when somebody said that it is whole."""
        with self._wake:
            self._waiting[(saved.job, saved.path, seen)] = saved
            self._wake.notify()

    def looked(self, saved: Saved, now: Moment) -> None:
        """Take a file that was found by its name, once it is new and no longer being written."""
        seen = fingerprint(saved.path)
        if seen is None or now.unix_s - seen.modified_ns / 1e9 < SETTLED_AFTER_S:
            return
        key = (saved.job, saved.path)
        with self._wake:
            if self._looked.get(key) == seen:
                return
            self._looked[key] = seen
        self.saved(saved, seen)

    def end(self) -> None:
        """End after the file under way."""
        with self._wake:
            self._ended = True
            self._wake.notify()

    def run(self) -> None:
        """Take, and wait for the next."""
        while (entry := self._next()) is not None:
            try:
                self._take(*entry)
            except Exception:
                log.exception("generation.failed", extra={"fields": {"job": entry[0].job}})

    def _next(self) -> tuple[Saved, Fingerprint] | None:
        with self._wake:
            while not self._waiting and not self._ended:
                self._wake.wait()
            if self._ended:
                return None
            key = next(iter(self._waiting))
            return self._waiting.pop(key), key[2]

    # --- taking ---------------------------------------------------------------------------------------------------

    def _take(self, saved: Saved, seen: Fingerprint) -> None:
        one = Checkpoint(path=str(saved.path), fingerprint=seen, epoch=saved.epoch, step=saved.step, kind=saved.kind)
        if not self._world.settings(saved.job).checkpoints.keep:
            self._as_it_lies(saved, one)
            return
        shelf = self.shelf(saved.job)
        if any(generation.is_of(one) or _same(generation, one) for generation in shelf.all()):
            return
        try:
            generation = self._taken(shelf, saved, one)
        except ChangedError as error:
            log.info("generation.overtaken", extra={"fields": {"job": saved.job, "why": str(error)}})
            return
        except (NoRoomError, NotTheirsError, OSError) as error:
            self._not_kept(saved, one, str(error))
            return
        self._tell(saved, generation)
        self._watch.saved(replace(saved, path=Path(generation.path)))
        self.sweep(saved.job)

    def _taken(self, shelf: Shelf, saved: Saved, one: Checkpoint) -> Checkpoint:
        wanted = Wanted(seen=one, attempt=saved.attempt, owner=self._owner(saved))
        try:
            return shelf.take(wanted)
        except NoRoomError as error:
            self.sweep(saved.job, room=False)
            generation = shelf.take(wanted)
            self._miss(saved, f"{error}: older ones were let go for it")
            return generation

    def _owner(self, saved: Saved) -> int | None:
        """Return the user of a training: the one who wrote its shim's word."""
        folder = self._world.state / "jobs" / saved.job / str(saved.attempt)
        try:
            return (folder / fo.SHIM).stat().st_uid
        except OSError:
            return None

    def _not_kept(self, saved: Saved, one: Checkpoint, why: str) -> None:
        log.warning("generation.not_kept", extra={"fields": {"job": saved.job, "path": one.path, "why": why}})
        self._miss(saved, why)
        self._as_it_lies(saved, one)

    def _as_it_lies(self, saved: Saved, one: Checkpoint) -> None:
        """Have the training's own file proven: it is a checkpoint as long as nobody writes over it."""
        self._tell(saved, one)
        self._watch.saved(saved)

    def _miss(self, saved: Saved, why: str) -> None:
        now = self._world.clock.now()
        self._world.put(
            ev.CheckpointNotKept(at=now, job=saved.job, attempt=saved.attempt, path=str(saved.path), reason=why)
        )

    def _tell(self, saved: Saved, one: Checkpoint) -> None:
        now = self._world.clock.now()
        self._world.put(ev.CheckpointSeen(at=now, job=saved.job, attempt=saved.attempt, checkpoint=one))

    # --- letting go -----------------------------------------------------------------------------------------------

    def sweep(self, job: str, *, room: bool = True) -> None:
        """Let go of the generations that no limit keeps, and note of the others which one does."""
        known = self._world.job(job)
        if known is None or known.phase not in ALIVE or known.attempt is None:
            return  # somebody may be choosing among them just now
        with self._sweeping:
            self._sweep(job, known, known.attempt, room=room)

    def _sweep(self, job: str, known: Job, attempt: Attempt, *, room: bool) -> None:
        shelf = self.shelf(job)
        everything = shelf.all()
        words = dict(kept(everything, policy_of(self._world.settings(job)), room=room))
        used = attempt.resume_from
        for one in newest_first(everything):
            if used is not None and one.path == used.path:
                words.setdefault(one.key, "resumed from")
            word = words.get(one.key, "")
            if one.kept_by == word:
                continue
            marked = replace(one, kept_by=word)
            if word:
                shelf.mark(one, word)
            else:
                shelf.drop(one)
            self._world.put(
                ev.CheckpointSeen(at=self._world.clock.now(), job=job, attempt=known.number, checkpoint=marked)
            )


def _same(generation: Checkpoint, one: Checkpoint) -> bool:
    """Whether a file is the same save under another name, as last.pt and best.pt often are."""
    alike = one.step is not None and generation.step == one.step
    together = abs(generation.saved_unix_s - one.saved_unix_s) < SAME_SAVE_S
    if not alike or not together or generation.fingerprint.size_bytes != one.fingerprint.size_bytes:
        return False
    try:
        return filecmp.cmp(generation.path, one.path, shallow=False)
    except OSError:
        return False
