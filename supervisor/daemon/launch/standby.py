"""Keeps a standby interpreter ready for the next attempt of each job that is configured to have one.

A standby is not an attempt: it is not recorded, and in any doubt the attempt is launched without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.config.settings import JobSettings
from supervisor.core import events as ev
from supervisor.core.attempt import standby as core
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import HostReading
from supervisor.daemon.clock import Clock
from supervisor.daemon.job_state import JobState
from supervisor.daemon.launch.launch_spec import LaunchPlan
from supervisor.runner import standby
from supervisor.runner.launcher import Launcher, LaunchError

log = logging.getLogger(__name__)

Modules = tuple[tuple[str, str | None], ...]

IMPORT_LIMIT_S = 300.0
NOTHING = (
    "nothing is known that its next attempt will import first: the command's own process does not train, imports "
    "nothing that takes long, or changes its environment before it does (standby_modules names what to import)"
)
SOME_CHECKPOINT = Checkpoint(path="{checkpoint}", fingerprint=Fingerprint(size_bytes=0, modified_ns=0, inode=0))
"""The number is not known yet, and the launch may still change the command's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyDeps:
    """What standbys need from the rest of the daemon; every member is safe to call from any thread."""

    clock: Clock
    state: Path
    launcher: Launcher
    settings: Callable[[str], JobSettings | None]
    job_states: Callable[[], Mapping[str, JobState]]
    host: Callable[[], HostReading | None]
    compose: Callable[[Job, int, Checkpoint | None], LaunchPlan]
    with_agent: Callable[[], bool]
    group: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    attempt: Path
    """The folder of the attempt that it is prepared for."""
    since: Moment

    @property
    def number(self) -> int:
        return int(self.attempt.name)


class StandbyStarter:
    """`take` runs in the deciding thread, `look` every second in a thread of its own, `go` in the launching thread."""

    def __init__(self, world: StandbyDeps) -> None:
        self._world = world
        self._locks: dict[str, threading.Lock] = {}
        self._standing: dict[str, _Standing] = {}
        self._spent: dict[str, int] = {}
        """By job: the attempt for which a standby failed; it is not tried again for that attempt."""
        self._imported: dict[str, tuple[int, int | None, Modules]] = {}
        """By job: the attempt, its training process, and what that process imported."""
        self._ended = False

    def _lock_of(self, job: str) -> threading.Lock:
        return self._locks.setdefault(job, threading.Lock())

    # --- what the training reports --------------------------------------------------------------------------------

    def take(self, event: ev.Event, _now: Moment) -> None:
        """Learn from the running training what the next one will import first."""
        if (
            isinstance(event, ev.AgentReported)
            and event.agent_event is ev.AgentEvent.CLAIMED
            and event.rank in (0, None)
        ):
            self._imported[event.job] = (event.attempt, event.pid, _parse_modules(event.facts.get("imported")))

    def _list_modules(self, job: Job, settings: JobSettings | None) -> Modules:
        """Return what to import, in order; empty where the command's own process is not the one that trains."""
        number, pid, reported = self._imported.get(job.name, (0, None, ()))
        if settings is None or job.attempt is None or number != job.number or pid != job.attempt.training_pid:
            return ()
        return tuple((name, None) for name in settings.standby_modules) or reported

    # --- keeping --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Start missing standbys and end those that are no longer needed."""
        job_states = dict(self._world.job_states())
        for name in {*job_states, *list(self._standing)}:
            job_state = job_states.get(name)
            with self._lock_of(name):
                try:
                    state = self._look_after(name, None if job_state is None else job_state.job)
                except (LaunchError, OSError) as error:
                    state = None
                    self._give_up(name, job_state, str(error))
            if job_state is not None:
                job_state.standby = state

    def _look_after(self, name: str, job: Job | None) -> str | None:
        """Return the state of the job's standby: "ready", "importing", or None."""
        why, standing = self._why_none(name, job), self._standing.get(name)
        if standing is not None and why is None and job is not None:
            if standing.number == job.next_number:
                return self._read_state(standing)
            if standing.number == job.number and job.phase is Phase.STARTING:
                return None  # it is about to be promoted
            why = "the attempt was launched without it"
        if why is not None:
            self._dismiss_standby(name, why)
        elif job is not None and not self._ended and self._spent.get(name) != job.number:
            return self._start_standby(job)
        return None

    def _why_none(self, name: str, job: Job | None) -> str | None:
        settings = self._world.settings(name)
        if job is None or settings is None:
            return "the job is gone"
        if not settings.standby or not self._world.with_agent():
            return "it is switched off"
        return core.why_none(job, self._world.host())

    def _start_standby(self, job: Job) -> str | None:
        world, now = self._world, self._world.clock.now()
        if not core.may_start(job, world.host(), now):
            return None
        modules = self._list_modules(job, world.settings(job.name))
        if not modules:
            raise LaunchError(NOTHING)
        number = job.next_number
        composed = world.compose(job, number, SOME_CHECKPOINT)
        wanted = standby.Wanted(
            number=number,
            argv=composed.argv,
            cwd=composed.cwd,
            env=composed.env,
            remedies=composed.remedies,
            modules=modules,
            alone_s=core.ALONE_LIMIT_S,
            code=composed.code,
        )
        before = world.state / "jobs" / job.name / str(job.number)
        self._standing[job.name] = _Standing(attempt=before.with_name(str(number)), since=now)
        world.launcher.stand_by(job.name, standby.prepare(world.state, job.name, wanted, before, world.group))
        fields = {"job": job.name, "attempt": number, "imports": [name for name, _ in modules]}
        log.info("standby.started", extra={"fields": fields})
        return "importing"

    def _read_state(self, standing: _Standing) -> str:
        """Return the standby's progress; raise LaunchError where it has ended."""
        imported = standby.was_ready(standing.attempt)  # one look: it may become ready between two
        if imported and standby.waits(standing.attempt):
            return "ready"
        if (why := standby.refused(standing.attempt)) is not None:
            raise LaunchError(why)
        if imported:
            raise LaunchError(standby.UNASKED)
        if self._world.clock.now().seconds_since(standing.since) > IMPORT_LIMIT_S:
            raise LaunchError(f"it was not ready within {IMPORT_LIMIT_S:.0f} s")
        return "importing"

    def _give_up(self, name: str, job_state: JobState | None, why: str) -> None:
        log.warning("standby.failed", extra={"fields": {"job": name, "why": why}})
        if job_state is not None:
            self._spent[name] = job_state.job.number
        self._dismiss_standby(name, why)

    def _dismiss_standby(self, name: str, why: str) -> None:
        standing = self._standing.pop(name, None)
        if standing is None:
            return
        log.info("standby.dismissed", extra={"fields": {"job": name, "attempt": standing.number, "why": why}})
        self._clear_files(name, standing.attempt)

    def _clear_files(self, name: str, attempt: Path) -> None:
        self._world.launcher.dismiss(name, attempt)
        if not standby.going(attempt):  # the request may have been under way
            standby.clear(attempt)

    # --- using ----------------------------------------------------------------------------------------------------

    def go(self, job: str, attempt: Path) -> bool:
        """Turn the standby into the attempt in `attempt`; return False where that has to be launched without it.

        Raises LaunchError where the promotion began and failed.
        """
        with self._lock_of(job):
            standing = self._standing.get(job)
            if standing is None or standing.attempt != attempt:
                return False
            del self._standing[job]
            if (job_state := self._world.job_states().get(job)) is not None:
                job_state.standby = None
            why = self._world.launcher.go(job, attempt)
            fields = {"job": job, "attempt": standing.number}
            if why is None:
                log.info("standby.promoted", extra={"fields": fields})
                return True
            log.warning("standby.not_used", extra={"fields": {**fields, "why": why}})
            self._clear_files(job, attempt)
            return False

    def dismiss(self, job: str, attempt: Path) -> None:
        """End the standby for the attempt in `attempt`, which is started with other variables than it was."""
        with self._lock_of(job):
            standing = self._standing.get(job)
            if standing is not None and standing.attempt == attempt:
                self._dismiss_standby(job, "a tune has the attempt started with other variables")

    # --- beginning and end ----------------------------------------------------------------------------------------

    def clear(self, jobs: Iterable[str]) -> None:
        """End the standbys of an earlier daemon, before anything else: their launch data may be outdated."""
        for name in jobs:
            for attempt in standby.stood_by_for(self._world.state, name):
                if not standby.going(attempt):
                    self._clear_files(name, attempt)

    def end(self) -> None:
        """End all standbys: the daemon is stopping."""
        self._ended = True
        for name in list(self._locks):  # of each that `look` is ending at present its files go too
            with self._lock_of(name):
                self._dismiss_standby(name, "the daemon ends")


def _parse_modules(reported: object) -> Modules:
    """Return the imports that an agent reported; malformed entries are left out."""
    pairs = reported if isinstance(reported, list) else []
    return tuple(
        (group[0], group[1])
        for group in pairs
        if isinstance(group, list) and len(group) == 2 and all(isinstance(text, str) for text in group)
    )
