"""One collector and one proof queue per job, so that a hanging file system delays only the jobs that use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.events import CheckpointSeen
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoints.candidates import fingerprint
from supervisor.daemon.checkpoints.collector import CollectorDeps, GenerationCollector
from supervisor.daemon.checkpoints.proof_queue import REST_FACTOR, ProofQueue, Saved
from supervisor.daemon.fence import SEARCH
from supervisor.daemon.threads import Threads
from supervisor.runner.generation_store import GenerationStore
from supervisor.runner.proving import find_limit_s

CAPTURES, PROOFS = "generations", "checkpoint proofs"
"""Names of their threads, before that of the job."""
TAKING_LIMIT_S = 120.0
PROVING_LIMIT_S = 150.0
"""Longer than a prover's own time limit."""


class Verdicts(Protocol):
    """Proves the checkpoints of a job."""

    def prove(self, job: str, path: Path) -> Checkpoint:
        """Return a checkpoint with its verdict; raise OSError where the file is not there."""
        ...

    def judge(self, job: str, checkpoint: Checkpoint) -> None:
        """Set a verdict that does not come from a proof."""
        ...


class Generations(Protocol):
    """Collectors and proof queues by job; safe to call from any thread."""

    @property
    def proofs(self) -> Verdicts:
        """What judges them."""
        ...

    def store_of(self, job: str) -> GenerationStore:
        """Return the generations of a job."""
        ...

    def saved(self, saved: Saved, seen: Fingerprint) -> None:
        """Capture a file with the content that it had when its save was reported complete."""
        ...


class JobCollectors:
    """Creates both for a job at first use; together they use at most a tenth of one core."""

    def __init__(self, world: CollectorDeps, threads: Threads) -> None:
        self._world = world
        self._threads = threads
        self._lock = threading.Lock()
        self._collectors: dict[str, tuple[GenerationCollector, ProofQueue]] = {}
        self._ended = False

    @property
    def proofs(self) -> Verdicts:
        """What judges the checkpoints of each job."""
        return self

    def of(self, job: str) -> GenerationCollector:
        """Return the collector of a job."""
        with self._lock:
            if job not in self._collectors:
                watch = ProofQueue(
                    self._world.clock,
                    self._put_event,
                    self._sweep,
                    at=self._enter_work(PROOFS, job, PROVING_LIMIT_S),
                    rest_factor=self.rest_factor,
                )
                collector = GenerationCollector(self._world, watch, at=self._enter_work(CAPTURES, job, TAKING_LIMIT_S))
                self._collectors[job] = (collector, watch)
                if not self._ended:
                    watch.start()
                    collector.start()
            return self._collectors[job][0]

    def store_of(self, job: str) -> GenerationStore:
        """Return the generations of a job."""
        return self.of(job).store_of(job)

    def saved(self, saved: Saved, seen: Fingerprint) -> None:
        """See `GenerationCollector.saved`."""
        self.of(saved.job).saved(saved, seen)

    def offer_found(self, saved: Saved, now: Moment) -> None:
        """See `GenerationCollector.looked`."""
        self.of(saved.job).offer_found(saved, now)

    def prove(self, job: str, path: Path) -> Checkpoint:
        """See `Proofs.prove`; who proves a large one is not reported while it is read."""
        stat = fingerprint(path)
        more_s = 0.0 if stat is None else find_limit_s(stat.size_bytes, 0.0)
        for what in (f"proving {path}", SEARCH):
            self._threads.allow_more(what, job, more_s)
        return self.of(job).proofs.prove(job, path)

    def judge(self, job: str, checkpoint: Checkpoint) -> None:
        """See `Proofs.judge`."""
        self.of(job).proofs.judge(job, checkpoint)

    def end_gone(self, configured: Collection[str]) -> None:
        """End what jobs had that are not configured any more, once it has nothing left to do."""
        with self._lock:
            for job in [name for name in self._collectors if name not in configured]:
                collector, watch = self._collectors[job]
                if collector.is_idle and watch.is_idle:
                    collector.end()
                    watch.end()
                    del self._collectors[job]
                    for kind in (CAPTURES, PROOFS):
                        self._threads.leave(f"{kind} {job}")

    def end(self) -> None:
        """End each collector after its current work."""
        with self._lock:
            self._ended = True
            for collector, watch in self._collectors.values():
                collector.end()
                watch.end()

    def _put_event(self, event: CheckpointSeen) -> None:
        self._world.put(event)

    def _sweep(self, job: str) -> None:
        with self._lock:
            known = self._collectors.get(job)
        if known is not None:
            known[0].sweep(job)

    def rest_factor(self) -> float:
        """Return how long a queue rests after a proof, in times of its duration: those share that have work."""
        with self._lock:
            queues = [watch for _, watch in self._collectors.values()]
        return (REST_FACTOR + 1) * max(1, sum(not watch.is_idle for watch in queues)) - 1

    def _enter_work(self, kind: str, job: str, limit_s: float) -> Callable[[str], AbstractContextManager[None]]:
        post = self._threads.post(f"{kind} {job}", job=job)
        return partial(self._threads.working, post, limit_s=limit_s)
