"""What a node offers to resume from: the generations of shards in the folder of all nodes, its share of them proven.

The folder may hang: names and manifests are read by another process, and shards by the prover alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor.children.files_apart import apart, apart_within
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.resume import Offer
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.proving import Proof
from supervisor.runner.shared_generations import GENERATION, list_generations, read_generation, remove_generations

OFFERED_MAX = 32
LOCATE_LIMIT_S = 30.0
"""A launch must not wait for a file system for ever: it fails, and the leader asks what to resume from again."""

ExamineShare = Callable[[Path, int, int], Proof]


class ResumeOffers:
    """Of one node; asked in a thread of its own, before each launch."""

    def __init__(self, folder: Path | None, examine: ExamineShare) -> None:
        """`folder` is that of all nodes; None where the training has none, so that nothing is offered."""
        self._folder, self._examine = folder, examine
        self._lock = threading.Lock()
        self._proven: dict[tuple[str, Fingerprint, int, int], Offer] = {}

    def find(self, asked: ms.FindResume) -> tuple[Offer, ...]:
        """Return what lies there, newest first, and prove down to the first that is not rejected.

        Raises OSError where the folder cannot be read.
        """
        if self._folder is None:
            return ()
        with self._lock:
            offers = apart(list_generations, self._folder, OFFERED_MAX)
            found = {offer.name: offer for offer in offers}
            for offer in sorted(offers, key=lambda offer: offer.name in asked.passed_over):
                if offer.name in asked.rejected or offer.proven is False:
                    continue
                found[offer.name] = self._prove(self._folder, offer, asked)
                if found[offer.name].proven:
                    break
            return tuple(found.values())

    def locate(self, order: ms.Launch) -> Checkpoint | None:
        """Return what a launch resumes from as it lies here; None where it begins. Raises ValueError, OSError."""
        if order.resume_from is None:
            return None
        if self._folder is None or GENERATION.fullmatch(order.resume_from) is None:
            raise ValueError(f"the leader resumes from {order.resume_from}: no such generation is known here")
        offer = apart_within(LOCATE_LIMIT_S, read_generation, self._folder, order.resume_from)
        path = self._folder / order.resume_from
        if offer.digest != order.resume_digest:
            raise ValueError(f"{path}: its manifest is not the one that was proven")
        return Checkpoint(
            path=str(path),
            fingerprint=apart_within(LOCATE_LIMIT_S, fingerprint_of, path),
            step=offer.step,
            verdict=Verdict.PROVEN,
            kind="snapshot",
        )

    def clear(self) -> None:
        """Remove the generations of a training that has finished: another of its name must not go on from them."""
        if self._folder is not None:
            apart(remove_generations, self._folder)

    def _prove(self, folder: Path, offer: Offer, asked: ms.FindResume) -> Offer:
        """Return an offer with the verdict on this node's share; that of unchanged files is known from before."""
        key = (offer.digest, apart(fingerprint_of, folder / offer.name), asked.share, asked.shares)
        known = self._proven.get(key)
        if known is not None:
            return known
        checkpoint = self._examine(folder / offer.name, asked.share, asked.shares).checkpoint
        proven = checkpoint.verdict is Verdict.PROVEN
        judged = replace(offer, proven=proven, reason=checkpoint.reason)
        self._proven = {**dict(list(self._proven.items())[-OFFERED_MAX:]), key: judged}
        return judged
