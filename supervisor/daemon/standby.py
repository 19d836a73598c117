"""Keeps an interpreter standing by for the next attempt of each job that wants one; it decides nothing of a training.

What stands by is no attempt: nothing of it is recorded, and with the least doubt the attempt is launched from cold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config.settings import JobSettings
from supervisor.core import events as ev
from supervisor.core import standby as core
from supervisor.core.checkpoints import Checkpoint, Fingerprint
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.readings import HostReading
from supervisor.daemon.attempt_watch import Clock
from supervisor.daemon.compose import Composed
from supervisor.daemon.loop import Dossier
from supervisor.runner import standby
from supervisor.runner.launcher import Launcher, LaunchError

log = logging.getLogger(__name__)

Modules = tuple[tuple[str, str | None], ...]

SOME_CHECKPOINT = Checkpoint(path="{checkpoint}", fingerprint=Fingerprint(size_bytes=0, modified_ns=0, inode=0))
"""Which one it will be is not known yet, and the command's own words may still change with the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What standing by needs from the rest of the daemon; each may be asked in any thread."""

    clock: Clock
    state: Path
    launcher: Launcher
    settings: Callable[[str], JobSettings | None]
    dossiers: Callable[[], Mapping[str, Dossier]]
    host: Callable[[], HostReading | None]
    compose: Callable[[Job, int, Checkpoint | None], Composed]
    with_agent: Callable[[], bool]
    group: int | None


class Standbys:
    """`take` is called in the deciding thread, `look` every second in one of its own, `go` by whoever launches."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._locks: dict[str, threading.Lock] = {}
        self._standing: dict[str, Path] = {}
        """By job: the folder of the attempt that something stands by for."""
        self._spent: dict[str, int] = {}
        """By job: the attempt for which it did not work out; nothing is tried twice for one."""
        self._imported: dict[str, tuple[int, int | None, Modules]] = {}
        """By job: the attempt, the process of it that trains, and what that imported."""

    def _lock(self, job: str) -> threading.Lock:
        return self._locks.setdefault(job, threading.Lock())

    # --- what the training tells ----------------------------------------------------------------------------------

    def take(self, event: ev.Event, _now: Moment) -> None:
        """Learn from the training that runs what the next one will import first."""
        if isinstance(event, ev.AgentSaid) and event.word is ev.Word.CLAIMED and event.rank in (0, None):
            self._imported[event.job] = (event.attempt, event.pid, _modules(event.facts.get("imported")))

    def _modules(self, job: Job, settings: JobSettings) -> Modules:
        """Return what to import, in its order; nothing where the command itself is not what trains."""
        number, pid, told = self._imported.get(job.name, (0, None, ()))
        if job.attempt is None or number != job.number or pid != job.attempt.training_pid:
            return ()
        return tuple((name, None) for name in settings.standby_modules) or told

    # --- keeping --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Start what is wanted and not there, let go of what is there and not wanted."""
        dossiers = dict(self._world.dossiers())
        for name in [*dossiers, *(self._standing.keys() - dossiers.keys())]:
            dossier = dossiers.get(name)
            try:
                with self._lock(name):
                    state = None if dossier is None else self._look(dossier.job)
                    if dossier is None:
                        self._dismiss(name, "the job is gone")
            except (LaunchError, OSError) as error:
                self._gave_up(name, str(error))
            else:
                if dossier is not None:
                    dossier.standby = state

    def _look(self, job: Job) -> str | None:
        """Return what there is of it now: "ready", "importing", or None."""
        settings, now = self._world.settings(job.name), self._world.clock.now()
        host, attempt = self._world.host(), self._standing.get(job.name)
        on = settings is not None and settings.standby and self._world.with_agent()
        why = core.why_none(job, host) if on else "it is switched off"
        if attempt is not None and int(attempt.name) != job.number + 1:
            why = why or "the attempt was launched without it"
        if attempt is not None and why is not None:
            self._dismiss(job.name, why)
        elif attempt is not None:
            return self._state(job.name, attempt)
        elif why is None and settings is not None and core.may_start(job, host, now):
            modules = self._modules(job, settings) if self._spent.get(job.name) != job.number else ()
            if modules:
                self._start(job, modules)
                return "importing"
        return None

    def _start(self, job: Job, modules: Modules) -> None:
        world, number = self._world, job.number + 1
        composed = world.compose(job, number, SOME_CHECKPOINT)
        wanted = standby.Wanted(
            number=number,
            argv=composed.argv,
            cwd=composed.cwd,
            env=composed.env,
            remedies=composed.remedies,
            modules=modules,
            alone_s=core.ALONE_LIMIT_S,
        )
        before = world.state / "jobs" / job.name / str(job.number)
        attempt = standby.prepare(world.state, job.name, wanted, before, world.group)
        self._standing[job.name] = attempt
        self._world.launcher.stand_by(job.name, attempt)
        fields = {"job": job.name, "attempt": number, "imports": [name for name, _ in modules]}
        log.info("standby.started", extra={"fields": fields})

    def _state(self, job: str, attempt: Path) -> str:
        """Return how far it is; raise LaunchError where it is not there any more."""
        if standby.ready(attempt):
            return "ready"
        if (why := standby.refused(attempt)) is not None:
            raise LaunchError(why)
        if (standby.folder_of(attempt) / "ready.json").exists():
            raise LaunchError(standby.UNASKED)
        return "importing"

    def _gave_up(self, name: str, why: str) -> None:
        attempt = self._standing.get(name)
        log.warning("standby.failed", extra={"fields": {"job": name, "why": why}})
        with self._lock(name):
            if attempt is not None:
                self._spent[name] = int(attempt.name) - 1
            self._dismiss(name, why)

    def _dismiss(self, name: str, why: str) -> None:
        attempt = self._standing.pop(name, None)
        if attempt is None:
            return
        log.info("standby.dismissed", extra={"fields": {"job": name, "attempt": int(attempt.name), "why": why}})
        self._world.launcher.dismiss(name, attempt)
        if not standby.going(attempt):
            standby.clear(attempt)

    # --- using ----------------------------------------------------------------------------------------------------

    def go(self, job: str, attempt: Path) -> bool:
        """Have what stands by become the attempt in that folder; False where it is to be launched from cold.

        Raises LaunchError where it began and failed.
        """
        with self._lock(job):
            standing = self._standing.pop(job, None)
            if standing != attempt:
                self._standing.update({} if standing is None else {job: standing})
                return False
            if (dossier := self._world.dossiers().get(job)) is not None:
                dossier.standby = None
            why = self._world.launcher.go(job, attempt)
            fields: dict[str, Any] = {"job": job, "attempt": int(attempt.name)}
            if why is None:
                log.info("standby.went", extra={"fields": fields})
                return True
            log.warning("standby.passed_over", extra={"fields": {**fields, "why": why}})
            self._world.launcher.dismiss(job, attempt)
            standby.clear(attempt)
            return False

    # --- beginning and end ----------------------------------------------------------------------------------------

    def clear(self, jobs: Mapping[str, JobSettings]) -> None:
        """Let go of what an earlier daemon left standing by, before anything else: what it was given may be old."""
        for name in jobs:
            for folder in (self._world.state / "jobs" / name).glob("standby-*"):
                attempt = folder.with_name(folder.name.removeprefix("standby-"))
                if standby.going(attempt):
                    continue
                self._world.launcher.dismiss(name, attempt)
                if not standby.going(attempt):  # its word may have been on the way
                    standby.clear(attempt)

    def end(self) -> None:
        """Let go of everything: the daemon ends."""
        for name in list(self._standing):
            with self._lock(name):
                self._dismiss(name, "the daemon ends")


def _modules(told: object) -> Modules:
    """Return what an agent told of its imports; what is not as agents tell it is left out."""
    pairs = told if isinstance(told, list) else []
    return tuple(
        (one[0], one[1])
        for one in pairs
        if isinstance(one, list) and len(one) == 2 and all(isinstance(text, str) for text in one)
    )
