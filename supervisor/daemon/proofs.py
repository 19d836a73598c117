"""Proves checkpoints, by themselves and beside the generation before; it has them opened, and opens none itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor.core.checkpoints import Checkpoint, Verdict, of_this_training
from supervisor.core.continuation import judged
from supervisor.core.job import Job
from supervisor.core.profile import Profile, profile_of
from supervisor.runner.generations import Shelf
from supervisor.runner.proving import Proof

DOUBTED_TIMES = 2
"""So many checkpoints in a row, each the continuation of the one before, are doubted before the next is believed."""


class Proofs:
    """May be asked in any thread; a verdict, once there, holds for its content."""

    def __init__(
        self, examine: Callable[[Path], Proof], job: Callable[[str], Job | None], shelf: Callable[[str], Shelf]
    ) -> None:
        """`examine` has a file looked at by itself; the others know a job and its generations."""
        self._examine = examine
        self._job = job
        self._shelf = shelf
        self._doubted: dict[str, list[tuple[float, Profile]]] = {}
        self._lock = threading.Lock()

    def prove(self, job: str, path: Path) -> Checkpoint:
        """Return a checkpoint with its verdict: by itself, and beside the generation before it.

        Raises OSError where the file is not there.
        """
        shelf = self._shelf(job)
        known = _found(shelf, path)
        if known is not None and known.verdict is not None:
            return known  # its content cannot have changed
        proof = self._examine(path)
        with self._lock:
            known = _found(shelf, path)
            if known is not None and known.verdict is not None:
                return known  # it was condemned meanwhile
            one = proof.checkpoint if known is None else _said_of(known, proof.checkpoint)
            if one.verdict is Verdict.PROVEN and proof.profile is not None:
                one = self._compared(job, shelf, one, replace(proof.profile, step=one.step))
            if known is not None and known.fingerprint == one.fingerprint:
                shelf.judge(one, proof.said if one.verdict is Verdict.PROVEN else None)
        return one

    def judge(self, job: str, one: Checkpoint) -> None:
        """Keep a verdict that is not that of a proof: it stands against every proof under way."""
        with self._lock:
            if self._shelf(job).holds(one):
                self._shelf(job).judge(one)

    def _compared(self, job: str, shelf: Shelf, one: Checkpoint, profile: Profile) -> Checkpoint:
        """Return it rejected where it does not fit the newest proven generation that it can have come from."""
        before = self._before(job, shelf, one)
        # Only what was saved later can show that a new course lasts: a search goes back in time.
        doubted = [each for at_s, each in self._doubted.get(job, []) if at_s < one.saved_unix_s]
        measures = [*([before] if before else []), *(doubted[-1:] if len(doubted) >= DOUBTED_TIMES else [])]
        why, in_doubt = judged(profile, measures)
        if in_doubt:
            lasts = bool(doubted) and judged(profile, doubted[-1:])[0] is None
            self._doubted[job] = [*(self._doubted[job] if lasts else []), (one.saved_unix_s, profile)]
        elif why is None:
            self._doubted.pop(job, None)
        return one if why is None else replace(one, verdict=Verdict.REJECTED, reason=why)

    def _before(self, job: str, shelf: Shelf, one: Checkpoint) -> Profile | None:
        known = self._job(job)
        ours = of_this_training(shelf.all(), known.began_unix_s if known else None)
        for other in sorted(ours, key=lambda other: other.saved_unix_s, reverse=True):
            later = other.step is not None and one.step is not None and other.step > one.step
            if other.verdict is not Verdict.PROVEN or later or not other.saved_unix_s < one.saved_unix_s:
                continue
            profile = profile_of(shelf.profile(other))
            if profile is not None:
                return replace(profile, step=other.step)
        return None


def _found(shelf: Shelf, path: Path) -> Checkpoint | None:
    return next((own for own in shelf.all() if own.path == str(path)), None)


def _said_of(known: Checkpoint, proof: Checkpoint) -> Checkpoint:
    """Return the proof of a generation with what was known of it."""
    return replace(
        proof,
        epoch=known.epoch if proof.epoch is None else proof.epoch,
        step=known.step if known.step is not None else proof.step,
        kind=known.kind,
        source=known.source,
        kept_by=known.kept_by,
    )
