"""Knows what a job has saved: has it kept and proven, and looks for where to resume; it chooses nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor.config.settings import JobSettings
from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.checkpoints import Checkpoint, Fingerprint, Verdict, exact_before, of_this_training
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.rules.resumed_loss import ResumedLoss
from supervisor.daemon.attempt_watch import Clock
from supervisor.daemon.begin import begin
from supervisor.daemon.checkpoint_watch import Saved
from supervisor.daemon.keeper import Keeper
from supervisor.daemon.old_curve import old_curve
from supervisor.daemon.resume import Search, barred, find, fingerprint
from supervisor.sources.agent_log import AgentLogReader

log = logging.getLogger(__name__)


class Seeker:
    """Called in the deciding thread; it searches in threads of its own."""

    def __init__(  # noqa: PLR0913 - what is known of checkpoints lies in several rooms
        self,
        *,
        clock: Clock,
        put: Callable[[ev.Event], None],
        state: Path,
        settings: Callable[[str], JobSettings],
        known: Callable[[str], tuple[Checkpoint, ...] | None],
        keeper: Keeper,
    ) -> None:
        self._clock = clock
        self._put = put
        self._state = state
        self._settings = settings
        self._known = known
        self._keeper = keeper

    def working_directory(self, job: str, settings: JobSettings) -> str:
        """Return where relative checkpoint patterns start: without a `cwd`, in every attempt's folder."""
        return settings.cwd or str(self._state / "jobs" / job / "*")

    def snapshots(self, job: str) -> Path:
        """Return where the agent leaves a job's snapshots: one may lie there of which it could not tell any more."""
        return self._state / "jobs" / job / fo.SNAPSHOTS

    def search(self, job: Job, history: History | None) -> bool:
        """Look for where to resume; return False where the record cannot be read now.

        What is unknown then is not "no checkpoint": that would begin the training anew.
        """
        plan, settings = job.retry, self._settings(job.name)
        known = self._known(job.name)
        if known is None:
            return False
        shelf = self._keeper.shelf(job.name)
        search = Search(
            known=known,
            globs=(*settings.checkpoints.paths, str(self.snapshots(job.name) / "*.pt")),
            cwd=self.working_directory(job.name, settings),
            trouble_unix_s=plan.trouble_unix_s if plan else None,
            trouble_step=plan.trouble_step if plan else None,
            batches_per_epoch=history.batches_per_epoch if history else None,
            began_unix_s=job.began_unix_s,
            older_than=plan.older_than if plan else None,
            generations=shelf.all(),
            shelf=str(shelf.folder),
            condemned=_condemned(job),
        )
        begin("search", job.name, lambda: self._search(job, search))
        return True

    def exact(self, job: Job, before_step: int) -> Checkpoint | None:
        """Return the kept state from which the steps up to one are made again as they were, None without one."""
        return exact_before(of_this_training(self._keeper.shelf(job.name).all(), job.began_unix_s), before_step)

    def noticed(self, event: ev.Event, job: Job) -> None:
        """Have a checkpoint proven as soon as the training says that it saved one."""
        if not isinstance(event, ev.AgentSaid) or event.word is not ev.Word.CHECKPOINT_SAVED:
            return
        paths = event.facts.get("paths")
        for path in paths if isinstance(paths, list) else ():
            self._saved(event, job, Path(str(path)))

    def _saved(self, event: ev.AgentSaid, job: Job, path: Path) -> None:
        stat = fingerprint(path)
        if stat is None and (why := barred(path)) is not None:
            self._unseen(event, job, path, why)
        if stat is None or stat.modified_ns / 1e9 > event.at.unix_s + 1.0:
            return  # rewritten since: the later word about it counts
        seen = _checkpoint(str(path), stat, event.facts)
        if any(one.is_of(seen) for one in self._known(job.name) or ()):
            return  # it was taken before, and may have been let go: a new daemon hears the words of the old one again
        # Recorded before it is taken: a search that begins now must know of it.
        self._put(ev.CheckpointSeen(at=event.at, job=job.name, attempt=event.attempt, checkpoint=seen))
        prove = partial(self._keeper.proofs.prove, job.name)
        saved = Saved(
            job=job.name,
            attempt=event.attempt,
            path=path,
            prove=prove,
            epoch=seen.epoch,
            step=seen.step,
            kind=seen.kind,
        )
        self._keeper.saved(saved, stat)

    def _unseen(self, event: ev.AgentSaid, job: Job, path: Path, why: str) -> None:
        """Keep in the record that something was saved there: a job with checkpoints never begins anew by itself."""
        log.error("checkpoint.unseen", extra={"fields": {"job": job.name, "path": str(path), "why": why}})
        told = Fingerprint(size_bytes=0, modified_ns=int(event.at.unix_s * 1e9), inode=0)
        unseen = Checkpoint(path=str(path), fingerprint=told, verdict=Verdict.REJECTED, reason=why)
        self._put(ev.CheckpointSeen(at=event.at, job=job.name, attempt=event.attempt, checkpoint=unseen))

    def _search(self, job: Job, search: Search) -> None:
        def tell(checkpoint: Checkpoint) -> None:
            self._keeper.proofs.judge(job.name, checkpoint)
            self._put(ev.CheckpointSeen(at=self._clock.now(), job=job.name, attempt=job.number, checkpoint=checkpoint))

        search = replace(search, known=(*search.known, *self._unheard(job, search.known)))
        point = find(search, partial(self._keeper.proofs.prove, job.name), tell)
        if point.checkpoint is not None and point.checkpoint.step is not None:
            folders = [self._state / "jobs" / job.name / str(number) for number in range(job.number, 0, -1)]
            curve = old_curve(folders, point.checkpoint.step, search.trouble_step, self._clock.now())
            point = replace(point, curve=curve)
        self._put(ev.ResumePointFound(at=self._clock.now(), job=job.name, attempt=job.number, point=point))

    def _unheard(self, job: Job, known: tuple[Checkpoint, ...]) -> Iterator[Checkpoint]:
        """Yield what the last attempt told that it saved and the record lacks: a daemon died before it knew of it."""
        now, reader = self._clock.now(), AgentLogReader(self._state / "jobs" / job.name / str(job.number) / fo.AGENT)
        told: dict[str, Checkpoint] = {}
        read_bytes = -1
        while reader.offset != read_bytes:
            read_bytes = reader.offset
            for one in reader.read(now):
                paths = one.facts.get("paths") if one.word is ev.Word.CHECKPOINT_SAVED else None
                for path in paths if isinstance(paths, list) else ():
                    stat = fingerprint(Path(str(path)))
                    if stat is not None and stat.modified_ns / 1e9 <= one.at.unix_s + 1.0:
                        told[str(path)] = _checkpoint(str(path), stat, one.facts)
        yield from (
            one for one in told.values() if not any(other.key == one.key or other.is_of(one) for other in known)
        )


def _checkpoint(path: str, stat: Fingerprint, facts: Mapping[str, object]) -> Checkpoint:
    kind = "snapshot" if facts.get("kind") == "snapshot" else "checkpoint"
    epoch, step = _whole(facts.get("epoch")), _whole(facts.get("step"))
    return Checkpoint(path=path, fingerprint=stat, epoch=epoch, step=step, kind=kind)


def _condemned(job: Job) -> str | None:
    """Return why the checkpoint that the last attempt went on from is no good; None where that was not its trouble."""
    incident = job.incident
    if incident is None or incident.attempt != job.number or incident.flag.rule != ResumedLoss.name:
        return None
    return f"condemned: {incident.flag.message}"


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
