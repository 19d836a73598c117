"""Builds the parts of the daemon and connects them to each other."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from supervisor.children.files_apart import Look, apart, here
from supervisor.config.derive import database_url, disk_paths, disks_of, expectation_of, limits_of, rules_of
from supervisor.config.redact import redacted
from supervisor.config.settings import JobSettings, Settings
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.history import History
from supervisor.core.job import ALIVE, DesiredState, Job, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.alerts.alerting import Announcer, Receivers
from supervisor.daemon.alerts.loss_pictures import LossPictures
from supervisor.daemon.attempt_reader import AttemptReader
from supervisor.daemon.checkpoints.collector import CollectorDeps
from supervisor.daemon.checkpoints.per_job import JobCollectors
from supervisor.daemon.checkpoints.recorded import ReadInTime
from supervisor.daemon.checkpoints.resume_search import ResumeSearch
from supervisor.daemon.checkpoints.save_steps import SaveSteps
from supervisor.daemon.clock import Clock, Presence, SystemClock, boot_id
from supervisor.daemon.executor import ExecutorDeps, ThreadExecutor
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.job_state import JobState
from supervisor.daemon.launch.containers import Containers
from supervisor.daemon.launch.disk_room import DiskRoom
from supervisor.daemon.launch.environment_proof import EnvironmentProof
from supervisor.daemon.launch.gpus import GpuAvailability, JobGpus
from supervisor.daemon.launch.last_resorts import Installed
from supervisor.daemon.launch.launch_spec import LaunchBuilder, LaunchOrder
from supervisor.daemon.launch.launchers import launcher_of
from supervisor.daemon.launch.remedy_context import RemedyContextReader
from supervisor.daemon.launch.short_run import ShortRuns
from supervisor.daemon.launch.standby import StandbyDeps, StandbyStarter
from supervisor.daemon.loop import Loop
from supervisor.daemon.process.removed_jobs import LeftRunning
from supervisor.daemon.process.startup import clear_places, lock_database, lock_state
from supervisor.daemon.record.commit_thread import CommitThread
from supervisor.daemon.record.kept_estimates import KeptEstimates
from supervisor.daemon.record.persistence import BOOT_READ, KERNEL_BOOT, KERNEL_CURSOR, KERNEL_SEQUENCE, StoreRecord
from supervisor.daemon.stop_requests import StopRequests
from supervisor.daemon.telemetry import KernelWatch, NewestReadings, Telemetry
from supervisor.daemon.threads import Threads
from supervisor.daemon.unit_requests import UnitRequests
from supervisor.runner.code_copy import CodeCopies
from supervisor.runner.evidence import EvidenceFacts
from supervisor.runner.exit_watch import ExitWatch
from supervisor.runner.launcher import Launcher
from supervisor.runner.mounts import is_local
from supervisor.runner.proving import Prover
from supervisor.sources.gpu.gpus import GpuWatch
from supervisor.sources.kernel.journal import JournalLog
from supervisor.sources.kernel.kmsg import KernelLog
from supervisor.sources.kernel.last_boot import last_boot
from supervisor.sources.kernel.uevents import Uevents
from supervisor.store.files import database_path
from supervisor.store.store import Store

log = logging.getLogger(__name__)

EVIDENCE_STEPS = 200
EVIDENCE_STILL_S = 5.0
"""Evidence includes native stacks once a training has made no step for this long."""
EVIDENCE_READINGS = 120
EVIDENCE_RECORD_S = 0.5
"""How long the evidence waits for the record's list of checkpoints: the training is stopped only then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderHooks:
    """What a leader of several nodes decides in place of this daemon; without one, nothing."""

    leads: bool = False
    """Whether there is one: then it chooses what is resumed from."""
    may_launch: Callable[[], bool] = lambda: True
    take_order: Callable[[int], LaunchOrder | None] = lambda _: None
    """See `LaunchBuilder.order`."""
    report_flag: Callable[[de.Stop], bool] = lambda _: False
    """See `ExecutorDeps.report_flag`."""
    report_warning: Callable[[de.Warn], None] = lambda _: None
    """See `ExecutorDeps.report_warning`."""


@contextmanager
def assemble(settings: Settings) -> Iterator[Assembly]:
    """Yield the parts of a daemon, whose state directory is this process's alone meanwhile.

    Raises StateLockedError, LauncherError, StoreError, OSError.
    """
    state = Path(settings.supervisor.state_dir)
    state.mkdir(parents=True, exist_ok=True)
    locks: list[int | None] = [lock_state(state)]
    try:
        database = database_path(database_url(settings.supervisor))
        clear_places(state, database)
        locks.append(lock_database(database))
        chosen = launcher_of(settings.supervisor.launcher, state)
        yield Assembly(settings, SystemClock(), boot_id(), chosen.launcher, chosen.group)
    finally:
        for lock in locks:
            if lock is not None:
                os.close(lock)


class Assembly:
    """All parts of one daemon, made but not started."""

    def __init__(self, settings: Settings, clock: Clock, boot_id: str, launcher: Launcher, group: int | None) -> None:
        self.settings = settings
        self.clock, self.boot_id, self.launcher = clock, boot_id, launcher
        self.state = Path(settings.supervisor.state_dir)
        self.removed, self.left_running = set[str](), LeftRunning()
        """Jobs that are not configured any more and have settings until their training has ended."""
        self._leads = LeaderHooks()
        self.inbox = Inbox()
        self.store = Store.open(database_url(settings.supervisor), clock.now(), boot_id)
        self.receivers = self._build_receivers()
        self.announcer = self._build_announcer()
        self.gpus, self.newest = GpuWatch(settings.telemetry.sources), NewestReadings()
        self.job_gpus = JobGpus(self.newest)
        self.disk_room = DiskRoom(lambda: self.settings, self.newest)
        self.threads = Threads(clock, self.inbox.put)
        self.requests = StopRequests(self.state, self.threads)
        self._look = self._choose_look()
        self.unit_requests = self._build_unit_requests()
        self.attempts = self._build_attempt_reader()
        self.exits = ExitWatch(lambda gone: self.attempts.gone(gone.job, gone.attempt))
        self.save_steps = SaveSteps(clock, self.state, self._find_job, boot_id)
        self.code_copies = CodeCopies(self.state, same_user=group is None)
        self.collector = self._build_collector()
        runs = ShortRuns(clock, self.state, self.launcher, self.code_copies.current, group)
        self.containers = Containers(self.state, runs, lambda name: self.settings.jobs[name], boot_id)
        self.resume_search = self._build_resume_search(runs)
        self.compose = self._build_launch_builder()
        self.standbys = self._build_standbys(group)
        self.executor = ThreadExecutor(clock, self.inbox.put, self._build_executor_deps(group), self.resume_search)
        self.record = StoreRecord(self.store, self.announcer, self.executor.folder, boot_id)
        self.loop = Loop(clock, self.inbox, self.record, self.executor)
        self.commits = CommitThread(self.store, self.threads, self._act_after_commit, clock)
        self.telemetry = Telemetry(clock, self.inbox.put, self.gpus, self.list_disks, self.threads)
        self.kernel, self.uevents = self._build_kernel_log(), self._build_uevents()
        self.presence = Presence(clock)
        self._connect()

    def _connect(self) -> None:
        """Give parts what is made after them."""
        self.telemetry.live = self._list_live
        self.record.failed = self.loop.job_not_kept
        self.loop.may_launch = lambda job_state: self.disk_room.may_launch(job_state) and self._leads.may_launch()
        self.loop.absences = self.presence.taken
        answering = GpuAvailability(lambda: self.settings.telemetry.interval_s)
        self.on_turn(lambda event, _: answering.take(event))
        self.estimates = KeptEstimates(self.store, self._find_command)
        self.loop.find_remedy_context = RemedyContextReader(
            lambda: self.settings,
            self.loop.job_states,
            answering,
            self.store.experience,
            self.newest,
            estimate=self.estimates.find,
            installed=Installed(self.clock, self.threads),
        ).of

    def _find_command(self, job: str) -> Sequence[str] | None:
        """Return the command that a job has by the configuration in force."""
        settings = self.settings.jobs.get(job)
        return None if settings is None else settings.command

    def lead(self, hooks: LeaderHooks) -> None:
        """Have launches and flags left to the leader of a training on several nodes; before anything is started."""
        self._leads = hooks

    @property
    def leads(self) -> bool:
        """Whether a leader of a training on several nodes decides of launches."""
        return self._leads.leads

    def _report_flag(self, decision: de.Stop) -> bool:
        return self._leads.report_flag(decision)

    def _report_warning(self, decision: de.Warn) -> None:
        self._leads.report_warning(decision)

    def _take_order(self, attempt: int) -> LaunchOrder | None:
        return self._leads.take_order(attempt)

    def _list_jobs(self) -> list[Job]:
        return [job_state.job for job_state in list(self.loop.job_states.values())]

    def _build_receivers(self) -> Receivers:
        return Receivers(
            self.settings.alerts,
            self.inbox.put,
            self.clock,
            lambda name: self.store.hasten_alerts(name, self.clock.now()),
            LossPictures(self.store.path).draw,
        )

    def _build_announcer(self) -> Announcer:
        return Announcer(
            store=self.store,
            host=platform.node(),
            floors=lambda: self.receivers.floors,
            policies=lambda: self.receivers.policies,
            problems=lambda: self.receivers.problems,
            warnings=lambda: self.receivers.warnings,
            jobs=self._list_jobs,
        )

    def _choose_look(self) -> Look:
        """Return how files of attempts are looked at.

        A read that hangs would keep a node's daemon from its end, whose ranks must end with it. Any other keeps the
        recorder open: a disk that fails on each open would look like a training that makes no step.
        """
        held = self.settings.supervisor.launcher == "held"
        return apart if held and not is_local(self.state / "jobs") else here

    def _build_unit_requests(self) -> UnitRequests:
        return UnitRequests(
            clock=self.clock,
            put=self.inbox.put,
            kept=self.requests,
            jobs=self._list_jobs,
            folder=lambda job, attempt: self.executor.folder(job, attempt),  # noqa: PLW0108 - made later
            look=self._look,
        )

    def _build_attempt_reader(self) -> AttemptReader:
        attempts = AttemptReader(self.clock, self.inbox.put, self._clear_remains, self.inbox.waiting, self.threads)
        attempts.look = self._look
        attempts.find_stop = self.unit_requests.find_stop
        return attempts

    def _build_resume_search(self, runs: ShortRuns) -> ResumeSearch:
        return ResumeSearch(
            clock=self.clock,
            put=self.inbox.put,
            state=self.state,
            settings=lambda name: self.settings.jobs[name],
            known=ReadInTime(self.store.checkpoints, self.threads),
            collector=self.collector,
            steps=self.save_steps,
            threads=self.threads,
            jobs=lambda: self.settings.jobs,
            left_to_leader=lambda: self._leads.leads,
            environment_problem=EnvironmentProof(
                runs=runs,
                containers=self.containers,
                settings=lambda name: self.settings.jobs[name],
                job=self._find_job,
            ).find_problem,
        )

    def _build_collector(self) -> JobCollectors:
        world = CollectorDeps(
            clock=self.clock,
            put=self.inbox.put,
            state=self.state,
            settings=lambda name: self.settings.jobs[name],
            job=self._find_job,
            examine=Prover(program=lambda: self.code_copies.current_or_installed().prover).examine,
            step_of=self.save_steps.step_of,
            is_complete=self.save_steps.is_complete,
        )
        return JobCollectors(world, self.threads)

    def _find_job(self, name: str) -> Job | None:
        job_state = self.loop.job_states.get(name)
        return job_state.job if job_state is not None else None

    def _build_executor_deps(self, group: int | None) -> ExecutorDeps:
        return ExecutorDeps(
            state=self.state,
            launcher=self.launcher,
            job=self._find_job,
            attempts=self.attempts,
            exits=self.exits,
            settings=lambda name: self.settings.jobs[name],
            evidence=self.evidence,
            compose=self.compose,
            standbys=self.standbys,
            output_limit_bytes=lambda: self.settings.retention.output_limit_mb * 1_000_000,
            group=group,
            boot_id=self.boot_id,
            threads=self.threads,
            containers=self.containers,
            find_stop_at=self.unit_requests.find_stop_at,
            report_flag=self._report_flag,
            report_warning=self._report_warning,
        )

    def _build_launch_builder(self) -> LaunchBuilder:
        return LaunchBuilder(
            clock=self.clock,
            state=self.state,
            settings=lambda name: self.settings.jobs[name],
            gfx_versions=self.job_gpus.gfx_versions,
            visible=self.job_gpus.visible,
            with_agent=lambda: self.settings.supervisor.agent,
            code=self.code_copies.current,
            kept=lambda job: self.collector.store_of(job).all(),
            known=ReadInTime(self.store.checkpoints, self.threads),
            saves=self.save_steps.saves,
            order=self._take_order,
        )

    def _build_standbys(self, group: int | None) -> StandbyStarter:
        world = StandbyDeps(
            clock=self.clock,
            state=self.state,
            launcher=self.launcher,
            settings=lambda name: self.settings.jobs.get(name),  # noqa: PLW0108 - a reload puts others in their place
            job_states=lambda: self.loop.job_states,
            host=lambda: self.newest.host,
            compose=self.compose,
            with_agent=lambda: self.settings.supervisor.agent,
            group=group,
        )
        return StandbyStarter(world)

    def _build_kernel_log(self) -> KernelWatch | None:
        if not self.settings.kernel_log.enabled:
            return None
        sequence = self.store.note(KERNEL_SEQUENCE)
        kernel_log = KernelLog(
            Path(self.settings.kernel_log.path),
            self.settings.kernel_log.accept_user_records,
            self.store.note(KERNEL_BOOT),
            int(sequence) if sequence is not None and sequence.isdecimal() else None,
        )
        if kernel_log.problem is not None and shutil.which("journalctl") is not None:
            log.warning("kernel_log.by_journal", extra={"fields": {"reason": kernel_log.problem}})
            journal = JournalLog(
                self.store.note(KERNEL_CURSOR) or None, accept_user_records=self.settings.kernel_log.accept_user_records
            )
            return KernelWatch(self.clock, self.inbox.put, "journal", journal)
        return KernelWatch(self.clock, self.inbox.put, "kmsg", kernel_log)

    def _build_uevents(self) -> KernelWatch | None:
        if not self.settings.kernel_log.enabled:
            return None
        return KernelWatch(self.clock, self.inbox.put, "uevents", Uevents())

    def read_last_boot(self) -> None:
        """Report once in each boot how the previous one ended; boots before the daemon's first are not read."""
        now = self.clock.now()
        boot_id, _, read_unix_s = (self.store.note(BOOT_READ) or "").partition(" ")
        if boot_id == self.boot_id:
            return
        self.store.set_note(BOOT_READ, f"{self.boot_id} {now.unix_s:.0f}")
        if not boot_id or not self.settings.kernel_log.enabled:
            return
        findings = last_boot(now, float(read_unix_s or 0), self.boot_id)
        for finding in findings:
            fields = {"fault": finding.fault.value, "gpu": finding.gpu, "line": finding.line, "remedy": finding.remedy}
            log.warning("boot.previous_fault", extra={"fields": fields})
        if findings:
            self.inbox.put(ev.KernelReported(at=now, findings=findings))

    # --- jobs -----------------------------------------------------------------------------------------------------

    def add(self, name: str, settings: JobSettings, known: Job | None, now: Moment) -> JobState:
        """Begin to hold a job."""
        job = known or _new_job(name, settings, now)
        gpus = self.job_gpus.used_by(settings)
        job, rules = replace(job, limits=limits_of(settings)), rules_of(settings)
        job_state = JobState(
            job=job,
            rules=rules,
            gpus_used=gpus,
            disks=self.find_disks(settings),
            expected=expectation_of(settings),
        )
        self.loop.job_states[name] = job_state
        return job_state

    def list_disks(self) -> tuple[Path, ...]:
        """Return the paths by which disks are read for all jobs."""
        return disk_paths(self.settings.supervisor, *self.settings.jobs.values())

    def find_disks(self, settings: JobSettings) -> frozenset[str]:
        """Return the paths by which the disks are read that a job writes to."""
        return disks_of(self.settings.supervisor, settings)

    def _clear_remains(self, job: str, folder: Path, has_exit_record: bool) -> bool:  # noqa: FBT001 - AttemptReader's seam
        # systemd ends what a shim leaves in its unit: after an exit record, its user has started that unit again.
        if has_exit_record and self.launcher.find_unit(job, folder) is not None:
            return True
        if not self.launcher.alive(job, folder):
            return True
        self.launcher.kill_all(job, folder)
        return False

    def _act_after_commit(self) -> None:
        """Wake the deciding thread where an act or a row waits for a commit; called in the commit thread."""
        if self.loop.acts.holding or self.store.awaits_commit:
            self.inbox.later(self._take_in_commit)

    def _take_in_commit(self) -> None:
        self.store.settle(self.clock.now())
        self.loop.act_on_recorded()

    def _list_live(self) -> tuple[tuple[str, int, int], ...]:
        live = []
        for job_state in list(self.loop.job_states.values()):
            job = job_state.job
            if job.phase in ALIVE and job.attempt is not None and job.attempt.shim_pid is not None:
                live.append((job.name, job.attempt.number, job.attempt.shim_pid))
        return tuple(live)

    def evidence(self, job: Job, history: History | None) -> EvidenceFacts:
        """Return the facts already in memory; called in the deciding thread, before the attempt is stopped."""
        if history is None:
            return EvidenceFacts()
        return EvidenceFacts(
            records=list(history.steps)[-EVIDENCE_STEPS:],
            kernel_lines=[finding.line for finding in history.kernel.findings],
            gpus=[reading for readings in history.gpus.values() for reading in list(readings)[-EVIDENCE_READINGS:]],
            host=list(history.host)[-EVIDENCE_READINGS:],
            configuration=partial(_dump_configuration, self.settings),
            checkpoints=partial(self._list_checkpoints, job.name),
            stands_still=(quiet := history.no_step_since()) is not None
            and history.seconds_since(quiet) >= EVIDENCE_STILL_S,
        )

    def _list_checkpoints(self, job: str) -> list[Path]:
        known = ReadInTime(self.store.checkpoints, self.threads, EVIDENCE_RECORD_S)(job) or ()
        return [Path(path) for path in dict.fromkeys(checkpoint.path for checkpoint in known)]

    def on_turn(self, work: Callable[[ev.Event, Moment], None]) -> None:
        """Have `work` done after each turn, in the deciding thread."""
        self.loop.each_turn.append(work)


def _dump_configuration(settings: Settings) -> str:
    return json.dumps(redacted(settings), indent=2, default=str)


def _new_job(name: str, settings: JobSettings, now: Moment) -> Job:
    job = Job(name=name, since=now)
    if settings.autostart:
        return job
    return replace(job, desired_state=DesiredState.STOP, phase=Phase.STOPPED, reason="autostart is off")
