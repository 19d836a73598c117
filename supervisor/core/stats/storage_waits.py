"""When a training is seen to wait for a file system: no limit on silence counts that time.

A server that does not answer, or a disk in recovery, makes a training stand still that goes on as soon as it answers.
To kill it gains nothing: the process may not end, and the next attempt waits for the same file system. The time from a
reading that shows such a wait to the next reading is one of waiting, no longer: what waits for a disk now and then
lengthens the time until a true hang is found by that share of it.

A wait explains a missing step only where something that trains may be waiting for it. It does not where

- any process of the job is stopped, or waits in the kernel for a GPU or for something unknown;
- only a helper waits (a loader's worker, a thread), and the agent reports that a step is being computed;
- only a helper waits, and every process that trains uses its processor or waits in a GPU's driver, or every GPU of the
  job is at work: then it is a GPU or a program that does not end.

Of several ranks one that waits is enough: the others wait for it in a collective, with GPUs at full load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, StorageWait
from supervisor.core.stats.holds import FRESH_S

SPANS_KEPT = 1024
USES_PROCESSOR_PERCENT = 50.0
"""Of one processor: a process that waits for its batch uses far less, one that waits for a GPU by polling more."""
OF_LOCKS = ("rwsem_", "down_", "mutex_", "__mutex_", "percpu_rwsem_", "__down_")
"""Where a thread waits in the kernel for another one, as for who reads the same folder of a server."""


@dataclass(slots=True)
class StorageWaits:
    """The spans in which a training was seen to wait, oldest first, and who waits at present."""

    since: Moment | None = None
    """Since when it has waited without a reading that shows otherwise; None where it does not wait."""
    newest: tuple[StorageWait, ...] = ()
    """Who waits, by the newest reading."""
    _seen_at: Moment | None = None
    _spans: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SPANS_KEPT))

    def add(self, at: Moment, waits: tuple[StorageWait, ...]) -> None:
        """Take in who waits by a reading; they come in the order of time."""
        before = self._seen_at
        if before is not None:
            self._extend(before.monotonic_s, min(at.monotonic_s, before.monotonic_s + FRESH_S))
        goes_on = before is not None and at.seconds_since(before) <= FRESH_S
        self.since = (self.since if goes_on else at) if waits else None
        self.newest, self._seen_at = waits, at if waits else None

    def interrupt(self) -> None:
        """Take in that the daemon did not run: what was in that time is not known."""
        self.since, self.newest, self._seen_at = None, (), None

    def seconds(self, since: Moment, until: Moment) -> float:
        """Return the seconds between two moments in which it was seen to wait, 0 where `until` is the earlier."""
        since_s, until_s, waited_s = since.monotonic_s, until.monotonic_s, 0.0
        if self._seen_at is not None:
            seen_s = self._seen_at.monotonic_s
            waited_s += max(0.0, min(seen_s + FRESH_S, until_s) - max(seen_s, since_s))
        for begun_s, ended_s in reversed(self._spans):
            if ended_s <= since_s:
                break
            waited_s += max(0.0, min(ended_s, until_s) - max(begun_s, since_s))
        return waited_s

    def _extend(self, begun_s: float, ended_s: float) -> None:
        if ended_s <= begun_s:
            return
        if self._spans and self._spans[-1][1] >= begun_s:
            begun_s = self._spans.pop()[0]
        self._spans.append((begun_s, ended_s))


def find_explaining(
    reading: ProcessReading, trainers: Collection[int], *, in_step: bool, gpus_work: bool
) -> tuple[StorageWait, ...]:
    """Return the waits for file systems that explain why no step is made; () where they do not.

    `trainers` are the processes that make steps, `in_step` says that the agent reports a step under way, `gpus_work`
    that every GPU of the job is known to be at work.
    """
    if not reading.storage_waits or reading.stopped_pids or _has_other_waits(reading, trainers):
        return ()
    if own := [wait for wait in reading.storage_waits if wait.pid in trainers and wait.thread == wait.pid]:
        return (*own, *(wait for wait in reading.storage_waits if wait not in own))
    may_wait = not in_step and not gpus_work and _has_idle_trainer(reading, trainers)
    return reading.storage_waits if may_wait else ()


def _has_other_waits(reading: ProcessReading, trainers: Collection[int]) -> bool:
    """Whether a process waits in the kernel for something else; a helper may wait for a lock of one that waits."""
    of_storage = {wait.pid for wait in reading.storage_waits}
    others = [pid for pid in reading.uninterruptible_pids if pid not in of_storage]
    if any(wait.is_of_disk is False for wait in reading.waits) or any(pid in trainers for pid in others):
        return True
    channels = {wait.pid: wait.channel or "" for wait in reading.waits if wait.thread == wait.pid}
    return not all(channels.get(pid, "").startswith(OF_LOCKS) for pid in others)


def _has_idle_trainer(reading: ProcessReading, trainers: Collection[int]) -> bool:
    """Whether a process that trains may be waiting for a helper, as far as is known."""
    uses = {use.pid: use.cpu_percent or 0.0 for use in reading.largest}
    alive = [pid for pid in trainers if reading.pids is None or pid in reading.pids]
    return not trainers or any(
        uses.get(pid, 0.0) < USES_PROCESSOR_PERCENT and pid not in reading.gpu_wait_pids for pid in alive
    )
