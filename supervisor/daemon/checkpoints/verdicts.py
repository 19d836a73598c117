"""Proves checkpoints, each alone and against the generation before it; a prover process opens the files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict, merge_proof, of_this_training
from supervisor.core.checkpoints.continuity import judge_profile, other_architecture
from supervisor.core.checkpoints.tensor_stats import Profile, profile_of
from supervisor.core.job import Job
from supervisor.runner.generation_store import GenerationStore
from supervisor.runner.proving import Proof
from supervisor.runner.unexamined import Unexamined

DOUBTED_TIMES = 2
"""How many checkpoints in a row, each continuing the one before, are doubted before the next is accepted."""
SAME_SAVE_S = 30.0
"""Files of unknown steps that were written closer together than this are those of one save."""


class Proofs:
    """Safe to call from any thread; a verdict is final for its content."""

    def __init__(
        self,
        examine: Callable[[Path], Proof],
        job: Callable[[str], Job | None],
        store_of: Callable[[str], GenerationStore],
    ) -> None:
        """`examine` checks one file by itself; the others return a job's limits and generations."""
        self._examine = examine
        self._job = job
        self._store_of = store_of
        self._doubted: dict[str, list[tuple[float, Profile]]] = {}
        self._unexamined = Unexamined()
        self._lock = threading.Lock()

    def prove(self, job: str, path: Path) -> Checkpoint:
        """Return a checkpoint with its verdict: from the file alone, and compared with the generation before it.

        Raises OSError where the file is not there, and UnexaminedError where it could not be examined.
        """
        store = self._store_of(job)
        known = _find_generation(store, path)
        if known is not None and known.verdict is not None:
            return known  # its content cannot have changed
        proof = self._examine(path)
        self._unexamined.check(proof)
        with self._lock:
            known = _find_generation(store, path)
            if known is not None and known.verdict is not None:
                return known  # rejected meanwhile
            checkpoint = proof.checkpoint if known is None else merge_proof(known, proof.checkpoint)
            if checkpoint.verdict is Verdict.PROVEN and proof.profile is not None:
                checkpoint = self._compare_with_earlier(
                    job, store, checkpoint, replace(proof.profile, step=checkpoint.step)
                )
            if known is not None and known.fingerprint == checkpoint.fingerprint:
                store.judge(checkpoint, proof.raw_profile if checkpoint.verdict is Verdict.PROVEN else None)
        return checkpoint

    def judge(self, job: str, checkpoint: Checkpoint) -> None:
        """Set a verdict that does not come from a proof; it overrides every proof in progress."""
        with self._lock:
            if self._store_of(job).holds(checkpoint):
                self._store_of(job).judge(checkpoint)

    def _compare_with_earlier(
        self, job: str, store: GenerationStore, checkpoint: Checkpoint, profile: Profile
    ) -> Checkpoint:
        """Return it rejected where it does not continue the newest proven generation that it can come from."""
        before = self._find_earlier_profiles(job, store, checkpoint, profile)
        # Only later saves can show that a change is permanent: a search goes back in time.
        earlier = [each for at_s, each in self._doubted.get(job, []) if at_s < checkpoint.saved_unix_s]
        doubted = [each for each in earlier if each.fit == profile.fit]
        measures = [*before, *(doubted[-1:] if len(doubted) >= DOUBTED_TIMES else [])]
        why, in_doubt = judge_profile(profile, measures)
        if in_doubt:
            lasts = bool(doubted) and judge_profile(profile, doubted[-1:])[0] is None
            self._doubted[job] = [*(self._doubted[job] if lasts else []), (checkpoint.saved_unix_s, profile)]
        elif why is None:
            self._doubted.pop(job, None)
        return checkpoint if why is None else replace(checkpoint, verdict=Verdict.REJECTED, reason=why)

    def _find_earlier_profiles(
        self, job: str, store: GenerationStore, checkpoint: Checkpoint, profile: Profile
    ) -> list[Profile]:
        """Return what it has to continue: the newest proven generation of its series, and a newer one of another.

        Of several trainings that a script makes one after another only the same one counts. Another series may hold
        another network, as of a GAN, whose checkpoints one pattern matches: of these one counts that has the same
        tensors and is no file of the same save, as those of two generators of the same kind are.
        """
        known = self._job(job)
        began_unix_s = known.training_began_unix_s(checkpoint.saved_unix_s) if known else None
        ours = of_this_training(store.all(), began_unix_s)
        of_others: list[Profile] = []
        for other in sorted(ours, key=lambda other: other.saved_unix_s, reverse=True):
            later = other.step is not None and checkpoint.step is not None and other.step > checkpoint.step
            if other.verdict is not Verdict.PROVEN or later or not other.saved_unix_s < checkpoint.saved_unix_s:
                continue
            is_own = other.series == checkpoint.series
            if not is_own and (of_others or _is_same_save(other, checkpoint)):
                continue
            earlier = profile_of(store.profile(other))
            if earlier is None or earlier.fit != profile.fit:
                continue
            if is_own:
                return [replace(earlier, step=other.step), *of_others]
            if other_architecture(profile, earlier) is None:
                of_others = [replace(earlier, step=other.step)]
        return of_others


def _is_same_save(other: Checkpoint, checkpoint: Checkpoint) -> bool:
    if other.step is not None and checkpoint.step is not None:
        return other.step == checkpoint.step
    return checkpoint.saved_unix_s - other.saved_unix_s < SAME_SAVE_S


def _find_generation(store: GenerationStore, path: Path) -> Checkpoint | None:
    return next((own for own in store.all() if own.path == str(path)), None)
