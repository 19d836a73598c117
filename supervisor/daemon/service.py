"""Runs the assembled daemon: threads, periodic work, signals, systemd's questions; it decides nothing about a job."""

from __future__ import annotations

import logging
import os
import signal
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.control import listen
from supervisor.control.server import ControlServer
from supervisor.core import events as ev
from supervisor.core.job import ALIVE, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.assembly import Assembly
from supervisor.daemon.checkpoint_watch import Saved
from supervisor.daemon.notify import Notifier
from supervisor.daemon.periodic import Periodic
from supervisor.daemon.reload import Reloading
from supervisor.daemon.resume import globbed
from supervisor.daemon.status import line
from supervisor.daemon.stopping import stop_is_restart
from supervisor.daemon.surroundings import Surroundings
from supervisor.daemon.sweep import sweep
from supervisor.daemon.view import DaemonView
from supervisor.store.archive import Archive

log = logging.getLogger(__name__)

STATUS_EVERY_S = 5.0
ALERTS_EVERY_S = 0.5
PRUNE_EVERY_S = 60.0
GLOBS_EVERY_S = 10.0
SWEEP_EVERY_S = 3600.0
WATCH_STALE_S = 10.0
"""The thread that follows attempts must have looked so recently, or the watchdog is not told that all is well."""


class Service:
    """One run of the daemon, from READY to its end."""

    def __init__(self, parts: Assembly, config: Path, socket_path: Path, notifier: Notifier) -> None:
        self._parts = parts
        self._notifier = notifier
        self._periodic = Periodic()
        self._stopping: str | None = None
        self._leave_running = False
        self._told: dict[str, Moment] = {}
        self._phases: list[Phase] = []
        database = str(parts.store.path)
        self._reloading = Reloading(parts, config, notifier, self._schedule_telemetry)
        surroundings = Surroundings(parts)
        view = DaemonView(
            clock=parts.clock,
            inbox=parts.inbox,
            loop=parts.loop,
            newest=parts.newest,
            archive=Archive(parts.store.path),
            state=parts.state,
            database=database,
            problem=lambda: parts.store.problem,
            reload=self._reloading.reload,
            doctor=surroundings.doctor,
        )
        passed = listen.from_systemd(os.environ)
        self._control = ControlServer(view, passed or listen.bind(socket_path), unlink=passed is None)

    def run(self) -> int:
        """Work until told to stop; return the exit status."""
        parts = self._parts
        self._read_cards_once()
        parts.read_last_boot()
        parts.take_up_jobs()
        parts.attempts.catch_up()
        self._start_threads()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        for work in (self._watch_newest, self._send_alerts, self._say_alive, self._say_status, self._flush):
            parts.on_turn(work)
        self._notifier.ready()
        log.info("daemon.ready", extra={"fields": {"pid": os.getpid(), "jobs": list(parts.loop.dossiers)}})
        try:
            parts.loop.run(self._finished)
        finally:
            self._end()
        return 0

    def _read_cards_once(self) -> None:
        now = self._parts.clock.now()
        self._parts.newest.take(ev.GpusRead(at=now, readings=self._parts.gpus.read(now)))

    def _start_threads(self) -> None:
        parts = self._parts
        parts.attempts.start()
        parts.checkpoints.start()
        parts.keeper.start()
        parts.sender.start()
        for watch in (parts.kernel, parts.uevents):
            if watch is not None:
                watch.start()
        self._schedule_telemetry(parts.settings)
        self._periodic.every(GLOBS_EVERY_S, "checkpoint globs", self._look_for_checkpoints)
        self._periodic.every(SWEEP_EVERY_S, "sweep attempts", self._sweep)
        self._periodic.start()
        self._control.start()

    def _schedule_telemetry(self, settings: Settings) -> None:
        interval_s = settings.telemetry.interval_s
        self._periodic.every(interval_s, "read cards", self._parts.telemetry.read_cards)
        self._periodic.every(interval_s, "read machine", self._parts.telemetry.read_host)
        self._periodic.every(interval_s, "read processes", self._parts.telemetry.read_processes)

    def _sweep(self) -> None:
        sweep(self._parts.state, self._parts.settings.retention.incidents_days, self._parts.clock.now().unix_s)

    def _look_for_checkpoints(self) -> None:
        parts = self._parts
        now = parts.clock.now()
        for job, attempt, _ in parts.telemetry.live():
            settings = parts.settings.jobs[job]
            for path in globbed(settings.checkpoints.paths, parts.seeker.working_directory(job, settings)):
                prove = partial(parts.keeper.proofs.prove, job)
                parts.keeper.looked(Saved(job=job, attempt=attempt, path=Path(path), prove=prove), now)

    # --- after each turn, in the deciding thread ------------------------------------------------------------------

    def _due(self, name: str, now: Moment, every_s: float) -> bool:
        last = self._told.get(name)
        if last is not None and now.seconds_since(last) < every_s:
            return False
        self._told[name] = now
        return True

    def _watch_newest(self, event: ev.Event, now: Moment) -> None:
        self._parts.newest.take(event)
        if isinstance(event, ev.ClockStepped):
            log.warning("clock.stepped", extra={"fields": {"by_s": event.by_s}})
            self._periodic.clock_stepped(datetime.fromtimestamp(now.unix_s, tz=timezone.utc))

    def _send_alerts(self, _: ev.Event, now: Moment) -> None:
        if self._due("alerts", now, ALERTS_EVERY_S):
            self._parts.announcer.send_due(self._parts.sender, now)

    def _say_alive(self, _: ev.Event, now: Moment) -> None:
        interval_s = self._notifier.watchdog_interval_s
        if interval_s is None or not self._due("watchdog", now, interval_s):
            return
        if now.seconds_since(self._parts.attempts.looked_at) < WATCH_STALE_S:
            self._notifier.watchdog()
        else:
            log.error("watch.stuck", extra={"fields": {"since_s": now.seconds_since(self._parts.attempts.looked_at)}})

    def _say_status(self, _: ev.Event, now: Moment) -> None:
        jobs = [dossier.job for dossier in self._parts.loop.dossiers.values()]
        phases = [job.phase for job in jobs]
        if phases != self._phases or self._due("status", now, STATUS_EVERY_S):
            self._phases = phases
            self._notifier.status(line(jobs, self._parts.store.problem or self._reloading.refused))

    def _flush(self, _: ev.Event, now: Moment) -> None:
        self._parts.store.flush(now)
        if self._due("prune", now, PRUNE_EVERY_S):
            self._parts.store.prune(now, self._parts.settings.retention)

    # --- the end --------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, _: object) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGHUP:
            self._parts.inbox.later(self._reloading.reload)
        elif self._stopping is not None:
            self._leave_running = True  # asked twice: whoever asks does not want to wait
        else:
            self._stopping = name
            self._parts.inbox.later(self._begin_stop)

    def _begin_stop(self) -> None:
        log.info("daemon.stopping", extra={"fields": {"signal": self._stopping}})
        if stop_is_restart():
            self._leave_running = True
            return
        self._notifier.stopping()
        parts = self._parts
        now = parts.clock.now()
        longest_s = max((one.save_s + one.grace_s + one.kill_wait_s for one in parts.settings.jobs.values()), default=0)
        self._notifier.extend_timeout(longest_s + 30.0)
        for name in parts.loop.dossiers:
            parts.inbox.put(ev.Asked(at=now, job=name, ask=ev.Ask.SHUT_DOWN, by=self._stopping or "signal"))

    def _finished(self) -> bool:
        if self._leave_running:
            return True
        if self._stopping is None or not self._parts.inbox.empty():
            return False  # with the end of a training comes the word about what it saved last
        jobs = [dossier.job for dossier in self._parts.loop.dossiers.values()]
        return all(
            job.shutting_down and ((job.phase not in ALIVE and not job.replaying) or job.unkillable) for job in jobs
        )

    def _end(self) -> None:
        parts = self._parts
        self._notifier.stopping()
        self._control.stop()
        self._periodic.stop()
        parts.attempts.end()
        parts.keeper.end()
        parts.checkpoints.end()
        parts.announcer.send_due(parts.sender, parts.clock.now())
        parts.sender.stop(2.0)
        parts.exits.close()
        parts.gpus.close()
        parts.store.close(parts.clock.now())
        left = [job for job, _, _ in parts.telemetry.live()] if self._leave_running else []
        log.info("daemon.ended", extra={"fields": {"left_running": left}})
