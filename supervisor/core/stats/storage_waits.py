"""When a training is seen to wait for a file system: no limit on silence counts that time.

A server that does not answer, or a disk in recovery, makes a training stand still that goes on as soon as it answers.
To kill it gains nothing: the process may not end, and the next attempt waits for the same file system. The time from a
reading that shows such a wait to the next reading is one of waiting, no longer: what waits for a disk now and then
lengthens the time until a true hang is found by that share of it.

A wait explains a missing step only where something that trains may be waiting for it. It does not where

- any process of the job is stopped, or waits in the kernel for a GPU or for something unknown;
- only a helper waits (a loader's worker, a thread), and the agent reports that the rank that it serves is in a step;
- only a helper waits, and every process that trains uses its processor or waits in a GPU's driver, or every GPU of the
  job is at work: then it is a GPU or a program that does not end.

Of several ranks one that waits is enough: the others wait for it in a collective, with GPUs at full load.

So do the ranks on other nodes of the training. A node judges the waits of its own ranks by the above and reports those
that explain a missing step; they explain it on every other node too, by the first exception and no other. That a rank
there waits by its helper alone makes no difference, whatever step rank 0 reports here: rank 0 computes its step until
the sums of all ranks are in, and a rank whose batch does not come adds nothing to them. Were rank 0 itself to hang
meanwhile, that would be found once the other node's wait is over. What another node reports cannot be verified here:
it counts while it is fresh, and for so long after a step as the setting allows (`limit_s` of `storage_wait`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from supervisor.core.moments import Moment
from supervisor.core.peers import PEERS_FRESH_S, PeerWait
from supervisor.core.readings import ProcessReading, StorageWait
from supervisor.core.stats.holds import FRESH_S

SPANS_KEPT = 1024
USES_PROCESSOR_PERCENT = 50.0
"""Of one processor: a process that waits for its batch uses far less, one that waits for a GPU by polling more."""
OF_LOCKS = ("rwsem_", "down_", "mutex_", "__mutex_", "percpu_rwsem_", "__down_")
"""Where a thread waits in the kernel for another one, as for who reads the same folder of a server."""


@dataclass(slots=True)
class Spans:
    """The spans of time in which a condition was seen, oldest first; what was seen lasts until it is stale."""

    fresh_s: float
    """How long what was seen last is taken to last, without another look."""
    _seen_at: Moment | None = None
    _spans: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SPANS_KEPT))

    def add(self, at: Moment, *, holds: bool) -> None:
        """Take in whether it holds by a look; they come in the order of time."""
        if self._seen_at is not None:
            begun_s = self._seen_at.monotonic_s
            self._extend(begun_s, min(at.monotonic_s, begun_s + self.fresh_s))
        self._seen_at = at if holds else None

    def interrupt(self) -> None:
        """Take in that the daemon did not run: what was in that time is not known."""
        self._seen_at = None

    def holds(self, now: Moment) -> bool:
        """Whether it held by the newest look, and that is not stale."""
        return self._seen_at is not None and now.seconds_since(self._seen_at) <= self.fresh_s

    def iterate(self, since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        """Yield the spans between two times, the newest first."""
        if self._seen_at is not None:
            seen_s = self._seen_at.monotonic_s
            yield from _cut((seen_s, seen_s + self.fresh_s), since_s, until_s)
        for span in takewhile(lambda span: span[1] > since_s, reversed(self._spans)):
            yield from _cut(span, since_s, until_s)

    def _extend(self, begun_s: float, ended_s: float) -> None:
        if ended_s <= begun_s:
            return
        if self._spans and self._spans[-1][1] >= begun_s:
            begun_s = self._spans.pop()[0]
        self._spans.append((begun_s, ended_s))


def _cut(span: tuple[float, float], since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    begun_s, ended_s = max(span[0], since_s), min(span[1], until_s)
    if begun_s < ended_s:
        yield begun_s, ended_s


@dataclass(slots=True)
class StorageWaits:
    """When a training was seen to wait, here or on another node, and who waits at present."""

    own: tuple[StorageWait, ...] = ()
    """Who waits on this node, by the newest reading."""
    has_waited: bool = False
    """Whether any wait was ever seen: most trainings have none, and are asked about it several times a second."""
    _peers: tuple[PeerWait, ...] = ()
    _own_spans: Spans = field(default_factory=lambda: Spans(FRESH_S))
    _peer_spans: Spans = field(default_factory=lambda: Spans(PEERS_FRESH_S))

    def add(self, at: Moment, waits: tuple[StorageWait, ...]) -> None:
        """Take in who waits here by a reading; they come in the order of time."""
        self._own_spans.add(at, holds=bool(waits))
        self.own, self.has_waited = waits, self.has_waited or bool(waits)

    def add_peers(self, at: Moment, waits: tuple[PeerWait, ...]) -> None:
        """Take in which other nodes wait by what their leader reports; in the order of time."""
        self._peer_spans.add(at, holds=bool(waits))
        self._peers, self.has_waited = waits, self.has_waited or bool(waits)

    def interrupt(self) -> None:
        """Take in that the daemon did not run: what was in that time is not known."""
        self._own_spans.interrupt()
        self._peer_spans.interrupt()
        self.own = self._peers = ()

    def find_peers(self, now: Moment) -> tuple[PeerWait, ...]:
        """Return which other nodes wait; () where the newest report of it is stale."""
        return self._peers if self._peer_spans.holds(now) else ()

    def is_waiting(self, now: Moment) -> bool:
        """Whether the training waits at present, here or on another node."""
        return bool(self.own or self.find_peers(now))

    def seconds(self, since: Moment, until: Moment) -> float:
        """Return the seconds between two moments in which it was seen to wait, 0 where `until` is the earlier."""
        return sum(ended_s - begun_s for begun_s, ended_s in self._unite(since.monotonic_s, until.monotonic_s))

    def excused_s(self, since: Moment, until: Moment, peers_limit_s: float) -> float:
        """Return as `seconds`, of what other nodes alone waited `peers_limit_s` at most."""
        own = self._own_spans.iterate(since.monotonic_s, until.monotonic_s)
        own_s = sum(ended_s - begun_s for begun_s, ended_s in own)
        return own_s + min(self.seconds(since, until) - own_s, peers_limit_s)

    def unbroken_s(self, until: Moment) -> float:
        """Return for how long it has waited without a break up to a moment; 0 where it does not wait then."""
        newest = next(reversed(self._unite(-math.inf, until.monotonic_s)), None)
        return 0.0 if newest is None or newest[1] < until.monotonic_s else newest[1] - newest[0]

    def _unite(self, since_s: float, until_s: float) -> list[tuple[float, float]]:
        """Return the spans of waiting here or on another node, as such that do not touch, oldest first."""
        both = [*self._own_spans.iterate(since_s, until_s), *self._peer_spans.iterate(since_s, until_s)]
        united: list[tuple[float, float]] = []
        for begun_s, ended_s in sorted(both):
            if united and begun_s <= united[-1][1]:
                united[-1] = united[-1][0], max(ended_s, united[-1][1])
            else:
                united.append((begun_s, ended_s))
        return united


def find_explaining(
    reading: ProcessReading, trainers: Collection[int], *, computing: Collection[int], gpus_work: bool
) -> tuple[StorageWait, ...]:
    """Return the waits for file systems that explain why no step is made; () where they do not.

    `trainers` are the processes that make steps, `computing` those of them that the agent reports to be within a step,
    `gpus_work` says that every GPU of the job is known to be at work.
    """
    if not reading.storage_waits or has_other_cause(reading, trainers):
        return ()
    if own := [wait for wait in reading.storage_waits if wait.pid in trainers and wait.thread == wait.pid]:
        return (*own, *(wait for wait in reading.storage_waits if wait not in own))
    if gpus_work or not _has_idle_trainer(reading, trainers):
        return ()
    if not computing:
        return reading.storage_waits
    parents = dict(reading.parents)
    return tuple(
        wait
        for wait in reading.storage_waits
        if (served := _find_served(wait.pid, parents, trainers)) is not None and served not in computing
    )


def has_other_cause(reading: ProcessReading, trainers: Collection[int]) -> bool:
    """Whether a process of the job is stopped, or waits in the kernel for a GPU or for something unknown."""
    return bool(reading.stopped_pids) or _has_other_waits(reading, trainers)


def _find_served(pid: int, parents: Mapping[int, int], trainers: Collection[int]) -> int | None:
    """Return the process that trains which a process belongs to, itself or as a child; None where that is not known."""
    for _ in range(len(parents) + 1):  # a tree that was read while it changed may have a circle
        if pid in trainers:
            return pid
        if pid not in parents:
            return None
        pid = parents[pid]
    return None


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
