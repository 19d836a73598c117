"""Begins tunes, at most one at a time: those that are asked for, and those that are due by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from supervisor.config.settings import TuneSettings
from supervisor.control import record_types, types
from supervisor.control.refusals import Refused, Unreadable
from supervisor.core import events as ev
from supervisor.core.events import AgentEvent
from supervisor.core.job import ALIVE, Job, Phase
from supervisor.core.judge import HELD_WHILE_TUNING
from supervisor.core.moments import Moment
from supervisor.core.tuning.due import is_due, is_settled
from supervisor.daemon.clock import Clock
from supervisor.daemon.tunes.blocks import HostMemory, read_host_memory
from supervisor.daemon.tunes.start_trials import StartDeps
from supervisor.daemon.tunes.tune import POLL_S, RENEW_S, Tune
from supervisor.runner import tuned
from supervisor.sources.attempt.agent_log import AgentLogReader

TUNE_ALONE = "tune it once it is the only program on its GPUs; `supervisorctl gpus` lists who is"
OTHERS_EVERY_S = 5.0
"""As often as GPUs are read."""

_Done = TypeVar("_Done")


class Tuner:
    """At most one tune at a time: two trainings of a machine disturb each other's measurements."""

    def __init__(  # noqa: PLR0913, PLR0917 - of whom it asks what
        self,
        clock: Clock,
        state: Path,
        job: Callable[[str], Job | None],
        configured: Callable[[], Mapping[str, TuneSettings]] = dict,
        poll_s: float = POLL_S,
        starts: StartDeps | None = None,
        host_memory: Callable[[], HostMemory] = read_host_memory,
        other_program: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`starts`: what starts of a training are ordered by; None: none are.

        `other_program` returns which other program uses a GPU of a job.
        """
        self._starts, self._host_memory, self._other_program = starts, host_memory, other_program
        self._poll_s = poll_s
        self._clock, self._state, self._job, self._configured = clock, state, job, configured
        self._lock = threading.Lock()
        self._tunes: dict[str, Tune] = {}
        self._looked_at: dict[str, int] = {}
        """The number of the attempt of each job of which it was found whether to tune it by itself."""

    def begin_due(self) -> None:
        """Begin the tunes that are due by themselves; one that another tune is in the way of is begun after it."""
        for name, settings in self._configured().items():
            job = self._job(name) if settings.when == "once" else None
            if job is None or job.number == self._looked_at.get(name):
                continue
            if not is_due(job, self._clock.now(), settings.after_s):
                continue
            tries = self._count_tries(self._state / "jobs" / name / str(job.number))
            if tries is not None:
                try:
                    given = types.TuneBody(for_s=settings.for_s, steps=settings.steps, may=list(settings.may))
                    self.start(name, given, tries + 1)
                except Refused:
                    continue
            self._looked_at[name] = job.number

    def _count_tries(self, folder: Path) -> int | None:
        """Return how often a tune of this command began by itself and did not end; None: it is not to begin again."""
        command = tuned.launched_command(folder)
        kept = tuned.find_kept(folder.parent, command)
        if kept is None:
            return None if tuned.was_undone(folder.parent, command) else 0
        tries, report = kept.get("tries"), record_types.decode_tune_report(kept.get("report"))
        counted = tries if isinstance(tries, int) else 0
        if report is None or not is_settled(report.problem, counted):
            return counted
        return 0 if _is_refused_here(folder, self._clock.now()) else None

    def start(self, name: str, given: types.TuneBody, tries: int | None = None) -> None:
        """Begin a tune; raise Refused where the job does not step or another tune is under way.

        `tries`: how often one has begun by itself, with this one; None where it is asked for.
        """
        job = self._job(name)
        if job is None or job.phase is not Phase.RUNNING or job.attempt is None:
            phase = "not configured" if job is None else job.phase.value
            raise Refused(f"{name} is {phase}: only a training that steps can be tuned", f"supervisorctl status {name}")
        other = self._other_program(name)
        if other is not None:
            raise Refused(f"{name} cannot be tuned: {other}, and that would change what is measured", TUNE_ALONE)
        with self._lock:
            busy = next((tune for tune in self._tunes.values() if tune.is_alive()), None)
            if busy is not None:
                raise Refused(f"{busy.job} is being tuned; one tune at a time", f"supervisorctl tune {busy.job} --stop")
            folder = self._state / "jobs" / name / str(job.number)
            find_fault = self._find_fault(name, job)
            tune = Tune(self._clock, name, folder, given, find_fault, tries, self._starts, self._host_memory)
            tune.poll_s = self._poll_s
            self._tunes[name] = tune
            tune.start()

    def stop(self, name: str) -> bool:
        """End a tune, with the owner's settings; return whether one was under way."""
        tune = self._tunes.get(name)
        if tune is None or not tune.is_alive():
            return False
        tune.ended.set()
        tune.join(2 * RENEW_S)
        return True

    def end(self) -> None:
        """Put the owner's settings back at once, not when their lease is over; the ending daemon waits for no tune."""
        for tune in list(self._tunes.values()):
            if tune.is_alive():
                tune.ended.set()
                tune.withdraw()

    def undo(self, name: str) -> bool:
        """Put the owner's settings back, now and for the next attempts; return whether anything was changed.

        Raises Refused where the disk of the state does not let it, with what still holds. Where a tune begins by
        itself, that it was undone is kept: it is not to begin again.
        """
        stopped, job, folder = self.stop(name), self._job(name), self._state / "jobs" / name
        if job is not None:
            # First: where the daemon is killed in between, nothing holds that is not kept.
            _try_undo(name, "what was set still holds", partial(tuned.withdraw_order, folder / str(job.number)))
        forget = partial(self._forget_adopted, name, job, folder)
        there = _try_undo(name, "this attempt has the owner's settings, the next has not", forget)
        if job is not None:
            there = self._forget_start(job) or there
        return stopped or there

    def _forget_adopted(self, name: str, job: Job | None, folder: Path) -> bool:
        """Forget what was adopted; return whether there was anything; raise OSError."""
        settings = self._configured().get(name)
        if job is None or settings is None or settings.when != "once":
            return tuned.forget(folder)
        undone = record_types.encode(record_types.TuneReport(job=name, state="ended", why="undone"))
        return tuned.undo(folder, tuned.launched_command(folder / str(job.number)), undone)

    def _forget_start(self, job: Job) -> bool:
        """Have the next start made as configured; return whether it would have been another."""
        if self._starts is None or job.tuned is None:
            return False
        now = self._clock.now()
        self._starts.ask(ev.StartAsked(at=now, job=job.name, attempt=job.number, ask=ev.StartAsk.FORGET))
        return True

    def find_old_start(self, name: str) -> str | None:
        """Return what a running training was started with by a tune, and will not be started with again."""
        job = self._job(name)
        attempt = job.attempt if job is not None and job.phase in ALIVE else None
        if job is None or attempt is None or attempt.start is None or attempt.start == job.tuned:
            return None
        return attempt.start.words

    def report(self, name: str) -> record_types.TuneReport:
        """Return the tune under way or the last one; raise Refused without any, or Unreadable."""
        tune = self._tunes.get(name)
        if tune is not None:
            return tune.report()
        kept = tuned.read_kept(self._state / "jobs" / name)
        if kept is None:
            raise Refused(f"{name} was not tuned", f"supervisorctl tune {name}")
        found = record_types.decode_tune_report(kept.get("report"))
        if found is None:
            raise Unreadable(f"what was kept of the tune of {name} cannot be read", f"supervisorctl tune {name} --undo")
        return found

    def _find_fault(self, name: str, began: Job) -> Callable[[], str | None]:
        """Return what tells why a tune that began with a job as it was then cannot go on: a fault outranks it."""
        looked_at = self._clock.now()

        def find_fault() -> str | None:
            nonlocal looked_at
            job = self._job(name)
            if job is None or job.phase is not Phase.RUNNING or job.number != began.number:
                return "the attempt ended; the next one has the owner's settings"
            reached = sorted(rule for rule, *_ in job.shadows - began.shadows if rule in HELD_WHILE_TUNING)
            if reached:
                return f"the rule {reached[0]} was reached; the owner's settings hold"
            if self._clock.now().seconds_since(looked_at) < OTHERS_EVERY_S:
                return None
            looked_at, other = self._clock.now(), self._other_program(name)
            return None if other is None else f"{other}; the owner's settings hold"

        return find_fault


def _try_undo(name: str, otherwise: str, work: Callable[[], _Done]) -> _Done:
    """Do a part of an undo; raise Refused where the disk does not let it, with `otherwise`, what holds then."""
    try:
        return work()
    except OSError as error:
        raise Refused(
            f"not undone: {error}; {otherwise}", f"supervisorctl tune {name} --undo, once it can be"
        ) from error


def _is_refused_here(folder: Path, now: Moment) -> bool:
    """Whether the agent has set nothing of what was proven before: the torch or the GPU is another."""
    answers = AgentLogReader(folder, only=AgentEvent.TUNING).finish(now)
    proven = [fact.facts for fact in answers if fact.facts.get("id") == tuned.PROVEN_ORDER]
    return any(facts.get("refused") and not facts.get("applied") for facts in proven)
