"""Carries decisions out, each in a thread of its own, and answers with events; it never decides and never records.

Every act may be asked for twice (a daemon died between deciding and acting) and then does no harm: a signal repeats,
a launch finds the slot taken, evidence is written anew.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.config.settings import JobSettings
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.checkpoints import Checkpoint
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.miopen import conv2d_algorithm
from supervisor.daemon.attempt_watch import AttemptWatch, Clock, Followed
from supervisor.daemon.checkpoint_watch import CheckpointWatch, Saved
from supervisor.daemon.resume import Prove, Search, find, fingerprint
from supervisor.runner import evidence
from supervisor.runner.attempt import agent_path, compose_env, prepare, read_shim
from supervisor.runner.launcher import Launcher, LaunchError
from supervisor.runner.watch import ExitWatch

log = logging.getLogger(__name__)

KILL_AGAIN_S = 2.0
KILL_ROUNDS_BY_SHIM = 2
RESTING_KILL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What acting needs from the rest of the daemon."""

    state: Path
    launcher: Launcher
    attempts: AttemptWatch
    exits: ExitWatch
    checkpoints: CheckpointWatch
    settings: Callable[[str], JobSettings]
    prove: Prove
    known_checkpoints: Callable[[str], tuple[Checkpoint, ...] | None]
    """Called in the deciding thread only."""
    evidence: Callable[[Job, History | None], evidence.EvidenceFacts]
    """Called in the deciding thread only."""
    gfx_versions: Callable[[JobSettings], tuple[str, ...]]
    output_limit_bytes: Callable[[], int]
    with_agent: Callable[[], bool]
    group: int | None
    """The group that shares attempts' folders with trainings of another user."""
    boot_id: str


class DoingHands:
    """The daemon's hands."""

    def __init__(self, clock: Clock, put: Callable[[ev.Event], None], means: Means) -> None:
        self._clock = clock
        self._put = put
        self._means = means

    def folder(self, job: str, attempt: int) -> Path:
        """Return an attempt's folder."""
        return self._means.state / "jobs" / job / str(attempt)

    def working_directory(self, job: str, settings: JobSettings) -> str:
        """Return where relative checkpoint patterns start: without a `cwd`, in every attempt's folder."""
        return settings.cwd or str(self._means.state / "jobs" / job / "*")

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        """Carry out a decision; Warn, Retry, GiveUp and Finish take effect by being recorded."""
        match decision:
            case de.Launch():
                self._begin("launch", job.name, lambda: self._launch(decision, job))
            case de.Stop():
                facts = self._means.evidence(job, history) if decision.flag is not None else None
                incident = job.incident.id if job.incident else f"{job.name}-{decision.attempt}"
                self._begin("stop", job.name, lambda: self._stop(decision, facts, incident))
            case de.Kill():
                self._begin("kill", job.name, lambda: self._kill(decision))
            case de.Retry() | de.GiveUp() if _ended_without_evidence(decision, job):
                facts = self._means.evidence(job, history)
                self._begin(
                    "evidence", job.name, lambda: self._take_evidence(decision, facts, f"{job.name}-{job.number}")
                )
            case _:
                pass

    def search(self, job: Job, history: History | None) -> bool:
        """Look for where to resume; return False where the record cannot be read now.

        What is unknown then is not "no checkpoint": that would begin the training anew.
        """
        plan, settings = job.retry, self._means.settings(job.name)
        known = self._means.known_checkpoints(job.name)
        if known is None:
            return False
        search = Search(
            known=known,
            globs=tuple(settings.checkpoints.paths),
            cwd=self.working_directory(job.name, settings),
            trouble_unix_s=plan.trouble_unix_s if plan else None,
            trouble_step=plan.trouble_step if plan else None,
            batches_per_epoch=history.batches_per_epoch if history else None,
            began_unix_s=job.began_unix_s,
        )
        self._begin("search", job.name, lambda: self._search(job, search))
        return True

    def noticed(self, event: ev.Event, job: Job) -> None:
        """Have a checkpoint proven as soon as the training says that it saved one."""
        if not isinstance(event, ev.AgentSaid) or event.word is not ev.Word.CHECKPOINT_SAVED:
            return
        paths = event.facts.get("paths")
        for path in paths if isinstance(paths, list) else ():
            self._saved(event, job, Path(str(path)))

    def _saved(self, event: ev.AgentSaid, job: Job, path: Path) -> None:
        stat = fingerprint(path)
        if stat is None or stat.modified_ns / 1e9 > event.at.unix_s + 1.0:
            return  # rewritten since: the later word about it counts
        epoch, step = _whole(event.facts.get("epoch")), _whole(event.facts.get("step"))
        seen = Checkpoint(path=str(path), fingerprint=stat, epoch=epoch, step=step)
        self._put(ev.CheckpointSeen(at=event.at, job=job.name, attempt=event.attempt, checkpoint=seen))
        prove = self._means.prove
        saved = Saved(job=job.name, attempt=event.attempt, path=path, prove=prove, epoch=epoch, step=step)
        self._means.checkpoints.saved(saved)

    def adopt(self, job: str, attempt: int, followed: Followed) -> bool:
        """Take up an attempt whose shim left word in this boot; return False where none did."""
        note = read_shim(followed.folder)
        self._means.attempts.follow(followed)
        if note is None or note.boot_id != self._means.boot_id:
            return False
        now = self._clock.now()
        self._put(ev.Launched(at=now, job=job, attempt=attempt, shim_pid=note.pid, training_pid=note.training_pid))
        self._means.exits.add(job, attempt, note.pid, note.start_ticks)
        return True

    def _begin(self, what: str, job: str, act: Callable[[], None]) -> None:
        def fenced() -> None:
            try:
                act()
            except Exception:
                log.exception("act.failed", extra={"fields": {"act": what, "job": job}})

        threading.Thread(target=fenced, name=f"{what}-{job}", daemon=True).start()

    def _launch(self, decision: de.Launch, job: Job) -> None:
        name, number = job.name, decision.attempt
        try:
            folder = self._prepare(decision, job)
            self._means.launcher.launch(name, folder)
        except (LaunchError, OSError, ValueError) as error:
            self._put(ev.LaunchFailed(at=self._clock.now(), job=name, attempt=number, error=str(error)))
            return
        followed = Followed(
            job=name, attempt=number, folder=folder, output_limit_bytes=self._means.output_limit_bytes()
        )
        if not self.adopt(name, number, followed):
            # It ran and was gone before we looked: what it left is read, then its end is told.
            self._means.attempts.gone(name, number)

    def _prepare(self, decision: de.Launch, job: Job) -> Path:
        settings, means = self._means.settings(job.name), self._means
        checkpoint = decision.resume_from
        conv2d = conv2d_algorithm(settings.conv2d, means.gfx_versions(settings), miopen_failed=job.miopen_failed)
        return prepare(
            means.state,
            job.name,
            decision.attempt,
            argv=command_of(settings, checkpoint),
            cwd=settings.cwd or str(self.folder(job.name, decision.attempt)),
            env=compose_env(
                job=job.name,
                number=decision.attempt,
                folder=self.folder(job.name, decision.attempt),
                env=settings.env,
                inherited=os.environ,
                agent=agent_path() if means.with_agent() else None,
                conv2d=conv2d,
                resume_from=checkpoint.path if checkpoint else None,
            ),
            grace_s=settings.grace_s,
            save_s=settings.save_s,
            group=means.group,
        )

    def _stop(self, decision: de.Stop, facts: evidence.EvidenceFacts | None, incident: str) -> None:
        folder = self.folder(decision.job, decision.attempt)
        if facts is not None:
            self._take_evidence(decision, facts, incident)
        number = fo.SHIM_SAVE_AND_END if decision.save else fo.SHIM_END
        self._means.launcher.signal(decision.job, folder, signal.Signals[number])
        self._put(ev.Signalled(at=self._clock.now(), job=decision.job, attempt=decision.attempt))

    def _take_evidence(
        self, decision: de.Stop | de.Retry | de.GiveUp, facts: evidence.EvidenceFacts, incident: str
    ) -> None:
        folder = self.folder(decision.job, decision.attempt)
        taken = evidence.take(folder, self._means.launcher, decision.job, facts, incident)
        self._put(
            ev.EvidenceTaken(
                at=self._clock.now(),
                job=decision.job,
                attempt=decision.attempt,
                folder=str(taken.folder),
                took_s=taken.took_s,
                missing=taken.missing,
            )
        )

    def _kill(self, decision: de.Kill) -> None:
        """SIGKILL until nothing is left: by the shim first, for then its exit is told; from outside after that."""
        launcher, folder = self._means.launcher, self.folder(decision.job, decision.attempt)
        kill, rounds = signal.Signals[fo.SHIM_KILL], 0
        while launcher.alive(decision.job, folder):
            if rounds >= KILL_ROUNDS_BY_SHIM or not launcher.signal(decision.job, folder, kill):
                launcher.kill_all(decision.job, folder)
            rounds += 1
            time.sleep(KILL_AGAIN_S if rounds < 10 else RESTING_KILL_S)

    def _search(self, job: Job, search: Search) -> None:
        def tell(checkpoint: Checkpoint) -> None:
            self._put(ev.CheckpointSeen(at=self._clock.now(), job=job.name, attempt=job.number, checkpoint=checkpoint))

        point = find(search, self._means.prove, tell)
        self._put(ev.ResumePointFound(at=self._clock.now(), job=job.name, attempt=job.number, point=point))


def _ended_without_evidence(decision: de.Retry | de.GiveUp, job: Job) -> bool:
    """Whether an attempt ended of itself: nobody stopped it, so nobody took evidence before."""
    incident = job.incident
    return incident is not None and incident.attempt == decision.attempt and incident.decision in ("retry", "give_up")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def command_of(settings: JobSettings, checkpoint: Checkpoint | None) -> list[str]:
    """Return the command of an attempt; `{checkpoint}` in the resume command stands for the file."""
    if checkpoint is None or settings.resume.command is None:
        return list(settings.command)
    return [word.replace("{checkpoint}", checkpoint.path) for word in settings.resume.command]
