"""Finds after which step of the training a file was saved: from the agent's report, or from its write time.

A file's own counter may use another unit (epochs, batches of an accumulated step), or be missing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Fingerprint
from supervisor.core.foreign_values import STEP_MAX, as_int
from supervisor.core.job import Attempt, Job
from supervisor.core.scale import Scale
from supervisor.daemon.clock import Clock
from supervisor.runner.attempt_folder import Save, read_shim
from supervisor.sources.attempt.recorder import RecorderReader

SAVES_KEPT = 512
"""Limit for all jobs together; the newest are kept."""
NS = 1_000_000_000
FILE_TIME_S = 0.004
"""How far a file's time may lag: the kernel takes it from its tick."""
BEHIND_FROM_S = 3.0
"""A report may be late by less."""
FUTURE_S = 1.0
"""A file whose time is later than now by more was written by another clock."""


class SaveSteps:
    """May be used in any thread."""

    def __init__(self, clock: Clock, state: Path, job: Callable[[str], Job | None], boot_id: str) -> None:
        self._clock = clock
        self._state = state
        self._job = job
        self._boot_id = boot_id
        self._known: OrderedDict[tuple[str, int, int], tuple[int, bool]] = OrderedDict()
        """The step of a content, and whether the agent reported it."""
        self._behind_s: dict[str, float] = {}
        """Of each job whose files were reported as they were written: how far their clock is behind this machine's."""
        self._lock = threading.Lock()

    def take_report(self, event: ev.AgentReported, job: Job) -> None:
        """Take the agent's report of a saved file, where its steps are the training's."""
        facts = event.facts
        size_bytes, step = as_int(facts.get("size_bytes")), as_int(facts.get("step"), 1, STEP_MAX)
        seconds, rest_ns = as_int(facts.get("modified_s")), as_int(facts.get("modified_ns"), 0, NS - 1)
        if size_bytes is None or seconds is None or rest_ns is None or step is None or job.attempt is None:
            return
        if facts.get("late") is not True:
            self.measure_clock(job.name, str(facts.get("path")), event.at.unix_s - seconds - rest_ns / NS)
        known = job.attempt.training_step(step)
        if job.attempt.scale is None or known is None or job.attempt.number != event.attempt:
            return
        saved = Fingerprint(size_bytes=size_bytes, modified_ns=seconds * NS + rest_ns, inode=0)
        self._remember_step(job.name, saved, known, reported=True)

    def measure_clock(self, name: str, path: str, reported_later_s: float) -> None:
        """Take in how much later than its own time a file was reported as written; the least of all counts.

        What the agent itself saves lies in the state directory, most often on another disk.
        """
        if Path(path).is_relative_to(self._state):
            return
        with self._lock:
            self._behind_s[name] = min(reported_later_s, self._behind_s.get(name, reported_later_s))

    def find_begin(self, job: Job) -> float | None:
        """Return when a training began, by the clock of the disk that it saves to, which may be a server's.

        Else what it saves within the time by which that is behind would be of a training before it.
        """
        with self._lock:
            behind_s = self._behind_s.get(job.name, 0.0)
        began_unix_s = job.began_unix_s
        return began_unix_s if began_unix_s is None or behind_s < BEHIND_FROM_S else began_unix_s - behind_s

    def _remember_step(self, name: str, saved: Fingerprint, step: int, *, reported: bool) -> None:
        with self._lock:
            self._known[_content_key(name, saved)] = (step, reported)
            while len(self._known) > SAVES_KEPT:
                self._known.popitem(last=False)

    def is_complete(self, name: str, saved: Fingerprint) -> bool:
        """Whether the agent reported this content after its save ended, so that no wait for it to settle is needed."""
        with self._lock:
            return self._known.get(_content_key(name, saved), (0, False))[1]

    def step_of(self, name: str, saved: Fingerprint) -> int | None:
        """Return the step after which a file of a job was saved; None where it was not seen, or cannot be known."""
        with self._lock:
            known = self._known.get(_content_key(name, saved))
        job = self._job(name)
        if known is not None or job is None or job.attempt is None:
            return None if known is None else known[0]
        used = job.attempt.resume_from
        if used is not None and _content_key(name, used.fingerprint) == _content_key(name, saved):
            return used.step  # the file may be looked at again while the next attempt runs already
        step = self._find_step_by_time(name, job.attempt, saved)
        if step is not None:
            self._remember_step(name, saved, step, reported=False)
        return step

    def saves(self, name: str) -> tuple[Save, ...]:
        """Return the saves of a job whose step is known, by content, last written first."""
        with self._lock:
            known = [(key, step) for key, (step, _) in self._known.items() if key[0] == name]
        saves = (Save(size_bytes=size_bytes, modified_ns=ns, step=step) for (_, size_bytes, ns), step in known)
        return tuple(sorted(saves, key=lambda save: save.modified_ns, reverse=True))

    def _find_step_by_time(self, name: str, attempt: Attempt, saved: Fingerprint) -> int | None:
        saved_unix_s = saved.modified_ns / 1e9
        if attempt.scale is not Scale.TRAINING or saved_unix_s < attempt.launched_at.unix_s:
            return None
        folder = self._state / "jobs" / name / str(attempt.number)
        note = read_shim(folder)
        if note is None or note.boot_id != self._boot_id:
            return None  # its steps carry times of another boot
        now = self._clock.now()
        if saved_unix_s > now.unix_s + FUTURE_S:
            return None  # this clock was set back since, or it is that of a file server
        reader = RecorderReader(folder)
        try:
            return reader.step_by(now.monotonic_s - (now.unix_s - saved_unix_s) + FILE_TIME_S)
        finally:
            reader.close()


def _content_key(job: str, saved: Fingerprint) -> tuple[str, int, int]:
    """Return the identity of a content: its time is kept when it is renamed or captured."""
    return job, saved.size_bytes, saved.modified_ns
