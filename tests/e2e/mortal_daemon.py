"""The daemon, killed with SIGKILL at the first point of its work at which none before it was killed.

    mortal_daemon.py POINTS --config CONFIG

POINTS is a file with a line for each point that was died at; with an environment variable DIE_AT only those count that
it names, one a line. The points lie before and after every commit that holds a decision or the answer to one, every
act, every search, and every word to the launcher.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.config.derive import socket_path
from supervisor.config.load import load
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.stats.learned_limits import Learned
from supervisor.daemon.clock import SystemClock, boot_id
from supervisor.daemon.job_state import JobState
from supervisor.daemon.loop import Loop, Record
from supervisor.daemon.process import logging_setup
from supervisor.daemon.process.startup import lock_state
from supervisor.daemon.process.systemd import Notifier
from supervisor.daemon.service import Service
from supervisor.daemon.wiring import Assembly
from supervisor.runner.direct import DirectLauncher

ANSWERS = (ev.Launched, ev.Signalled, ev.EvidenceTaken, ev.Exited, ev.ResumePointFound, ev.TriageEnded)


class Fate:
    """Knows where others died, and dies."""

    def __init__(self, points: Path, only: str | None) -> None:
        self._points = points
        self._only = only
        self._lock = threading.Lock()

    def at(self, point: str) -> None:
        """Die here, if here is where to die."""
        with self._lock:
            known = self._points.read_text().splitlines() if self._points.exists() else []
            if point in known or (self._only is not None and point not in self._only.splitlines()):
                return
            with self._points.open("a") as file:
                file.write(point + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.kill(os.getpid(), signal.SIGKILL)


class MortalRecord:
    """A record that may be cut off on either side of its commits."""

    def __init__(self, record: Record, fate: Fate) -> None:
        self._record, self._fate = record, fate
        self._reported: list[str] = []

    def event(self, event: ev.Event, job_state: JobState | None) -> None:
        if isinstance(event, ANSWERS):
            self._reported.append(type(event).__name__)
        self._record.event(event, job_state)

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        self._reported.append(type(decision).__name__)
        self._record.decision(before, after, decision)

    def job(self, before: Job, after: Job, event: ev.Event) -> None:
        self._record.job(before, after, event)

    def learned(self, job: str, setting: str) -> Learned:
        return self._record.learned(job, setting)

    def keep_learned(self, job: str, setting: str, learned: Learned) -> None:
        self._record.keep_learned(job, setting, learned)

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        self._reported = []
        with self._record.turn(now):
            yield
            for report in self._reported:
                self._fate.at(f"before recording {report}")
        for report in self._reported:
            self._fate.at(f"after recording {report}")

    @property
    def unsettled_turn(self) -> int | None:
        return self._record.unsettled_turn

    def is_settled(self, turn: int, now: Moment) -> bool:
        settled = self._record.is_settled(turn, now)
        self._fate.at("after a commit" if settled else "during a commit")
        return settled


class Mortal:
    """Any part of the daemon, with a point before and after each of some of its calls."""

    def __init__(self, part: Any, calls: tuple[str, ...], fate: Fate) -> None:
        self._part, self._calls, self._fate = part, calls, fate

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._part, name)
        if name not in self._calls:
            return call

        def mortal(*args: Any) -> Any:
            what = type(args[0]).__name__ if name == "act" else ""
            what = "of a replay" if any("/triage-" in str(arg) for arg in args) else what
            self._fate.at(f"before {name} {what}".strip())
            result = call(*args)
            self._fate.at(f"after {name} {what}".strip())
            return result

        return mortal


def main() -> int:
    """Run as `rocm-supervisord` does."""
    config = Path(sys.argv[3])
    fate = Fate(Path(sys.argv[1]), os.environ.get("DIE_AT"))
    settings = load(config)
    logging_setup.begin("info", journal=False)
    state = Path(settings.supervisor.state_dir)
    state.mkdir(parents=True, exist_ok=True)
    lock = lock_state(state)
    launcher: Any = Mortal(DirectLauncher(), ("launch", "go", "signal", "kill_all"), fate)
    parts = Assembly(settings, SystemClock(), boot_id(), launcher, None)
    executor: Any = Mortal(parts.executor, ("act", "search"), fate)
    loop = Loop(parts.clock, parts.inbox, MortalRecord(parts.record, fate), executor)
    loop.may_launch, loop.find_remedy_context, loop.each_turn = (
        parts.loop.may_launch,
        parts.loop.find_remedy_context,
        parts.loop.each_turn,
    )
    loop.job_states = parts.loop.job_states
    parts.loop, parts.executor = loop, executor
    try:
        return Service(parts, config, socket_path(settings.supervisor, os.environ), Notifier.from_environment()).run()
    finally:
        os.close(lock)


if __name__ == "__main__":
    sys.exit(main())
