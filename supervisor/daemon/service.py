"""Runs the assembled daemon: threads, periodic work, signals, systemd's questions."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from supervisor.children.prompt_thread import ends_within
from supervisor.children.running_limit import RunningLimit
from supervisor.config.settings import Settings, TuneSettings
from supervisor.control import listen
from supervisor.control.control_socket import ControlSocket
from supervisor.control.metrics_server import MetricsServer
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.tuning.shared_gpu import find_other_program
from supervisor.daemon.alerts.alerting import READ_AGAIN_EVERY_S
from supervisor.daemon.alerts.morning_report import MorningReports
from supervisor.daemon.api import DaemonView, ViewDeps
from supervisor.daemon.checkpoints.candidates import expand_globs
from supervisor.daemon.checkpoints.proof_queue import Saved
from supervisor.daemon.checkpoints.record_pruning import RecordPruner
from supervisor.daemon.cleanup import DAY_S, clear_code, list_jobs, sweep
from supervisor.daemon.clock import begin_limit
from supervisor.daemon.doctor import DaemonChecks
from supervisor.daemon.fence import describe_error
from supervisor.daemon.jobs.forget import ForgetJobs
from supervisor.daemon.jobs.intake import JobIntake
from supervisor.daemon.launch.remedy_context import memory_awaited
from supervisor.daemon.metrics import MetricsCollector, MetricsDeps, Textfile
from supervisor.daemon.periodic import Periodic
from supervisor.daemon.process.ending import end_in_turn
from supervisor.daemon.process.startup import EarlyHangup, return_freed_memory
from supervisor.daemon.process.systemd import Notifier, stop_is_restart
from supervisor.daemon.record.expiry import RetentionClock
from supervisor.daemon.record.outage import record_end, record_outage
from supervisor.daemon.reload import Reloading
from supervisor.daemon.status import line
from supervisor.daemon.training_counts import Counts
from supervisor.daemon.tunes.start_trials import StartDeps
from supervisor.daemon.tunes.tuner import Tuner
from supervisor.daemon.unit_requests import STARTS_EVERY_S
from supervisor.daemon.wiring import Assembly
from supervisor.store.archive import Archive

log = logging.getLogger(__name__)

STATUS_EVERY_S = 5.0
ALERTS_EVERY_S = 0.5
PRUNE_EVERY_S = 60.0
GLOBS_EVERY_S = 5.0
GLOBS_LIMIT_S = 30.0
SWEEP_EVERY_S = 3600.0
SOCKET_EVERY_S = 5.0
STANDBYS_EVERY_S = 1.0
TUNES_EVERY_S = 10.0
READ_GPUS = "read gpus"
THREADS_EVERY_S = 1.0
PERIODIC_LIMIT_S = 60.0
TEXTFILE_EVERY_S = 15.0
REPORTS_EVERY_S = 60.0
RETURN_MEMORY_EVERY_S = 20.0
STOP_MARGIN_S = 30.0
STOP_EXTENDED_EVERY_S = 5.0
PART_LIMIT_S = 10.0
CLOSE_LIMIT_S = 20.0
"""How long the daemon's end waits for the last commit."""


class Service:
    """One run of the daemon, from READY to its exit."""

    def __init__(
        self, parts: Assembly, config: Path, socket_path: Path, notifier: Notifier, refused: str | None = None
    ) -> None:
        """`refused`: why the configuration file is not in force, None where it is."""
        self._parts = parts
        self._notifier = notifier
        self._periodic = Periodic(lambda name: parts.threads.working(parts.threads.post(name), name, PERIODIC_LIMIT_S))
        self._stopping: str | None = None
        self._cause_known = False
        """Whether it has been determined if systemd stops the daemon or restarts it."""
        self._leave_running = False
        self._stop_limit: RunningLimit | None = None
        """The time that its trainings have to end, once it is to stop."""
        self._done_at: dict[str, Moment] = {}
        self._phases: list[Phase] = []
        self._retention_clock = RetentionClock(parts.store, parts.clock.now())
        self._intake = JobIntake(parts)
        self._reloading = Reloading(parts, self._intake.adopt, config, notifier, self._schedule_telemetry)
        self._reloading.refused = refused
        archive = Archive(parts.store.path)
        self._record_pruner = RecordPruner(archive, self._forget_checkpoints)
        self._counts = Counts(parts.loop.job_states)
        self._metrics = self._build_metrics(archive)
        metrics = parts.settings.metrics
        self._scraped = MetricsServer(self._metrics.known, metrics.listen, metrics.hosts)
        self._textfile = Textfile(lambda: parts.settings.metrics.textfile, self._metrics.known)
        self._reports = self._build_reports(archive)
        self._tuner = self._build_tuner()
        view = self._build_view(archive)
        passed = listen.from_systemd(os.environ)
        self._control = ControlSocket(view, socket_path, passed, tuning=view, now=parts.clock.now)

    def _build_reports(self, archive: Archive) -> MorningReports:
        parts = self._parts
        return MorningReports(
            clock=parts.clock,
            inbox=parts.inbox,
            archive=archive,
            host=parts.announcer.host,
            jobs=parts.announcer.jobs,
            policies=parts.announcer.policies,
            queue=parts.announcer.queue_report,
        )

    def _build_tuner(self) -> Tuner:
        return Tuner(
            self._parts.clock,
            self._parts.state,
            self._find_job,
            self._list_tune_settings,
            starts=self._build_start_deps(),
            other_program=self._find_other_program,
        )

    def _build_forget_jobs(self) -> ForgetJobs:
        parts = self._parts
        return ForgetJobs(
            clock=parts.clock,
            inbox=parts.inbox,
            loop=parts.loop,
            store=parts.store,
            commits=parts.commits,
            jobs=parts.state / "jobs",
            requests=parts.requests,
            alive=parts.launcher.alive,
        )

    def _build_view(self, archive: Archive) -> DaemonView:
        parts = self._parts
        deps = ViewDeps(
            clock=parts.clock,
            inbox=parts.inbox,
            loop=parts.loop,
            newest=parts.newest,
            archive=archive,
            state=parts.state,
            database=str(parts.store.path),
            problem=self._describe_problem,
            announcer=parts.announcer,
            reload=self._reloading.reload,
            preview_reload=self._reloading.preview,
            doctor=DaemonChecks(parts).doctor,
            forget=self._build_forget_jobs().forget,
            known=self._metrics.known,
            tuner=self._tuner,
            await_record=parts.store.await_urgent,
            requests=parts.requests,
            estimates=parts.estimates,
            not_configured=parts.left_running.list_jobs,
        )
        return DaemonView(deps)

    def _find_job(self, name: str) -> Job | None:
        """Return a job as the deciding thread knows it."""
        states = self._parts.loop.job_states
        return self._parts.inbox.ask(lambda: states[name].job if name in states else None)

    def _find_other_program(self, name: str) -> str | None:
        """Return which other program uses a GPU of a job, as the deciding thread knows it."""
        states = self._parts.loop.job_states

        def look() -> str | None:
            history = states[name].history if name in states else None
            return None if history is None else find_other_program(history)

        return self._parts.inbox.ask(look)

    def _build_start_deps(self) -> StartDeps:
        parts = self._parts
        return StartDeps(
            job=self._find_job,
            ask=parts.inbox.put,
            command=lambda name: parts.settings.jobs[name].command,
            environments=lambda name: tuple(parts.settings.jobs[name].environments),
            generations=lambda name: parts.collector.store_of(name).all(),
            why_not=self._find_reason_against_starts,
        )

    def _find_reason_against_starts(self, name: str) -> str | None:
        """Return why a tune can order no start of a job."""
        if self._parts.leads:
            return "the leader of the training orders its starts"
        settings = self._parts.settings.jobs.get(name)
        if settings is None or not settings.checkpoints.keep:
            return "no copies of what it saves are kept (checkpoints.keep)"
        return None

    def _list_tune_settings(self) -> dict[str, TuneSettings]:
        return {name: job.tune for name, job in self._parts.settings.jobs.items()}

    def _build_metrics(self, archive: Archive) -> MetricsCollector:
        parts = self._parts
        deps = MetricsDeps(
            clock=parts.clock,
            inbox=parts.inbox,
            states=parts.loop.job_states,
            counts=self._counts,
            readings=lambda: (tuple(parts.newest.gpus.values()), parts.newest.host),
            sources=parts.gpus.status,
            archive=archive,
            store_problem=lambda: parts.store.problem,
            database_writes=parts.commits.took_s.known,
            unit=lambda job, attempt: parts.launcher.find_unit(job, parts.executor.folder(job, attempt)),
            receivers=lambda: tuple(parts.announcer.floors()),
            interval_s=lambda: parts.settings.telemetry.interval_s,
        )
        return MetricsCollector(deps)

    def run(self) -> int:
        """Run until a stop is requested; return the exit status."""
        parts = self._parts
        self._read_gpus_once()
        record_outage(parts.store, parts.clock.now())
        parts.read_last_boot()
        self._intake.take_up_all()
        parts.attempts.catch_up()
        parts.commits.begin()
        self._start_threads()
        early = signal.getsignal(signal.SIGHUP)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if isinstance(early, EarlyHangup) and early.came:
            parts.inbox.later(self._begin_reload)
        self._counts.begin()
        self._follow_turns()
        self._notifier.ready()
        log.info("daemon.ready", extra={"fields": {"pid": os.getpid(), "jobs": list(parts.loop.job_states)}})
        try:
            parts.loop.run(self._is_finished)
        finally:
            self._end_parts()
        return 0

    def _follow_turns(self) -> None:
        parts = self._parts
        for work in (
            self._counts.take,
            parts.standbys.take,
            self._read_freed_gpus,
            self._take_up_absence,
            self._watch_newest,
            self._send_alerts,
            self._ping_watchdog,
            self._check_threads,
            self._send_status,
            lambda _, now: self._extend_stop(now),
            self._prune_record,
        ):
            parts.on_turn(work)

    def _read_gpus_once(self) -> None:
        now = self._parts.clock.now()
        self._parts.newest.take(ev.GpusRead(at=now, readings=self._parts.gpus.read(now)))

    def _start_threads(self) -> None:
        parts = self._parts
        parts.threads.keep("presence", parts.presence.keep)
        parts.attempts.start()
        parts.receivers.start()
        for watch in (parts.kernel, parts.uevents):
            if watch is not None:
                parts.threads.keep(watch.name, watch.run)
        self._schedule_telemetry(parts.settings)
        self._periodic.every(GLOBS_EVERY_S, "checkpoint globs", self._look_for_checkpoints)
        self._periodic.every(TUNES_EVERY_S, "tunes", self._tuner.begin_due)
        self._periodic.every(STANDBYS_EVERY_S, "standbys", parts.standbys.look)
        self._periodic.every(STARTS_EVERY_S, "starts of units", parts.unit_requests.find_starts)
        self._periodic.every(SOCKET_EVERY_S, "control socket", self._control.keep_served)
        self._periodic.every(SWEEP_EVERY_S, "sweep attempts", self._sweep_attempts)
        self._periodic.every(TEXTFILE_EVERY_S, "metrics textfile", self._textfile.write)
        self._periodic.every(REPORTS_EVERY_S, "morning reports", self._reports.look)
        self._periodic.every(RETURN_MEMORY_EVERY_S, "return memory", return_freed_memory)
        self._periodic.every(READ_AGAIN_EVERY_S, "read receivers", self._read_receivers)
        self._periodic.start()
        self._control.start()
        self._scraped.start()

    def _schedule_telemetry(self, settings: Settings) -> None:
        interval_s = settings.telemetry.interval_s
        self._periodic.every(interval_s, READ_GPUS, self._parts.telemetry.read_gpus)
        self._periodic.every(interval_s, "read machine", self._parts.telemetry.read_host)
        self._periodic.every(interval_s, "read processes", self._parts.telemetry.read_processes)

    def _read_receivers(self) -> None:
        self._parts.receivers.read_again(self._parts.inbox.later)

    def _sweep_attempts(self) -> None:
        parts = self._parts
        days, unix_s = parts.settings.retention.incidents_days, self._retention_clock.unix_s
        for job in list_jobs(parts.state):  # each in its own thread: the folder of one may hang
            work = partial(sweep, parts.state / "jobs" / job, days, unix_s)
            parts.threads.lane("sweep", job).do("sweeping its attempts", work, key="sweep")
        clear = partial(clear_code, parts.code_copies, parts.state, parts.launcher.alive)
        parts.threads.lane("sweep", "code", of_job=False).do("removing code of earlier versions", clear, key="sweep")
        self._prune_checkpoints()

    def _prune_checkpoints(self) -> None:
        """Have each job's thread check which recorded checkpoints still exist: their file system may hang."""
        parts = self._parts
        before_unix_s = self._retention_clock.unix_s - parts.settings.retention.step_metrics_days * DAY_S
        for job in parts.settings.jobs:
            prune = partial(self._record_pruner.prune, job, before_unix_s)
            parts.threads.lane("checkpoints", job).do("pruning checkpoints from the record", prune, key="prune")

    def _forget_checkpoints(self, job: str, gone: tuple[Checkpoint, ...]) -> None:
        self._parts.commits.change("forgetting checkpoints", partial(self._parts.store.forget_checkpoints, job, gone))

    def _look_for_checkpoints(self) -> None:
        parts = self._parts
        parts.collector.end_gone(parts.settings.jobs)
        for job, attempt, _ in parts.telemetry.live():
            settings = parts.settings.jobs[job]
            if settings.checkpoints.paths:
                where = parts.resume_search.working_directory(job, settings)
                look = partial(self._look_at_globs, job, attempt, settings.checkpoints.paths, where)
                what = f"looking for {', '.join(settings.checkpoints.paths)} in {where}"
                parts.threads.lane("checkpoints", job).do(what, look, key="globs", limit_s=GLOBS_LIMIT_S)

    def _look_at_globs(self, job: str, attempt: int, paths: Sequence[str], where: str) -> None:
        parts = self._parts
        parts.resume_search.look(job, attempt)
        for path in expand_globs(paths, where):
            prove = partial(parts.collector.proofs.prove, job)
            saved = Saved(job=job, attempt=attempt, path=Path(path), prove=prove)
            parts.collector.offer_found(saved, parts.clock.now())

    # --- after each turn, in the deciding thread ------------------------------------------------------------------

    def _is_due(self, name: str, now: Moment, every_s: float) -> bool:
        last = self._done_at.get(name)
        if last is not None and now.seconds_since(last) < every_s:
            return False
        self._done_at[name] = now
        return True

    def _watch_newest(self, event: ev.Event, now: Moment) -> None:
        self._parts.newest.take(event)
        if isinstance(event, ev.ClockStepped):
            log.warning("clock.stepped", extra={"fields": {"by_s": event.by_s}})
            self._periodic.clock_stepped(datetime.fromtimestamp(now.unix_s, tz=timezone.utc))

    def _take_up_absence(self, event: ev.Event, _: Moment) -> None:
        """Extend the threads' deadlines by the outage: a thread that could not run does not hang."""
        if isinstance(event, ev.DaemonAway):
            log.warning("daemon.suspended", extra={"fields": {"away_s": event.away_s}})
            self._parts.threads.move_on(event)

    def _read_freed_gpus(self, event: ev.Event, now: Moment) -> None:
        """Read the GPUs more often after an attempt ended: the next launch waits until its memory is released."""
        if isinstance(event, ev.Exited | ev.HostLost | ev.Tick):
            jobs = [job_state.job for job_state in self._parts.loop.job_states.values()]
            if memory_awaited(jobs, now):
                self._periodic.soon(READ_GPUS, datetime.fromtimestamp(now.unix_s, tz=timezone.utc))

    def _send_alerts(self, _: ev.Event, now: Moment) -> None:
        if self._is_due("alerts", now, ALERTS_EVERY_S):
            self._parts.announcer.send_due(self._parts.receivers.sender, now)

    def _ping_watchdog(self, _: ev.Event, now: Moment) -> None:
        interval_s = self._notifier.watchdog_interval_s
        if interval_s is not None and self._is_due("watchdog", now, interval_s) and not self._notifier.watchdog():
            del self._done_at["watchdog"]  # sent again in the next turn

    def _check_threads(self, _: ev.Event, now: Moment) -> None:
        if self._is_due("threads", now, THREADS_EVERY_S):
            self._parts.attempts.check(now)
            self._parts.threads.check(now)

    def _describe_problem(self) -> str | None:
        """Return the problems that keep the daemon from doing all of its work."""
        parts = self._parts
        failed = next((f"{part} failed: {why}" for part, why in parts.loop.fences.failures.items()), None)
        threads = parts.threads.problem(parts.clock.now()) or self._periodic.problem
        sockets = self._control.problem or self._scraped.problem
        return parts.store.problem or failed or threads or self._reloading.refused or sockets

    def _send_status(self, _: ev.Event, now: Moment) -> None:
        jobs = [job_state.job for job_state in self._parts.loop.job_states.values()]
        phases = [job.phase for job in jobs]
        if phases != self._phases or self._is_due("status", now, STATUS_EVERY_S):
            self._phases = phases
            self._notifier.status(line(jobs, self._describe_problem()))

    def _prune_record(self, _: ev.Event, now: Moment) -> None:
        if self._is_due("prune", now, PRUNE_EVERY_S):
            expiry_unix_s = self._retention_clock.advance(now)
            prune = partial(self._parts.store.prune, now, self._parts.settings.retention, expiry_unix_s)
            self._parts.commits.change("pruning the record", prune, key="prune")

    # --- the end --------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, _: object) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGHUP:
            self._parts.inbox.later(self._begin_reload)
        elif self._stopping is not None:
            self._leave_running = True  # requested twice: do not wait
        else:
            self._stopping = name
            self._parts.inbox.later(self._begin_stop)

    def _reload(self) -> None:
        self._reloading.reload()

    def _begin_reload(self) -> None:
        self._parts.threads.begin("reading the configuration", "the daemon", self._reload)

    def _begin_stop(self) -> None:
        log.info("daemon.stopping", extra={"fields": {"signal": self._stopping}})

        def ask() -> None:
            leave = False
            try:
                leave = stop_is_restart()
            finally:
                self._parts.inbox.later(lambda: self._stop_or_leave(leave=leave))

        # systemctl may take seconds; until it answers, trainings are supervised as before.
        try:
            self._parts.threads.begin("asking systemd", "the daemon", ask)
        except (RuntimeError, MemoryError) as error:  # no room for a thread: the daemon is to end all the same
            log.warning("stop.cause_unknown", extra={"fields": {"error": describe_error(error)}})
            self._stop_or_leave(leave=False)

    def _stop_or_leave(self, *, leave: bool) -> None:
        self._cause_known = True
        if leave:
            self._leave_running = True
            return
        self._notifier.stopping()
        parts = self._parts
        now = parts.clock.now()
        longest_s = max(
            (settings.save_s + settings.grace_s + settings.kill_wait_s for settings in parts.settings.jobs.values()),
            default=0,
        )
        self._stop_limit = begin_limit(parts.clock, longest_s + STOP_MARGIN_S)
        self._extend_stop(now)
        for name in parts.loop.job_states:
            parts.inbox.put(ev.UserRequest(at=now, job=name, ask=ev.Ask.SHUT_DOWN, by=self._stopping or "signal"))

    def _extend_stop(self, now: Moment) -> None:
        """Ask systemd for the time that the trainings may take to end, again in case that it was not received."""
        if self._stop_limit is not None and self._is_due("extend stop", now, STOP_EXTENDED_EVERY_S):
            self._stop_limit.next_wait_s()  # counts the time until now
            left_s = max(0.0, self._stop_limit.left_s)
            self._notifier.extend_timeout(left_s + STOP_MARGIN_S, again=True)

    def _is_finished(self) -> bool:
        if self._leave_running:
            return True
        if self._stop_limit is not None and self._stop_limit.next_wait_s() == 0:
            # systemd would kill the daemon soon; what still runs is adopted by the next one.
            left = [job for job, _, _ in self._parts.telemetry.live()]
            log.error("stop.overdue", extra={"fields": {"left_running": left}})
            return True
        if self._stopping is None or not self._cause_known or not self._parts.inbox.empty():
            return False  # the end of a training brings the report of what it saved last
        jobs = [job_state.job for job_state in self._parts.loop.job_states.values()]
        return all(
            job.shutting_down and ((job.phase not in ALIVE and not job.replaying) or job.unkillable) for job in jobs
        )

    def _end_parts(self) -> None:
        parts = self._parts
        self._notifier.stopping()
        end_in_turn(
            self._notifier,
            (
                ("tunes", partial(self._end_looking_at_files, "tunes", self._tuner.end)),
                ("threads", parts.threads.end),
                ("presence", parts.presence.end),
                ("control socket", self._control.stop),
                ("metrics", self._scraped.stop),
                ("periodic work", self._periodic.stop),
                ("standbys", partial(self._end_looking_at_files, "standbys", parts.standbys.end)),
                ("attempts", parts.attempts.end),
                ("checkpoints", parts.collector.end),
                ("alerts", self._end_alerts),
                ("exits", parts.exits.close),
                ("gpus", parts.gpus.close),
                ("end of the record", lambda: record_end(parts.store, parts.clock.now())),
                ("record", lambda: parts.commits.close(parts.clock.now(), CLOSE_LIMIT_S)),
            ),
        )
        left = [job for job, _, _ in parts.telemetry.live()] if self._leave_running else []
        waiting = [*parts.attempts.list_blocked(), *parts.threads.list_waiting(parts.clock.now())]
        log.info("daemon.ended", extra={"fields": {"left_running": left, "waiting": waiting}})

    def _end_alerts(self) -> None:
        parts = self._parts
        parts.announcer.send_due(parts.receivers.sender, parts.clock.now())
        parts.receivers.stop(2.0)

    @staticmethod
    def _end_looking_at_files(what: str, end: Callable[[], object]) -> None:
        """End a part that changes files of attempts, whose file system may hang."""
        if not ends_within(PART_LIMIT_S, f"end of {what}", end):
            log.error("daemon.part_not_ended", extra={"fields": {"part": what, "limit_s": PART_LIMIT_S}})
