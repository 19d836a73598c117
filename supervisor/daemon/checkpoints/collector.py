"""Captures every saved checkpoint as a generation as soon as it is complete, and prunes what no limit keeps.

Capturing comes before proving and waits for no proof: the next save may overwrite this one. While a job searches for a
resume point nothing is pruned.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.files_apart import apart
from supervisor.config.derive import policy_of
from supervisor.config.settings import JobSettings
from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import REFUSED, Checkpoint, Fingerprint, newest_first
from supervisor.core.checkpoints.retention import kept
from supervisor.core.job import ALIVE, Attempt, Job
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoints.candidates import find_refused, fingerprint, was_renamed
from supervisor.daemon.checkpoints.proof_queue import ProofQueue, Saved
from supervisor.daemon.checkpoints.verdicts import Proofs
from supervisor.daemon.clock import Clock
from supervisor.runner.clone_file import NoRoomError
from supervisor.runner.generation_store import ChangedError, GenerationStore, NotTheirsError, Wanted, same_content
from supervisor.runner.proving import Proof

log = logging.getLogger(__name__)

SETTLED_AFTER_S = 1.0
"""A file whose save was not reported complete counts as complete after this long without a write."""
UNSETTLED_LOOKS = 12
"""A minute of looks."""
NEVER_SETTLED = (
    f"it was being written at each of {UNSETTLED_LOOKS} looks, so that a copy may be half of one save and half of "
    "another; write it under another name and rename it, or save less often"
)
SAME_SAVE_S = 60.0
"""Files of one save are written so close together; a training that starts over may write the same bytes."""
RESERVE_BYTES = 1_000_000_000
"""A copy leaves so much of the disk free: half of the default limit of `disk_low`."""

SEEN_KEPT = 32_768
"""Files found by their names that are remembered; one that is found again is captured once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorDeps:
    """What the collector needs from the rest of the daemon; every member is safe to call from any thread."""

    clock: Clock
    put: Callable[[ev.Event], None]
    state: Path
    settings: Callable[[str], JobSettings]
    job: Callable[[str], Job | None]
    examine: Callable[[Path], Proof]
    step_of: Callable[[str, Fingerprint], int | None] = lambda _job, _saved: None
    """Returns the step of the training after which a file of a job was saved."""
    is_complete: Callable[[str, Fingerprint], bool] = lambda _job, _saved: False
    """Whether the training reported that a file is complete in its current state."""
    reserve_bytes: int = RESERVE_BYTES


class GenerationCollector(threading.Thread):
    """Captures in a thread of its own; `proofs`, `store_of` and `sweep` are safe to call from any thread."""

    def __init__(
        self,
        world: CollectorDeps,
        watch: ProofQueue,
        at: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        """`at` is entered with a description of the current work, for as long as it takes."""
        super().__init__(name="collector", daemon=True)
        self._at = at
        self._world = world
        self._watch = watch
        self._stores: dict[str, GenerationStore] = {}
        self._waiting: dict[tuple[str, Path, Fingerprint], Saved] = {}
        self._seen_before: dict[tuple[str, Path], Fingerprint] = {}
        self._unsettled: dict[tuple[str, Path], int] = {}
        """How often in a row a file was found while it was being written."""
        self._ahead: dict[tuple[str, Path], tuple[Fingerprint, Moment]] = {}
        """Files whose time is still to come, and since when each is as it is."""
        self._refused: set[tuple[str, Path]] = set()
        """Folders that were reported; only the thread that looks for files by their names has it."""
        self._wake = threading.Condition()
        self._sweeping = threading.Lock()
        self._taking_up = threading.Lock()
        self._ended = False
        self._busy = False
        self.proofs = Proofs(world.examine, world.job, self.store_of)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is being captured; in any thread."""
        with self._wake:
            return not self._busy and not self._waiting

    def store_of(self, job: str) -> GenerationStore:
        """Return the generations of a job."""
        if (known := self._known_store(job)) is not None:
            return known
        # Handed out only after the cleanup, which would remove what another thread had begun to capture.
        with self._taking_up:
            if (known := self._known_store(job)) is not None:
                return known
            store = GenerationStore(self._world.state / "jobs" / job / fo.GENERATIONS, self._world.reserve_bytes)
            self._take_up(job, store)
            with self._wake:
                self._stores[job] = store
            return store

    def _known_store(self, job: str) -> GenerationStore | None:
        with self._wake:
            return self._stores.get(job)

    def _take_up(self, job: str, store: GenerationStore) -> None:
        """Finish the work of an earlier daemon: drafts are removed, unproven generations are proven."""
        store.tidy()
        known = self._world.job(job)
        for checkpoint in store.all():
            if checkpoint.verdict is None and known is not None:
                prove = partial(self.proofs.prove, job)
                self._watch.saved(Saved(job=job, attempt=known.number, path=Path(checkpoint.path), prove=prove))

    def saved(self, saved: Saved, seen: Fingerprint) -> None:
        """Capture a file with the content that it had when its save was reported complete."""
        with self._wake:
            self._waiting[(saved.job, saved.path, seen)] = saved
            self._wake.notify()

    def offer_found(self, saved: Saved, now: Moment) -> None:
        """Capture a file that was found by its name, once it is new and no longer being written."""
        seen, key = fingerprint(saved.path), (saved.job, saved.path)
        if seen is None:
            self._report_refused(saved)
            return
        settled = now.unix_s - seen.modified_ns / 1e9 >= SETTLED_AFTER_S or self._stays_ahead(key, seen, now)
        if not settled and not self._world.is_complete(saved.job, seen) and not was_renamed(saved.path, seen):
            self._note_unsettled(saved)
            return
        with self._wake:
            self._unsettled.pop(key, None)
            if self._seen_before.get(key) == seen:
                return
            self._seen_before[key] = seen
            if len(self._seen_before) > SEEN_KEPT:
                del self._seen_before[next(iter(self._seen_before))]
        self.saved(saved, seen)

    def _stays_ahead(self, key: tuple[str, Path], seen: Fingerprint, now: Moment) -> bool:
        """Whether a file whose time is still to come, as of a file server whose clock is ahead, stays as it is."""
        if seen.modified_ns / 1e9 <= now.unix_s:
            return False
        with self._wake:
            first = self._ahead.get(key)
            if first is not None and first[0] == seen:
                return now.seconds_since(first[1]) >= SETTLED_AFTER_S
            self._ahead[key] = (seen, now)
            if len(self._ahead) > SEEN_KEPT:
                del self._ahead[next(iter(self._ahead))]
            return False

    def _report_refused(self, saved: Saved) -> None:
        """Report once a folder that is there, and of which no generation can be captured."""
        key = (saved.job, saved.path)
        if key in self._refused or len(self._refused) >= SEEN_KEPT:
            return
        for refused in find_refused(saved.path):
            self._refused.add(key)
            self._report_not_kept(saved, refused.reason or REFUSED)

    def _note_unsettled(self, saved: Saved) -> None:
        """Report a file that is being written whenever it is looked at: no copy of it could be trusted."""
        key = (saved.job, saved.path)
        with self._wake:
            looks = self._unsettled[key] = self._unsettled.pop(key, 0) + 1
            if len(self._unsettled) > SEEN_KEPT:
                del self._unsettled[next(iter(self._unsettled))]
        if looks == UNSETTLED_LOOKS:
            self._report_not_kept(saved, NEVER_SETTLED)

    def end(self) -> None:
        """Stop after the current file."""
        with self._wake:
            self._ended = True
            self._wake.notify()

    def run(self) -> None:
        """Capture queued files until stopped."""
        while (entry := self._wait_for_next()) is not None:
            try:
                with self._at(f"taking {entry[0].path}"):
                    self._capture_once(*entry)
            except Exception:
                log.exception("generation.failed", extra={"fields": {"job": entry[0].job}})

    def _wait_for_next(self) -> tuple[Saved, Fingerprint] | None:
        with self._wake:
            self._busy = False
            while not self._waiting and not self._ended:
                self._wake.wait()
            if self._ended:
                return None
            self._busy = True
            key = next(iter(self._waiting))
            return self._waiting.pop(key), key[2]

    # --- taking ---------------------------------------------------------------------------------------------------

    def _capture_once(self, saved: Saved, seen: Fingerprint) -> None:
        if saved.step is None:
            saved = replace(saved, step=self._world.step_of(saved.job, seen))
        checkpoint = Checkpoint(
            path=str(saved.path), fingerprint=seen, epoch=saved.epoch, step=saved.step, kind=saved.kind
        )
        if not self._world.settings(saved.job).checkpoints.keep:
            self._prove_original(saved, checkpoint)
            return
        store = self.store_of(saved.job)
        if store.has_taken(seen) or any(
            generation.is_of(checkpoint) or _is_same_save(generation, checkpoint) for generation in store.all()
        ):
            return
        try:
            generation = self._capture_with_room(store, saved, checkpoint)
        except ChangedError as error:
            log.info("generation.source_changed", extra={"fields": {"job": saved.job, "why": str(error)}})
            return
        except (NoRoomError, NotTheirsError, OSError) as error:
            self._fall_back_to_original(saved, checkpoint, str(error))
            return
        self._report_seen(saved, generation)
        self._watch.saved(replace(saved, path=Path(generation.path)))
        self.sweep(saved.job)

    def _capture_with_room(self, store: GenerationStore, saved: Saved, checkpoint: Checkpoint) -> Checkpoint:
        wanted = Wanted(seen=checkpoint, attempt=saved.attempt, owner=self._find_owner(saved))
        try:
            return store.take(wanted)
        except NoRoomError as error:
            self.sweep(saved.job, room=False)
            generation = store.take(wanted)
            self._report_not_kept(saved, f"{error}: older generations were pruned to make room")
            return generation

    def _find_owner(self, saved: Saved) -> int | None:
        """Return the user of a training: the owner of its shim's file."""
        folder = self._world.state / "jobs" / saved.job / str(saved.attempt)
        try:
            found = untrusted_files.file_status(folder, fo.SHIM)
        except OSError:
            return None
        return None if found is None else found.st_uid

    def _fall_back_to_original(self, saved: Saved, checkpoint: Checkpoint, why: str) -> None:
        log.warning("generation.not_kept", extra={"fields": {"job": saved.job, "path": checkpoint.path, "why": why}})
        self._report_not_kept(saved, why)
        self._prove_original(saved, checkpoint)

    def _prove_original(self, saved: Saved, checkpoint: Checkpoint) -> None:
        """Have the training's own file proven: it can be resumed from until it is overwritten."""
        self._report_seen(saved, checkpoint)
        self._watch.saved(saved)

    def _report_not_kept(self, saved: Saved, why: str) -> None:
        now = self._world.clock.now()
        self._world.put(
            ev.CheckpointNotKept(at=now, job=saved.job, attempt=saved.attempt, path=str(saved.path), reason=why)
        )

    def _report_seen(self, saved: Saved, checkpoint: Checkpoint) -> None:
        now = self._world.clock.now()
        self._world.put(ev.CheckpointSeen(at=now, job=saved.job, attempt=saved.attempt, checkpoint=checkpoint))

    # --- letting go -----------------------------------------------------------------------------------------------

    def sweep(self, job: str, *, room: bool = True) -> None:
        """Prune the generations that no limit keeps, and record which limit keeps each of the others."""
        known = self._world.job(job)
        if known is None or known.phase not in ALIVE or known.attempt is None:
            return  # a search may be choosing among them
        if room and known.stop is not None and known.stop.flag is not None:
            return  # what it saves until it has ended may be spoilt, and would push out what it saved before the fault
        with self._sweeping:
            self._prune_generations(job, known, known.attempt, room=room)

    def _prune_generations(self, job: str, known: Job, attempt: Attempt, *, room: bool) -> None:
        store = self.store_of(job)
        everything = store.all()
        used, policy = attempt.resume_from, policy_of(self._world.settings(job))
        words = kept(everything, policy, room=room, resumed_from=used)
        for checkpoint in newest_first(everything):
            if used is not None and (checkpoint.path == used.path or checkpoint.is_of(used)):
                words.setdefault(checkpoint.key, "resumed from")
            if room and checkpoint.verdict is None and self._watch.is_proving(checkpoint.path):
                # Where a proof takes longer than it is to the next save, no generation would ever be proven.
                words.setdefault(checkpoint.key, "not yet proven")
            word = words.get(checkpoint.key, "")
            if checkpoint.kept_by == word:
                continue
            marked = replace(checkpoint, kept_by=word)
            if word:
                store.mark(checkpoint, word)
            else:
                store.drop(checkpoint)
            self._world.put(
                ev.CheckpointSeen(at=self._world.clock.now(), job=job, attempt=known.number, checkpoint=marked)
            )


def _is_same_save(generation: Checkpoint, checkpoint: Checkpoint) -> bool:
    """Whether a file is the same save under another name, as last.pt and best.pt often are."""
    alike = checkpoint.step is not None and generation.step == checkpoint.step
    together = abs(generation.saved_unix_s - checkpoint.saved_unix_s) < SAME_SAVE_S
    if not alike or not together or generation.fingerprint.size_bytes != checkpoint.fingerprint.size_bytes:
        return False
    try:
        return apart(same_content, Path(generation.path), Path(checkpoint.path))
    except OSError:
        return False
