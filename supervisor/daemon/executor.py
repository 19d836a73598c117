"""Carries out decisions, each in a thread of its own, and reports the results as events.

Every act is safe to repeat, as after a daemon that died between deciding and acting: a signal is sent again, a launch
finds the slot taken, evidence is written again.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.config.settings import JobSettings
from supervisor.core import attempt_files as fo
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.foreign_values import cut
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.sanitize import without_secrets
from supervisor.daemon.attempt_reader import AttemptReader, FollowedAttempt
from supervisor.daemon.checkpoints.resume_search import ResumeSearch
from supervisor.daemon.cleanup import clear_replays, clear_snapshots, make_room
from supervisor.daemon.clock import Clock
from supervisor.daemon.fence import describe_error
from supervisor.daemon.launch.containers import Containers
from supervisor.daemon.launch.launch_spec import LaunchBuilder
from supervisor.daemon.launch.standby import StandbyStarter
from supervisor.daemon.threads import Threads
from supervisor.daemon.triage import TriageRunner
from supervisor.runner import evidence, tools, tuned
from supervisor.runner.attempt_folder import is_note_of, names_another, note_of, prepare, read_shim
from supervisor.runner.exit_watch import ExitWatch
from supervisor.runner.launcher import (
    LAUNCH_LIMIT_S,
    EngineError,
    Launcher,
    LaunchError,
    kill_until_gone,
    shortage_of,
)

log = logging.getLogger(__name__)

LAUNCH_NAMED_S = 300.0
"""A launch that takes longer is reported as not answering: a file system that it looks at may never answer. What lies
where a training is to begin is copied first, which takes minutes for some gigabytes."""
STOP_AGAIN_S = 1.0
KILL_AGAIN_S = 2.0
FAULTS_WITH_TUNED = 2
"""After so many faults in a row without progress a launch is without what a tune has adopted: it may be the reason."""
RESORT_CHARACTERS = 300
UNREAD_END = "it was stopped; how it ended is in a record of a later version, which this one does not read"
ERROR_CHARS_MAX = 2000
LAUNCH_ERRORS = (LaunchError, OSError, ValueError)
"""What a launch is expected to raise; its text is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDeps:
    """What acting needs from the rest of the daemon."""

    state: Path
    launcher: Launcher
    job: Callable[[str], Job | None]
    """May be asked in any thread."""
    attempts: AttemptReader
    exits: ExitWatch
    settings: Callable[[str], JobSettings]
    evidence: Callable[[Job, History | None], evidence.EvidenceFacts]
    """Called in the deciding thread only."""
    compose: LaunchBuilder
    standbys: StandbyStarter
    output_limit_bytes: Callable[[], int]
    group: int | None
    """The group that shares attempts' folders with trainings of another user."""
    boot_id: str
    threads: Threads
    containers: Containers
    find_stop_at: Callable[[Path, str, int], bool] = lambda _place, _job, _attempt: False
    """See `UnitRequests.find_stop_at`."""
    report_flag: Callable[[de.Stop], bool] = lambda _: False
    """Reports a flagged attempt to the leader of a training on several nodes; returns whether that is left to it."""
    report_warning: Callable[[de.Warn], None] = lambda _: None
    """Reports what a rule has warned of to that leader; returns at once."""


class ThreadExecutor:
    """Carries out decisions in threads of its own."""

    def __init__(
        self, clock: Clock, put: Callable[[ev.Event], None], deps: ExecutorDeps, resume_search: ResumeSearch
    ) -> None:
        self._clock = clock
        self._put = put
        self._deps = deps
        self._resume_search = resume_search
        self._examiner = TriageRunner(
            clock=clock,
            put=put,
            state=deps.state,
            launcher=deps.launcher,
            settings=deps.settings,
            job=deps.job,
            exact=resume_search.exact,
            code=deps.compose.code,
            group=deps.group,
            find_stop=deps.find_stop_at,
        )
        self._launched: dict[str, threading.Event] = {}
        """Set once the launch of a job has succeeded or failed: a shim that has not started receives no signal."""
        self._left_alone: set[tuple[str, int]] = set()
        """Attempts whose records a later version wrote: no reader follows their files, or reports their end."""

    def folder(self, job: str, attempt: int) -> Path:
        """Return an attempt's folder."""
        return self._deps.state / "jobs" / job / str(attempt)

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        """Carry out a decision; StartTriage, Retry and GiveUp take effect by being recorded, as does Warn."""
        begin = self._deps.threads.begin
        self._clear_after(decision, job)
        match decision:
            case de.Launch():
                self._launched[job.name] = launched = threading.Event()
                begin("launch", job.name, lambda: self._launch_and_release(decision, job, launched), LAUNCH_NAMED_S)
            case de.Warn():
                self._deps.report_warning(decision)
            case de.Continue():
                begin("continue", job.name, lambda: self._continue_attempt(decision))
            case de.Stop():
                facts = self._gather_facts(job, history) if decision.flag is not None else None
                incident = job.incident.id if job.incident else f"{job.name}-{decision.attempt}"
                begin("stop", job.name, lambda: self._stop_attempt(decision, facts, incident))
            case de.Kill():
                begin("kill", job.name, lambda: self._kill_attempt(decision))
            case de.LastResort():
                begin("last resort", job.name, lambda: self._run_last_resort(decision))
            case de.Triage():
                begin("triage", job.name, lambda: self._examiner.examine(decision, job))
            case de.StartTriage() | de.Retry() | de.GiveUp() if _ended_without_evidence(decision, job):
                facts = self._gather_facts(job, history)
                begin("evidence", job.name, lambda: self._take_evidence(decision, facts, f"{job.name}-{job.number}"))
            case _:
                pass

    def _clear_after(self, decision: de.Decision, job: Job) -> None:
        """Remove what an attempt that has ended leaves, and nothing needs any more."""
        begin = self._deps.threads.begin
        if isinstance(decision, de.GiveUp | de.Finish | de.Retry):
            begin("container", job.name, lambda: self._remove_container(job.name, decision.attempt))
        if isinstance(decision, de.Finish) and not (decision.by_user or decision.unconfirmed):
            begin("clear", job.name, lambda: clear_snapshots(self._resume_search.snapshots(job.name)))

    def search(self, job: Job, history: History | None) -> None:
        """See `ResumeSearch.search`."""
        self._resume_search.search(job, history)

    def noticed(self, event: ev.Event, job: Job) -> None:
        """See `ResumeSearch.noticed`."""
        self._resume_search.noticed(event, job)
        if isinstance(event, ev.TriageEnded):
            self._deps.threads.begin("clear", job.name, lambda: clear_replays(self._deps.state / "jobs" / job.name))

    def adopt(self, job: str, attempt: int, followed: FollowedAttempt) -> bool:
        """Follow an attempt again whose shim runs, or wrote its record in this boot; return False if there is none."""
        note, running = read_shim(followed.folder), self._deps.launcher.find_shim(job, followed.folder)
        falsified = names_another(followed.folder) if running is None else not is_note_of(note, running)
        if falsified:
            pid = None if note is None else note.pid
            log.error("shim.falsified", extra={"fields": {"job": job, "attempt": attempt, "pid": pid}})
            note = None if running is None else note_of(running)
        followed.other_boot = note is not None and note.boot_id != self._deps.boot_id
        self._deps.attempts.follow(followed)
        if note is None or followed.other_boot:
            return False
        now = self._clock.now()
        self._put(ev.Launched(at=now, job=job, attempt=attempt, shim_pid=note.pid, training_pid=note.training_pid))
        self._deps.exits.add(job, attempt, note.pid, note.start_ticks)
        return True

    def leave_alone(self, job: str, attempt: int) -> None:
        """Read nothing of an attempt, as of a later version's records; a stop of it ends with its processes."""
        self._left_alone.add((job, attempt))

    def take_back(self, job: str, attempt: int) -> None:
        """Treat an attempt that was left alone as any other."""
        self._left_alone.discard((job, attempt))

    def _remove_container(self, job: str, attempt: int) -> None:
        """Have the container of an attempt that is over removed; the next launch does it again where that failed."""
        with contextlib.suppress(EngineError):
            self._deps.containers.clear(job, attempt + 1)

    def _launch_and_release(self, decision: de.Launch, job: Job, launched: threading.Event) -> None:
        try:
            self._launch_now(decision, job)
        finally:
            launched.set()

    def _launch_now(self, decision: de.Launch, job: Job) -> None:
        name, number = job.name, decision.attempt
        try:
            folder = self._begin_attempt(decision, job)
        except Exception as error:
            # Without an answer the job would wait for its shim indefinitely.
            if not isinstance(error, LAUNCH_ERRORS):
                log.exception("act.failed", extra={"fields": {"act": "launch", "job": name}})
            self._put(explain_failed_launch(decision, error, self._clock.now()))
            return
        followed = FollowedAttempt(
            job=name,
            attempt=number,
            folder=folder,
            output_limit_bytes=self._deps.output_limit_bytes(),
        )
        if not self.adopt(name, number, followed):
            # It ended before it could be followed: its files are read, then its end is reported.
            self._deps.attempts.gone(name, number)

    def _begin_attempt(self, decision: de.Launch, job: Job) -> Path:
        """Start an attempt and return its folder. Raises LaunchError, OSError, ValueError."""
        name, number = job.name, decision.attempt
        make_room(self._deps.state / "jobs" / name)
        self._deps.containers.clear(name, number)
        self._resume_search.look(name, number)
        folder = self._prepare_folder(decision, job)
        if decision.resume_from is None:
            self._resume_search.keep_existing_files(name, number, loads_itself=decision.loads_itself)
        if job.attempt is not None and job.attempt.order is not None:
            self._deps.standbys.dismiss(name, folder)
        if not self._deps.standbys.go(name, folder):
            self._deps.launcher.launch(name, folder)
        return folder

    def _prepare_folder(self, decision: de.Launch, job: Job) -> Path:
        settings, deps = self._deps.settings(job.name), self._deps
        composed = deps.compose(job, decision.attempt, decision.resume_from)
        if composed.container is not None:
            deps.containers.keep(job.name, decision.attempt, composed.container)
        folder = prepare(
            deps.state,
            job.name,
            decision.attempt,
            argv=composed.argv,
            cwd=composed.cwd,
            env=composed.env,
            grace_s=settings.grace_s,
            save_s=settings.save_s,
            group=deps.group,
            remedies=composed.remedies,
            code=composed.code,
            command=composed.command,
        )
        if job.ledger.in_a_row < FAULTS_WITH_TUNED:
            self._apply_tuned(job.name, folder)
        elif tuned.find_kept(folder.parent, tuned.launched_command(folder)) is not None:
            log.warning("tuned.left_out", extra={"fields": {"job": job.name, "faults_in_a_row": job.ledger.in_a_row}})
        return folder

    def _apply_tuned(self, job: str, folder: Path) -> None:
        """Give the attempt what a tune has proven; one without it is no worse than before."""
        try:
            settings = tuned.apply_kept(folder, tuned.launched_command(folder), tuned.remedied_settings(folder))
        except (OSError, ValueError) as error:
            log.warning("tuned.failed", extra={"fields": {"job": job, "error": describe_error(error)}})
            return
        if settings:
            log.info("tuned.applied", extra={"fields": {"job": job, "settings": sorted(settings)}})

    def _stop_attempt(self, decision: de.Stop, facts: evidence.EvidenceFacts | None, incident: str) -> None:
        folder = self.folder(decision.job, decision.attempt)
        if self._deps.report_flag(decision):
            return
        if facts is not None:
            try:
                self._take_evidence(decision, facts, incident)
            except Exception as error:
                # A failure to collect evidence must not prevent the stop.
                self._report_failure(decision.job, decision.attempt, "evidence", error)
        if (launched := self._launched.get(decision.job)) is not None:
            launched.wait(2 * LAUNCH_LIMIT_S)
        number = signal.Signals[fo.SHIM_SAVE_AND_END if decision.save else fo.SHIM_END]
        while not self._deps.launcher.signal(decision.job, folder, number):
            # If the signal could not be sent (polkit is not running), it is sent again until the attempt has ended.
            if not self._deps.launcher.alive(decision.job, folder):
                break
            time.sleep(STOP_AGAIN_S)
        else:
            self._put(ev.Signalled(at=self._clock.now(), job=decision.job, attempt=decision.attempt))
        self._report_unread_end(decision.job, decision.attempt)

    def _report_unread_end(self, job: str, attempt: int) -> None:
        """Wait until nothing runs any more of an attempt that was left alone, and report its end."""
        while (job, attempt) in self._left_alone:
            if not self._deps.launcher.alive(job, self.folder(job, attempt)):
                self._left_alone.discard((job, attempt))
                self._put(ev.HostLost(at=self._clock.now(), job=job, attempt=attempt, reason=UNREAD_END))
                return
            time.sleep(STOP_AGAIN_S)

    def _continue_attempt(self, decision: de.Continue) -> None:
        """Have the shim continue what is stopped; where it cannot be reached, the stop that follows says so."""
        folder = self.folder(decision.job, decision.attempt)
        if self._deps.launcher.signal(decision.job, folder, signal.Signals[fo.SHIM_CONTINUE]):
            now = self._clock.now()
            self._put(ev.Continued(at=now, job=decision.job, attempt=decision.attempt, pids=decision.pids))

    def _gather_facts(self, job: Job, history: History | None) -> evidence.EvidenceFacts:
        """Return the facts for the evidence; what cannot be gathered is left out."""
        try:
            return self._deps.evidence(job, history)
        except Exception as error:
            self._report_failure(job.name, job.number, "evidence", error)
            return evidence.EvidenceFacts()

    def _report_failure(self, job: str, attempt: int, place: str, error: Exception) -> None:
        log.error("act.failed", extra={"fields": {"act": place, "job": job}}, exc_info=error)
        self._put(
            ev.SupervisionChanged(
                at=self._clock.now(), job=job, attempt=attempt, place=place, error=describe_error(error)
            )
        )

    def _take_evidence(
        self, decision: de.Stop | de.StartTriage | de.Retry | de.GiveUp, facts: evidence.EvidenceFacts, incident: str
    ) -> None:
        folder = self.folder(decision.job, decision.attempt)
        taken = evidence.take(folder, self._deps.launcher, decision.job, facts, incident)
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

    def _kill_attempt(self, decision: de.Kill) -> None:
        """SIGKILL until nothing is left: by the shim first, which reports the exit; from outside after that."""
        kill_until_gone(self._deps.launcher, decision.job, self.folder(decision.job, decision.attempt), KILL_AGAIN_S)
        self._report_unread_end(decision.job, decision.attempt)

    def _run_last_resort(self, decision: de.LastResort) -> None:
        """Run the command of a last resort within its time limit, and report the result."""
        limit_s = self._deps.settings(decision.job).last_resorts.limit_s
        printed, problem = tools.run(decision.command, limit_s)
        last = (printed.strip().splitlines() or [""])[-1][:RESORT_CHARACTERS]
        fields = {"job": decision.job, "command": shlex.join(decision.command), "problem": problem, "said": last}
        log.warning("last_resort.finished", extra={"fields": fields})
        self._put(
            ev.ResortEnded(
                at=self._clock.now(),
                job=decision.job,
                attempt=decision.attempt,
                kind=decision.kind,
                done=problem is None,
                output=without_secrets(problem or last),
            )
        )


def _ended_without_evidence(decision: de.StartTriage | de.Retry | de.GiveUp, job: Job) -> bool:
    """Whether an attempt ended without being stopped, so that no evidence was collected before."""
    incident, triage_state = job.incident, job.triage
    if isinstance(decision, de.Retry) and decision.refused_environment is not None:
        return False  # it was taken with the first decision
    if (
        triage_state is not None
        and triage_state.attempt == decision.attempt
        and not isinstance(decision, de.StartTriage)
    ):
        return False  # it was taken before its triage
    return incident is not None and incident.attempt == decision.attempt and incident.decision in ("retry", "give_up")


def explain_failed_launch(decision: de.Launch, error: Exception, now: Moment) -> ev.LaunchFailed:
    """Return what came of a launch that raised; what the machine was short of counts against no job, whoever met it."""
    text = cut(str(error), ERROR_CHARS_MAX) if isinstance(error, LAUNCH_ERRORS) else describe_error(error)
    return ev.LaunchFailed(at=now, job=decision.job, attempt=decision.attempt, error=text, shortage=shortage_of(error))
