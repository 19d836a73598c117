"""Carries decisions out, each in a thread of its own, and answers with events; it never decides and never records.

Every act may be asked for twice (a daemon died between deciding and acting) and then does no harm: a signal repeats,
a launch finds the slot taken, evidence is written anew.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.config.derive import conv2d_environment, snapshot_every
from supervisor.config.settings import JobSettings
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.secrets import without_secrets
from supervisor.daemon.attempt_watch import AttemptWatch, Clock, Followed
from supervisor.daemon.begin import begin
from supervisor.daemon.killing import kill_until_gone
from supervisor.daemon.seeker import Seeker
from supervisor.daemon.sweep import clear_replays, clear_snapshots
from supervisor.daemon.treated import Visible, treated
from supervisor.daemon.triage import Examiner
from supervisor.runner import evidence, outside
from supervisor.runner.attempt import agent_path, compose_env, prepare, read_shim
from supervisor.runner.launcher import LAUNCH_LIMIT_S, Launcher, LaunchError
from supervisor.runner.watch import ExitWatch

log = logging.getLogger(__name__)

STOP_AGAIN_S = 1.0
KILL_AGAIN_S = 2.0
RESORT_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What acting needs from the rest of the daemon."""

    state: Path
    launcher: Launcher
    job: Callable[[str], Job | None]
    """May be asked in any thread."""
    attempts: AttemptWatch
    exits: ExitWatch
    settings: Callable[[str], JobSettings]
    evidence: Callable[[Job, History | None], evidence.EvidenceFacts]
    """Called in the deciding thread only."""
    gfx_versions: Callable[[JobSettings], tuple[str, ...]]
    visible: Callable[[str | None], Visible | None]
    """How a training is shown the card of that address alone."""
    output_limit_bytes: Callable[[], int]
    with_agent: Callable[[], bool]
    group: int | None
    """The group that shares attempts' folders with trainings of another user."""
    boot_id: str


class DoingHands:
    """The daemon's hands."""

    def __init__(self, clock: Clock, put: Callable[[ev.Event], None], means: Means, seeker: Seeker) -> None:
        self._clock = clock
        self._put = put
        self._means = means
        self._seeker = seeker
        self._examiner = Examiner(
            clock=clock,
            put=put,
            state=means.state,
            launcher=means.launcher,
            settings=means.settings,
            job=means.job,
            exact=seeker.exact,
            group=means.group,
        )
        self._launched: dict[str, threading.Event] = {}
        """Set once the launch of a job is through, well or not: a shim that is not there yet hears no signal."""

    def folder(self, job: str, attempt: int) -> Path:
        """Return an attempt's folder."""
        return self._means.state / "jobs" / job / str(attempt)

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        """Carry out a decision; Warn, Examine, Retry and GiveUp take effect by being recorded."""
        match decision:
            case de.Launch():
                self._launched[job.name] = launched = threading.Event()
                begin("launch", job.name, lambda: self._launch(decision, job, launched))
            case de.Stop():
                facts = self._means.evidence(job, history) if decision.flag is not None else None
                incident = job.incident.id if job.incident else f"{job.name}-{decision.attempt}"
                begin("stop", job.name, lambda: self._stop(decision, facts, incident))
            case de.Kill():
                begin("kill", job.name, lambda: self._kill(decision))
            case de.LastResort():
                begin("last resort", job.name, lambda: self._resort(decision))
            case de.Triage():
                begin("triage", job.name, lambda: self._examiner.examine(decision, job))
            case de.Examine() | de.Retry() | de.GiveUp() if _ended_without_evidence(decision, job):
                facts = self._means.evidence(job, history)
                begin("evidence", job.name, lambda: self._take_evidence(decision, facts, f"{job.name}-{job.number}"))
            case de.Finish() if not decision.by_user:
                begin("clear", job.name, lambda: clear_snapshots(self._seeker.snapshots(job.name)))
            case _:
                pass

    def search(self, job: Job, history: History | None) -> bool:
        """See `Seeker.search`."""
        return self._seeker.search(job, history)

    def noticed(self, event: ev.Event, job: Job) -> None:
        """See `Seeker.noticed`."""
        self._seeker.noticed(event, job)
        if isinstance(event, ev.TriageEnded):
            begin("clear", job.name, lambda: clear_replays(self._means.state / "jobs" / job.name))

    def adopt(self, job: str, attempt: int, followed: Followed) -> bool:
        """Take up an attempt whose shim left word in this boot; return False where none did."""
        note = read_shim(followed.folder)
        followed.other_boot = note is not None and note.boot_id != self._means.boot_id
        self._means.attempts.follow(followed)
        if note is None or note.boot_id != self._means.boot_id:
            return False
        now = self._clock.now()
        self._put(ev.Launched(at=now, job=job, attempt=attempt, shim_pid=note.pid, training_pid=note.training_pid))
        self._means.exits.add(job, attempt, note.pid, note.start_ticks)
        return True

    def _launch(self, decision: de.Launch, job: Job, launched: threading.Event) -> None:
        try:
            self._launch_now(decision, job)
        finally:
            launched.set()

    def _launch_now(self, decision: de.Launch, job: Job) -> None:
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
        checkpoint, planned = decision.resume_from, conv2d_environment(settings)
        launch = treated(settings, job, checkpoint, means.gfx_versions(settings), means.visible(job.card))
        return prepare(
            means.state,
            job.name,
            decision.attempt,
            argv=launch.argv,
            cwd=settings.cwd or str(self.folder(job.name, decision.attempt)),
            env=compose_env(
                job=job.name,
                number=decision.attempt,
                folder=self.folder(job.name, decision.attempt),
                env=launch.env,
                inherited=os.environ,
                agent=agent_path() if means.with_agent() else None,
                conv2d=launch.conv2d,
                # What a remedy set of them for this attempt counts.
                conv2d_settings={name: launch.env.get(name, value) for name, value in planned.items()},
                resume_from=checkpoint.path if checkpoint else None,
                snapshot_every=snapshot_every(settings),
                mean_fault_s=job.ledger.mean_fault_s(self._clock.now(), job.began_unix_s, settings.budget),
            ),
            grace_s=settings.grace_s,
            save_s=settings.save_s,
            group=means.group,
            remedies=launch.remedies if means.with_agent() else None,
        )

    def _stop(self, decision: de.Stop, facts: evidence.EvidenceFacts | None, incident: str) -> None:
        folder = self.folder(decision.job, decision.attempt)
        if facts is not None:
            self._take_evidence(decision, facts, incident)
        if (launched := self._launched.get(decision.job)) is not None:
            launched.wait(2 * LAUNCH_LIMIT_S)
        number = signal.Signals[fo.SHIM_SAVE_AND_END if decision.save else fo.SHIM_END]
        while not self._means.launcher.signal(decision.job, folder, number):
            # Where the order itself was refused (polkit is away), it is given again until the attempt has ended.
            if not self._means.launcher.alive(decision.job, folder):
                return
            time.sleep(STOP_AGAIN_S)
        self._put(ev.Signalled(at=self._clock.now(), job=decision.job, attempt=decision.attempt))

    def _take_evidence(
        self, decision: de.Stop | de.Examine | de.Retry | de.GiveUp, facts: evidence.EvidenceFacts, incident: str
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
        kill_until_gone(self._means.launcher, decision.job, self.folder(decision.job, decision.attempt), KILL_AGAIN_S)

    def _resort(self, decision: de.LastResort) -> None:
        """Run the command of a last resort within its time, and tell what came of it."""
        limit_s = self._means.settings(decision.job).last_resorts.limit_s
        printed, problem = outside.run(decision.command, limit_s)
        last = (printed.strip().splitlines() or [""])[-1][:RESORT_CHARACTERS]
        fields = {"job": decision.job, "command": shlex.join(decision.command), "problem": problem, "said": last}
        log.warning("resort.ended", extra={"fields": fields})
        self._put(
            ev.ResortEnded(
                at=self._clock.now(),
                job=decision.job,
                attempt=decision.attempt,
                kind=decision.kind,
                done=problem is None,
                said=without_secrets(problem or last),
            )
        )


def _ended_without_evidence(decision: de.Examine | de.Retry | de.GiveUp, job: Job) -> bool:
    """Whether an attempt ended of itself: nobody stopped it, so nobody took evidence before."""
    incident, one = job.incident, job.examination
    if one is not None and one.attempt == decision.attempt and not isinstance(decision, de.Examine):
        return False  # it was taken before its triage
    return incident is not None and incident.attempt == decision.attempt and incident.decision in ("retry", "give_up")
