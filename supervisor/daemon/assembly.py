"""Puts the rooms together: which parts the daemon has and who hands what to whom; each part does its own work."""

from __future__ import annotations

import json
import logging
import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.sink import Sink
from supervisor.config.derive import database_url, expectation_of, limits_of, rules_of
from supervisor.config.redact import redacted
from supervisor.config.settings import JobSettings, Settings
from supervisor.core import events as ev
from supervisor.core.checkpoints import Checkpoint
from supervisor.core.history import History
from supervisor.core.job import ALIVE, Job, Phase, Wish
from supervisor.core.moments import Moment
from supervisor.daemon.announce import Announcer
from supervisor.daemon.attempt_watch import AttemptWatch, Clock
from supervisor.daemon.cards import CardsAnswering, CardsUsed
from supervisor.daemon.checkpoint_watch import CheckpointWatch
from supervisor.daemon.ground import Grounds
from supervisor.daemon.hands import DoingHands, Means
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.keeper import Keeper, World
from supervisor.daemon.loop import Dossier, Loop
from supervisor.daemon.record import BOOT_READ, KERNEL_BOOT, KERNEL_CURSOR, KERNEL_SEQUENCE, StoreRecord
from supervisor.daemon.recovery import Recovery
from supervisor.daemon.seeker import Seeker
from supervisor.daemon.telemetry import KernelWatch, Telemetry
from supervisor.daemon.view import Newest
from supervisor.runner.evidence import EvidenceFacts
from supervisor.runner.launcher import Launcher
from supervisor.runner.proving import Prover
from supervisor.runner.watch import ExitWatch
from supervisor.sources.gpus import GpuWatch
from supervisor.sources.journal import JournalLog
from supervisor.sources.kmsg import KernelLog
from supervisor.sources.last_boot import last_boot
from supervisor.sources.uevents import Uevents
from supervisor.store.store import Store

log = logging.getLogger(__name__)

EVIDENCE_STEPS = 200
EVIDENCE_STILL_S = 5.0
"""A training that made no step for so long stands, and its native stacks say where."""
EVIDENCE_READINGS = 120


class Assembly:
    """All parts of one daemon, made but not started."""

    def __init__(self, settings: Settings, clock: Clock, boot_id: str, launcher: Launcher, group: int | None) -> None:
        self.settings = settings
        self._disk_limit: tuple[Settings | None, float] = (None, 0.0)
        self.clock = clock
        self.boot_id = boot_id
        self.launcher = launcher
        self.state = Path(settings.supervisor.state_dir)
        self.inbox = Inbox()
        self.store = Store.open(database_url(settings.supervisor), clock.now(), boot_id)
        self.sinks = {name: Sink.from_settings(name, one) for name, one in settings.alerts.items()}
        self.announcer = Announcer(store=self.store, sinks=self.sinks, host=platform.node())
        self.sender = AlertSender(self.sinks, self.inbox.put, clock)
        self.gpus = GpuWatch(settings.telemetry.sources)
        self.newest = Newest()
        self.cards = CardsUsed(self.newest)
        self.attempts = AttemptWatch(clock, self.inbox.put, self._cleared)
        self.exits = ExitWatch(lambda gone: self.attempts.gone(gone.job, gone.attempt))
        # The keeper hands the watch what it takes, and the watch tells it of verdicts: one of them is made first.
        self.checkpoints = CheckpointWatch(clock, self.inbox.put, lambda job: self.keeper.sweep(job))  # noqa: PLW0108
        self.keeper = self._keeper()
        self.seeker = self._seeker()
        self.hands = DoingHands(clock, self.inbox.put, self._means(group), self.seeker)
        self.record = StoreRecord(self.store, self.announcer, self.hands.folder, boot_id)
        self.loop = Loop(clock, self.inbox, self.record, self.hands)
        self.telemetry = Telemetry(clock, self.inbox.put, self.gpus, (self.state, *_working_directories(settings)))
        self.kernel = self._kernel_log()
        self.uevents = self._uevents()
        self.loop.may_launch = self.may_launch
        answering = CardsAnswering(lambda: self.settings.telemetry.interval_s)
        self.loop.each_turn.append(lambda event, _: answering.take(event))
        grounds = Grounds(lambda: self.settings, self.loop.dossiers, answering, self.store.experience, self.newest)
        self.loop.ground = grounds.of
        self.telemetry.live = self._live

    def _seeker(self) -> Seeker:
        return Seeker(
            clock=self.clock,
            put=self.inbox.put,
            state=self.state,
            settings=lambda name: self.settings.jobs[name],
            known=self.store.checkpoints,
            keeper=self.keeper,
        )

    def _keeper(self) -> Keeper:
        world = World(
            clock=self.clock,
            put=self.inbox.put,
            state=self.state,
            settings=lambda name: self.settings.jobs[name],
            job=self._job,
            examine=Prover().examine,
        )
        return Keeper(world, self.checkpoints)

    def _job(self, name: str) -> Job | None:
        dossier = self.loop.dossiers.get(name)
        return dossier.job if dossier is not None else None

    def _means(self, group: int | None) -> Means:
        return Means(
            state=self.state,
            launcher=self.launcher,
            job=self._job,
            attempts=self.attempts,
            exits=self.exits,
            settings=lambda name: self.settings.jobs[name],
            evidence=self.evidence,
            gfx_versions=self.cards.gfx_versions,
            visible=self.cards.visible,
            output_limit_bytes=lambda: self.settings.retention.output_limit_mb * 1_000_000,
            with_agent=lambda: self.settings.supervisor.agent,
            group=group,
            boot_id=self.boot_id,
        )

    def _kernel_log(self) -> KernelWatch | None:
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

    def _uevents(self) -> KernelWatch | None:
        if not self.settings.kernel_log.enabled:
            return None
        return KernelWatch(self.clock, self.inbox.put, "uevents", Uevents())

    def read_last_boot(self) -> None:
        """Once in each boot: tell how the one before it ended. Of an earlier one than our first nothing is asked."""
        now = self.clock.now()
        boot_id, _, read_unix_s = (self.store.note(BOOT_READ) or "").partition(" ")
        if boot_id == self.boot_id:
            return
        self.store.set_note(BOOT_READ, f"{self.boot_id} {now.unix_s:.0f}")
        if not boot_id or not self.settings.kernel_log.enabled:
            return
        findings = last_boot(now, float(read_unix_s or 0), self.boot_id)
        for one in findings:
            fields = {"fault": one.fault.value, "gpu": one.gpu, "line": one.line, "remedy": one.remedy}
            log.warning("boot.last_ended_with", extra={"fields": fields})
        if findings:
            self.inbox.put(ev.KernelSaid(at=now, findings=findings))

    # --- jobs -----------------------------------------------------------------------------------------------------

    def take_up_jobs(self) -> None:
        """Make a dossier of each configured job, with what the record knows, and re-adopt what runs."""
        now = self.clock.now()
        known = {job.name: job for job in self.store.load_jobs(now)}
        recovery = Recovery(self.clock, self.hands, self.attempts, self.launcher.alive)
        for name, settings in self.settings.jobs.items():
            dossier = self.add(name, settings, known.get(name), now)
            cursors = self.store.cursors(name, dossier.job.number)
            recovery.take_up(dossier, cursors, self.settings.retention.output_limit_mb * 1_000_000)
        for name in known.keys() - self.settings.jobs.keys():
            if known[name].phase in ALIVE:
                log.warning("job.not_configured", extra={"fields": {"job": name, "phase": known[name].phase.value}})

    def add(self, name: str, settings: JobSettings, known: Job | None, now: Moment) -> Dossier:
        """Begin to hold a job."""
        job = known or _new_job(name, settings, now)
        gpus = self.cards.used_by(settings)
        job, rules = replace(job, limits=limits_of(settings)), rules_of(settings)
        dossier = Dossier(job=job, rules=rules, gpus_used=gpus, expected=expectation_of(settings))
        self.loop.dossiers[name] = dossier
        return dossier

    def may_launch(self) -> bool:
        """Whether the machine is in a state to start anything: a full disk kills every checkpoint to come."""
        host = self.newest.host
        if host is None:
            return True
        # Asked in every turn of every job; the settings only change at a reload, which puts others in their place.
        settings, limit_bytes = self._disk_limit
        if settings is not self.settings:
            limit_bytes = min((_disk_limit_bytes(one) for one in self.settings.jobs.values()), default=0.0)
            self._disk_limit = (self.settings, limit_bytes)
        return all(disk.free_bytes >= limit_bytes for disk in host.disks)

    def _cleared(self, job: str, folder: Path) -> bool:
        if not self.launcher.alive(job, folder):
            return True
        self.launcher.kill_all(job, folder)
        return False

    def _live(self) -> tuple[tuple[str, int, int], ...]:
        live = []
        for dossier in list(self.loop.dossiers.values()):
            job = dossier.job
            if job.phase in ALIVE and job.attempt is not None and job.attempt.shim_pid is not None:
                live.append((job.name, job.attempt.number, job.attempt.shim_pid))
        return tuple(live)

    def evidence(self, job: Job, history: History | None) -> EvidenceFacts:
        """Gather what is known already; called in the deciding thread, before the attempt is touched."""
        if history is None:
            return EvidenceFacts()
        known: tuple[Checkpoint, ...] = self.store.checkpoints(job.name) or ()
        return EvidenceFacts(
            records=list(history.steps)[-EVIDENCE_STEPS:],
            kernel_lines=[one.line for one in history.kernel],
            gpus=[one for readings in history.gpus.values() for one in list(readings)[-EVIDENCE_READINGS:]],
            host=list(history.host)[-EVIDENCE_READINGS:],
            configuration=partial(_configuration, self.settings),
            checkpoints=[Path(path) for path in dict.fromkeys(one.path for one in known)],
            stands_still=(quiet := history.quiet_since()) is not None
            and history.now.seconds_since(quiet) >= EVIDENCE_STILL_S,
        )

    def replace_sinks(self, sinks: dict[str, Sink]) -> None:
        """Send to these receivers from now on; what is under way to the old ones is finished."""
        if sinks == self.sinks:
            return
        old, self.sinks = self.sender, sinks
        self.announcer.sinks = sinks
        self.sender = AlertSender(sinks, self.inbox.put, self.clock)
        self.sender.start()
        old.stop(0.0)

    def on_turn(self, work: Callable[[ev.Event, Moment], None]) -> None:
        """Have `work` done after each turn, in the deciding thread."""
        self.loop.each_turn.append(work)


def _configuration(settings: Settings) -> str:
    return json.dumps(redacted(settings), indent=2, default=str)


def _new_job(name: str, settings: JobSettings, now: Moment) -> Job:
    job = Job(name=name, since=now)
    if settings.autostart:
        return job
    return replace(job, wish=Wish.STOP, phase=Phase.STOPPED, reason="autostart is off")


def _disk_limit_bytes(settings: JobSettings) -> float:
    rule = next((one for one in rules_of(settings) if one.name == "disk_low"), None)
    enabled = rule is not None and rule.enabled and rule.act
    return float(getattr(rule, "limit_bytes", 0)) if enabled else 0.0


def _working_directories(settings: Settings) -> tuple[Path, ...]:
    return tuple(Path(job.cwd) for job in settings.jobs.values() if job.cwd is not None)
