"""Tracks what a job has saved, has it captured and proven, and searches for the checkpoint to resume from."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor.children.files_apart import apart
from supervisor.config.derive import commands_of, loads_itself, policy_of, snapshot_every, snapshot_replicas
from supervisor.config.settings import SNAPSHOT_EVERY_S, JobSettings
from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import (
    Checkpoint,
    Fingerprint,
    Given,
    ResumePoint,
    SetBack,
    Verdict,
    exact_before,
    given_between,
    of_this_training,
)
from supervisor.core.foreign_values import EPOCH_MAX, STEP_MAX, as_int
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.rules.resumed_loss import ResumedLoss
from supervisor.core.tuning.start_order import UNUSED
from supervisor.daemon.checkpoints.candidates import (
    Search,
    describe_denied,
    expand_globs,
    find,
    find_folders,
    fingerprint,
)
from supervisor.daemon.checkpoints.collector import RESERVE_BYTES
from supervisor.daemon.checkpoints.damaged_saves import move_damaged, move_unverified
from supervisor.daemon.checkpoints.existing import keep_existing
from supervisor.daemon.checkpoints.past_losses import past_curve
from supervisor.daemon.checkpoints.per_job import Generations
from supervisor.daemon.checkpoints.proof_queue import Saved
from supervisor.daemon.checkpoints.recorded import KnownCheckpoints
from supervisor.daemon.checkpoints.save_steps import SaveSteps
from supervisor.daemon.checkpoints.saved_in_parts import find_untorn, hand_over_in_place, misses_file_next_to
from supervisor.daemon.checkpoints.unreadable import find_unreadable
from supervisor.daemon.checkpoints.unreported_saves import with_unreported
from supervisor.daemon.clock import Clock
from supervisor.daemon.fence import SEARCH, describe_error
from supervisor.daemon.threads import Threads
from supervisor.runner.attempt_folder import check_disk
from supervisor.runner.unexamined import UnexaminedError
from supervisor.sources.attempt.agent_log import AgentFact, AgentLogReader
from supervisor.store.errors import StoreError

log = logging.getLogger(__name__)

LEFT_OUT_NAMED = 8
REPORTED_WITHIN_S = 1.0
"""A save is reported once it is written; the times of a file and of its report may differ by so much."""
NEW_REPORT_S = 10.0
UNRECORDED_SAVES = 200
"""Reports of an attempt that are looked at, the newest: each may name several files, all looked up on the disk."""
SEARCH_LIMIT_S = 60.0
"""A search that takes longer is reported as not answering; it continues once the file system answers."""
ENVIRONMENT_LIMIT_S = 180.0
"""How long the proof of another environment may take in addition, until nothing of it runs any more."""


class ResumeSearch:
    """Called in the deciding thread; searches run in threads of their own."""

    def __init__(  # noqa: PLR0913 - what is known of checkpoints lies in several rooms
        self,
        *,
        clock: Clock,
        put: Callable[[ev.Event], None],
        state: Path,
        settings: Callable[[str], JobSettings],
        known: KnownCheckpoints,
        collector: Generations,
        steps: SaveSteps,
        threads: Threads | None = None,
        left_to_leader: Callable[[], bool] = lambda: False,
        environment_problem: Callable[[Job, Checkpoint | None], str | None] = lambda _job, _checkpoint: None,
        jobs: Callable[[], Mapping[str, JobSettings]] = dict,
    ) -> None:
        """`left_to_leader`: whether the leader of a training on several nodes says what all of them resume from.

        `environment_problem` returns why the environment that a remedy chose cannot go on from a checkpoint. `jobs` are
        all that are configured.
        """
        self._clock = clock
        self._put = put
        self._state = state
        self._settings = settings
        self._known = known
        self._collector = collector
        self._steps = steps
        self._unseen: dict[tuple[str, int], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._threads = threads or Threads(clock, put)
        self._left_to_leader = left_to_leader
        self._find_environment_problem = environment_problem
        self._jobs = jobs

    def working_directory(self, job: str, settings: JobSettings) -> str:
        """Return where relative checkpoint patterns start: without a `cwd`, in every attempt's folder."""
        return settings.cwd or str(self._state / "jobs" / job / "*" / fo.RUN)

    def snapshots(self, job: str) -> Path:
        """Return the folder of a job's snapshots: one may lie there that the agent could not report any more."""
        return self._state / "jobs" / job / fo.SNAPSHOTS

    def search(self, job: Job, history: History | None) -> None:
        """Look for where to resume, in a thread of its own."""
        if self._left_to_leader():
            point = ResumePoint(checkpoint=None, possible=True, reason="the leader of the training says where")
            self._put(ev.ResumePointFound(at=self._clock.now(), job=job.name, attempt=job.number, point=point))
            return
        plan, settings = job.retry, self._settings(job.name)
        itself = loads_itself(settings, settings.profiles.cpu if job.on_cpu else None)
        partly = Search(
            known=(),
            globs=(*settings.checkpoints.paths, *self._snapshot_globs(job.name, settings)),
            cwd=self.working_directory(job.name, settings),
            fault_unix_s=plan.fault_unix_s if plan else None,
            fault_step=plan.fault_step if plan else None,
            batches_per_epoch=history.plan.batches_per_epoch if history else None,
            began_unix_s=self._steps.find_begin(job),
            set_back=self._find_set_back(job),
            older_than=plan.older_than if plan else None,
            snapshots=str(self.snapshots(job.name)),
            replicas=snapshot_replicas(settings, job.name),
            given=given_for_exactness(settings, history),
            step_of=partial(self._steps.step_of, job.name),
            loads_itself=itself,
            set_newer_aside=settings.resume.set_newer_aside,
            died_unix_s=_find_end_with_damaged(job, settings) if itself else None,
            ended_unix_s=_find_end(job),
            blamed_unix_s=plan.blamed_unix_s if plan else None,
            rejected_because=_why_rejected(job),
        )
        limit_s = SEARCH_LIMIT_S if job.environment is None else SEARCH_LIMIT_S + ENVIRONMENT_LIMIT_S
        self._threads.begin(SEARCH, job.name, lambda: self._search_and_answer(job, partly), limit_s)

    def _find_set_back(self, job: Job) -> SetBack | None:
        """Return that the wall clock was set back, where files of before may still seem to be of the future."""
        before_unix_s, now_unix_s = job.clock_before_unix_s, self._clock.now().unix_s
        if before_unix_s is None or before_unix_s <= now_unix_s:
            return None
        return SetBack(now_unix_s=now_unix_s, from_unix_s=before_unix_s)

    def _snapshot_globs(self, name: str, settings: JobSettings) -> tuple[str, ...]:
        """Return where snapshots of a job lie, those of shards also on another machine."""
        folders = filter(None, (str(self.snapshots(name)), snapshot_replicas(settings, name)))
        return (str(self.snapshots(name) / "*.pt"), *(f"{folder}/{fo.SHARDED_SNAPSHOT}/" for folder in folders))

    def _search_and_answer(self, job: Job, partly: Search) -> None:
        """Search, and answer in every case: a job waits for the result."""
        try:
            # A launch that such a disk refuses would spend an attempt; the search is repeated and spends nothing.
            check_disk(self._state, job.name)
            known = self._known(job.name)
            store = self._collector.store_of(job.name)
            generations = store.all()
            search = replace(partly, known=known or (), generations=generations, generations_folder=str(store.folder))
            self._find_resume_point(job, search, complete=known is not None)
        except Exception as error:
            if isinstance(error, UnexaminedError):
                log.warning("search.repeated", extra={"fields": {"job": job.name, "why": str(error)}})
            else:
                log.exception("search.failed", extra={"fields": {"job": job.name}})
            self._put(
                ev.SupervisionChanged(
                    at=self._clock.now(), job=job.name, attempt=job.number, place=SEARCH, error=describe_error(error)
                )
            )

    def look(self, name: str, attempt: int) -> None:
        """Report which of a job's checkpoint patterns find nothing, when that changed; safe in any thread."""
        settings = self._settings(name)
        paths, where = settings.checkpoints.paths, self.working_directory(name, settings)
        closed, folders = find_unreadable(paths, where).everything, find_folders(paths, where)
        if self._unseen.get((name, attempt), ((), ())) != (closed, folders):
            self._unseen[(name, attempt)] = (closed, folders)
            self._put(
                ev.CheckpointsClosed(at=self._clock.now(), job=name, attempt=attempt, closed=closed, folders=folders)
            )

    def keep_existing_files(self, name: str, attempt: int, *, loads_itself: bool = False) -> None:
        """Keep and report copies of the checkpoints where a training is about to start from the beginning.

        One that loads its own is expected to go on from them, and to leave them as they are: the copies are kept in
        case it does neither, and not reported. Under a leader it is not known here where it starts from.
        """
        if self._left_to_leader():
            return
        settings = self._settings(name)
        paths = tuple(expand_globs(settings.checkpoints.paths, self.working_directory(name, settings)))
        if not paths:
            return
        made = apart(
            keep_existing,
            self._state / "jobs" / name,
            attempt,
            paths,
            limit_bytes=policy_of(settings).limit_bytes,
            reserve_bytes=RESERVE_BYTES,
        )
        fields = {"job": name, "found": len(paths), "kept": made.copies, "left_out": list(made.left_out)}
        level = logging.INFO if loads_itself else logging.WARNING
        log.log(level, "checkpoints.begun_beside", extra={"fields": fields})
        if loads_itself:
            return
        self._put(
            ev.ExistingFound(
                at=self._clock.now(),
                job=name,
                attempt=attempt,
                count=len(paths),
                kept=made.copies,
                folder=str(made.folder),
                left_out=made.left_out[:LEFT_OUT_NAMED],
            )
        )

    def exact(self, job: Job, before_step: int) -> Checkpoint | None:
        """Return the kept state from which the steps up to a given one are redone exactly; None where there is none."""
        return exact_before(
            of_this_training(self._collector.store_of(job.name).all(), self._steps.find_begin(job)), before_step
        )

    def noticed(self, event: ev.Event, job: Job) -> None:
        """Have a checkpoint captured and proven as soon as the training reports it.

        Not under a leader: what one node has captured is no state of all ranks. The step of a file is known there, too:
        the program may go on from it by itself.
        """
        if isinstance(event, ev.AgentReported) and event.agent_event is ev.AgentEvent.FILE_SAVED:
            self._steps.take_report(event, job)
        if self._left_to_leader():
            return
        if not isinstance(event, ev.AgentReported) or event.agent_event is not ev.AgentEvent.CHECKPOINT_SAVED:
            return
        paths = event.facts.get("paths")
        if not isinstance(paths, list):
            return
        names = [str(path) for path in paths]
        lane = self._threads.lane("checkpoints", job.name)
        for name in names:
            # The file system may never answer, and all jobs share this thread.
            lane.do(f"looking at {name}", partial(self._take_up_save, event, job, Path(name)))

    def _take_up_save(self, event: ev.AgentReported, job: Job, path: Path) -> None:
        # A long training has a hundred thousand checkpoints in its record: only what may match is read.
        generations = self._known(job.name, (str(path),)) or ()
        stat = fingerprint(path)
        if stat is None and (why := describe_denied(path)) is not None:
            self._report_unseen(event, job, path, why)
        if stat is not None:
            self._steps.measure_clock(job.name, str(path), event.at.unix_s - stat.modified_ns / 1e9)
        if stat is None or _was_rewritten(stat, event.at, self._clock.now()):
            return  # the later report counts
        seen = _checkpoint_of_report(str(path), stat, event.facts)
        if job.attempt is not None and job.attempt.number == event.attempt:
            seen = replace(seen, step=job.attempt.training_step(seen.step))
        if any(generation.is_of(seen) for generation in generations):
            return  # it was captured before, and may have been pruned: a new daemon reads the agent log from its start
        # Recorded before it is captured: a search that starts now has to know it.
        self._put(ev.CheckpointSeen(at=event.at, job=job.name, attempt=event.attempt, checkpoint=seen))
        prove = partial(self._collector.proofs.prove, job.name)
        saved = Saved(
            job=job.name,
            attempt=event.attempt,
            path=path,
            prove=prove,
            epoch=seen.epoch,
            step=seen.step,
            kind=seen.kind,
        )
        self._collector.saved(saved, stat)

    def _report_unseen(self, event: ev.AgentReported, job: Job, path: Path, why: str) -> None:
        """Record that something was saved there: a job with checkpoints never starts from the beginning on its own."""
        log.error("checkpoint.unseen", extra={"fields": {"job": job.name, "path": str(path), "why": why}})
        reported = Fingerprint(size_bytes=0, modified_ns=int(event.at.unix_s * 1e9), inode=0)
        unseen = Checkpoint(path=str(path), fingerprint=reported, verdict=Verdict.REJECTED, reason=why)
        self._put(ev.CheckpointSeen(at=event.at, job=job.name, attempt=event.attempt, checkpoint=unseen))

    def _find_resume_point(self, job: Job, search: Search, *, complete: bool) -> None:
        """Find and report where to resume; `complete`: whether the record was read, in addition to the files."""
        judged: list[Checkpoint] = []

        def report(checkpoint: Checkpoint) -> None:
            judged.append(checkpoint)
            self._collector.proofs.judge(job.name, checkpoint)
            self._put(ev.CheckpointSeen(at=self._clock.now(), job=job.name, attempt=job.number, checkpoint=checkpoint))

        search = replace(search, known=(*search.known, *self._read_unrecorded_saves(job, search.known)))
        needs_others = self._needs_others(job, search)
        # A program that finds its files by itself reads them as they are.
        itself = self._settings(job.name).resume.command is None
        look = find if itself else partial(find_untorn, needs_others=needs_others)
        prove = partial(self._collector.proofs.prove, job.name)
        point = look(search, prove, report)
        if point.checkpoint is None and (further := with_unreported(search)) is not None:
            point = _prefer_found(look(further, prove, report), point)
        if point.checkpoint is None and point.possible and not point.loads_itself:
            point = _refuse_after_loss(job, search) or point
        search, shared = replace(search, known=(*search.known, *judged)), partial(self._list_of_others, job.name)
        point = move_damaged(search, point, prove, report, shared)
        point = move_unverified(search, point, prove, report, shared)
        if point.checkpoint is None and not complete:
            # Unknown is not "no checkpoint": that would start the training from the beginning.
            raise StoreError("the record cannot be read, and without it no checkpoint to resume from was found")
        if point.checkpoint is not None and point.checkpoint.step is not None:
            folders = [self._state / "jobs" / job.name / str(number) for number in range(job.number, 0, -1)]
            curve = past_curve(folders, point.checkpoint.step, search.fault_step, self._clock.now())
            point = replace(point, curve=curve)
        if point.possible and job.environment is not None:
            point = replace(point, environment_problem=self._find_environment_problem(job, point.checkpoint))
        if point.checkpoint is not None:
            point = replace(point, checkpoint=hand_over_in_place(point.checkpoint, needs_others=needs_others))
        point = replace(point, needs_others=needs_others)
        self._put(ev.ResumePointFound(at=self._clock.now(), job=job.name, attempt=job.number, point=point))

    def _list_of_others(self, name: str) -> frozenset[str]:
        """Return what the patterns of other jobs name: their saves may be the same files."""
        others = ((other, settings) for other, settings in self._jobs().items() if other != name)
        return frozenset(
            path
            for other, settings in others
            for path in expand_globs(settings.checkpoints.paths, self.working_directory(other, settings))
        )

    def _needs_others(self, job: Job, search: Search) -> bool:
        """Whether the program failed, now or before, as other files were missing next to its checkpoint."""
        incident = job.incident
        if incident is not None and incident.attempt == job.number and search.generations_folder is not None:
            folder = Path(search.generations_folder)
            return job.needs_others or misses_file_next_to(folder, search.generations, incident.flag.message)
        return job.needs_others

    def _read_unrecorded_saves(self, job: Job, known: tuple[Checkpoint, ...]) -> Iterator[Checkpoint]:
        """Yield saves that the last attempt reported and the record lacks: a daemon ended before recording them.

        Of an attempt that reported more than `UNRECORDED_SAVES` only the newest are looked at.
        """
        reported: dict[str, Checkpoint] = {}
        now = self._clock.now()
        for agent_fact in _read_newest_saves(self._state / "jobs" / job.name / str(job.number), now):
            paths = agent_fact.facts.get("paths")
            for path in paths if isinstance(paths, list) else ():
                stat = fingerprint(Path(str(path)))
                if stat is not None and not _was_rewritten(stat, agent_fact.at, now):
                    reported[str(path)] = _checkpoint_of_report(str(path), stat, agent_fact.facts)
        yield from (
            checkpoint
            for checkpoint in reported.values()
            if not any(other.key == checkpoint.key or other.is_of(checkpoint) for other in known)
        )


def _was_rewritten(stat: Fingerprint, reported_at: Moment, now: Moment) -> bool:
    """Whether a file was written after its save was reported.

    A time that is still to come is that of a file server whose clock is ahead, as by a minute: such a file is taken for
    the one that was reported while the report is new.
    """
    written_unix_s = stat.modified_ns / 1e9
    if written_unix_s <= reported_at.unix_s + REPORTED_WITHIN_S:
        return False
    return written_unix_s <= now.unix_s or now.seconds_since(reported_at) > NEW_REPORT_S


def _prefer_found(further: ResumePoint, before: ResumePoint) -> ResumePoint:
    """Return what a further search has found; where it has found nothing either, what there was before it."""
    if further.checkpoint is None:
        return before
    return replace(further, reason=f"{further.reason}, which no report names")


def _refuse_after_loss(job: Job, search: Search) -> ResumePoint | None:
    """Return that nothing is started where what the last attempt went on from is gone, and every later save.

    A start from the beginning would hide that loss, and write over what may still come back: a disk may be away.
    """
    attempt = job.attempt
    given = attempt.resume_from if attempt is not None and attempt.went_on is not False else None
    if given is None or not of_this_training((given,), search.began_unix_s):
        return None
    reason = (
        f"{given.title}, from which attempt {job.number} was resumed, is gone, and no other checkpoint is found; "
        f"`supervisorctl start --fresh {job.name}` starts from the beginning"
    )
    return ResumePoint(checkpoint=None, possible=False, reason=reason)


def _find_end_with_damaged(job: Job, settings: JobSettings) -> float | None:
    """Return before which time a damaged save was written that may end a start; None where none is looked for.

    A program with a resume command that names no file loads its newest save by itself; of any other that is known once
    it has died at a start. What an attempt saved is complete once it has ended, which is known late of one that left
    no exit record, as where the power failed. Of what was saved since a fault began only that is in the way which is
    proven damaged, as weights that are not finite; set_newer_aside is the user's answer to the rest of it.
    """
    plan, attempt = job.retry, job.attempt
    if plan is None or settings.resume.set_newer_aside or attempt is None:
        return None
    resume = commands_of(settings, settings.profiles.cpu if job.on_cpu else None)[1]
    if plan.died_unix_s is not None or resume is None:
        return plan.died_unix_s
    return _find_end(job)


def _find_end(job: Job) -> float | None:
    """Return when the attempt ended, as far as is known; None while it runs, or where that is not known."""
    attempt = job.attempt
    if attempt is None or attempt.exit is None:
        return job.since.unix_s if attempt is not None and attempt.host_lost is not None else None
    return attempt.exit.at.unix_s


def _read_newest_saves(attempt: Path, now: Moment) -> deque[AgentFact]:
    """Return the newest saves that an attempt reported, oldest first."""
    reader = AgentLogReader(attempt, only=ev.AgentEvent.CHECKPOINT_SAVED)
    newest: deque[AgentFact] = deque(maxlen=UNRECORDED_SAVES)
    read_bytes = -1
    while reader.offset != read_bytes:
        read_bytes = reader.offset
        newest += (fact for fact in reader.read(now) if fact.agent_event is ev.AgentEvent.CHECKPOINT_SAVED)
    return newest


def given_for_exactness(settings: JobSettings, history: History | None) -> Given:
    """Return how much work is redone for exactness, in seconds and, where the pace is known, in steps."""
    reported_s = history.reports.saving.every_s if history is not None else None
    every = snapshot_every(settings)
    seconds = SNAPSHOT_EVERY_S if every == "auto" and reported_s is None else reported_s or float(every)
    pace = history.pace if history is not None else None
    if pace is None or pace.first is None or pace.last is None:
        return given_between(seconds, None)
    stepping_s = pace.last.at.seconds_since(pace.first.at) - pace.idle_s
    return given_between(seconds, pace.steps / stepping_s if stepping_s > 0 else None)


def _checkpoint_of_report(path: str, stat: Fingerprint, facts: Mapping[str, object]) -> Checkpoint:
    kind = "snapshot" if facts.get("kind") == "snapshot" else "checkpoint"
    epoch, step = as_int(facts.get("epoch"), -1, EPOCH_MAX), as_int(facts.get("step"), maximum=STEP_MAX)
    return Checkpoint(path=path, fingerprint=stat, epoch=epoch, step=step, kind=kind)


def _why_rejected(job: Job) -> str | None:
    """Return why the checkpoint last resumed from is rejected; None where it did not cause the fault."""
    incident = job.incident
    if job.attempt is not None and job.attempt.order is not None:
        return UNUSED
    if incident is None or incident.attempt != job.number or incident.flag.rule != ResumedLoss.name:
        return None
    return f"rejected: {incident.flag.message}"
