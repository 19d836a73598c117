"""Has checkpoints proven as soon as they are saved, so that a crash need not wait for it.

Proving costs a second interpreter a second or two, so it keeps to a share of one core: between two proofs it rests
in proportion to what the last one took. The search after a crash proves what is still unproven, without resting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, merge_proof
from supervisor.core.events import CheckpointSeen
from supervisor.daemon.checkpoints.candidates import Prove, fingerprint
from supervisor.daemon.clock import Clock
from supervisor.runner.unexamined import UnexaminedError

log = logging.getLogger(__name__)

REST_FACTOR = 9.0
"""The pause after a proof as a multiple of its duration: at most a tenth of one core."""

PROVEN_KEPT = 512
"""Paths of which it is remembered what was proven; a training may save each state under a new name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A file that was reported as a checkpoint, or whose name is that of one."""

    job: str
    attempt: int
    path: Path
    prove: Prove
    epoch: int | None = None
    step: int | None = None
    kind: str = "checkpoint"


class ProofQueue(threading.Thread):
    """One thread, one proof at a time; a path saved again before its proof is proven once, as it is then."""

    def __init__(
        self,
        clock: Clock,
        put: Callable[[CheckpointSeen], None],
        proven: Callable[[str], None] = lambda _: None,
        at: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        rest_factor: Callable[[], float] = lambda: REST_FACTOR,
    ) -> None:
        """`proven` is called with the job after each verdict; `at` is entered with what it is doing."""
        super().__init__(name="checkpoint-watch", daemon=True)
        self._clock = clock
        self._put = put
        self._proven = proven
        self._at = at
        self._rest_factor = rest_factor
        self._waiting: dict[tuple[str, Path], Saved] = {}
        self._proven_as: dict[tuple[str, Path], Fingerprint] = {}
        self._wake = threading.Condition()
        self._ended = False
        self._busy = False
        self._proving: Saved | None = None

    def is_proving(self, path: str) -> bool:
        """Whether a file is being proven; in any thread."""
        proving = self._proving
        return proving is not None and str(proving.path) == path

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, is being proven or was proven just now; in any thread."""
        with self._wake:
            return not self._busy and not self._waiting

    def saved(self, saved: Saved) -> None:
        """Queue a file for its proof."""
        with self._wake:
            self._waiting[(saved.job, saved.path)] = saved
            self._wake.notify()

    def end(self) -> None:
        """Stop after the current proof."""
        with self._wake:
            self._ended = True
            self._wake.notify()

    def run(self) -> None:
        """Prove queued files until stopped, with a pause after each."""
        while (saved := self._wait_for_next()) is not None:
            began = self._clock.now()
            try:
                with self._at(f"proving {saved.path}"):
                    self._prove_saved(saved)
            except UnexaminedError as error:  # a search examines it again
                log.warning("checkpoint.not_examined", extra={"fields": {"job": saved.job, "why": str(error)}})
            except Exception:
                log.exception("checkpoint.proof_failed", extra={"fields": {"job": saved.job}})
            self._proving = None
            self._rest_for(self._clock.now().seconds_since(began) * self._rest_factor())

    def _wait_for_next(self) -> Saved | None:
        with self._wake:
            self._busy = False
            while not self._waiting and not self._ended:
                self._wake.wait()
            if self._ended:
                return None
            self._busy = True
            self._proving = self._waiting.pop(next(iter(self._waiting)))
            return self._proving

    def _rest_for(self, rest_s: float) -> None:
        until = self._clock.now().monotonic_s + rest_s
        with self._wake:
            while not self._ended and (left := until - self._clock.now().monotonic_s) > 0:
                self._wake.wait(left)

    def _prove_saved(self, saved: Saved) -> None:
        stat = fingerprint(saved.path)
        if stat is None or self._proven_as.get((saved.job, saved.path)) == stat:
            return
        recorded = Checkpoint(
            path=str(saved.path), fingerprint=stat, epoch=saved.epoch, step=saved.step, kind=saved.kind
        )
        try:
            verdict = merge_proof(recorded, saved.prove(saved.path))
        except FileNotFoundError:
            if fingerprint(saved.path) is not None:
                raise  # it is something else that is missing
            return
        if fingerprint(saved.path) is None:
            return  # pruned meanwhile: a missing file is not an error
        self._proven_as[(saved.job, saved.path)] = verdict.fingerprint
        if len(self._proven_as) > PROVEN_KEPT:
            del self._proven_as[next(iter(self._proven_as))]
        self._put(CheckpointSeen(at=self._clock.now(), job=saved.job, attempt=saved.attempt, checkpoint=verdict))
        self._proven(saved.job)
