"""What a node offers to resume from: the generations of shards in the folder of all nodes, its share of them proven.

A generation is one only by its manifest. What lies in the folder was written by ranks, so names and manifests are read
through the gate, and shards by the prover alone.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files as names
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.resume import Offer
from supervisor.core.foreign_values import STEP_MAX, as_int, as_text, read_json_object
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.proving import SHARDS, Proof

MANIFEST_BYTES_MAX = 1 << 24
OFFERED_MAX = 32
_GENERATION = re.compile(names.SHARDED_SNAPSHOT)

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
            offers = sorted(self._list(self._folder), key=lambda offer: offer.order, reverse=True)[:OFFERED_MAX]
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
        if self._folder is None or _GENERATION.fullmatch(order.resume_from) is None:
            raise ValueError(f"the leader resumes from {order.resume_from}: no such generation is known here")
        offer = self._read(self._folder, order.resume_from)
        path = self._folder / order.resume_from
        if offer.digest != order.resume_digest:
            raise ValueError(f"{path}: its manifest is not the one that was proven")
        return Checkpoint(
            path=str(path),
            fingerprint=fingerprint_of(path),
            step=offer.step,
            verdict=Verdict.PROVEN,
            kind="snapshot",
        )

    def clear(self) -> None:
        """Remove the generations of a training that has finished: another of its name must not go on from them."""
        if self._folder is not None:
            for offer in tuple(self._list(self._folder)):
                untrusted_files.remove_tree(self._folder, offer.name)

    def _list(self, folder: Path) -> Iterable[Offer]:
        try:
            there = untrusted_files.list_names(folder).names
        except FileNotFoundError:
            return  # made by the first rank that saves
        for name in there:
            if _GENERATION.fullmatch(name) is None:
                continue
            try:
                yield self._read(folder, name)
            except FileNotFoundError:
                continue  # a folder without a manifest is no generation

    def _read(self, folder: Path, name: str) -> Offer:
        """Return a generation by its manifest, rejected where that is none. Raises OSError."""
        text = untrusted_files.read_bytes(folder, f"{name}/{SHARDS}", MANIFEST_BYTES_MAX)
        digest, facts = hashlib.sha256(text).hexdigest(), read_json_object(text)
        step = as_int((facts or {}).get("step"), maximum=STEP_MAX)
        epoch = as_text((facts or {}).get("epoch"))
        if facts is None or step is None or epoch is None or f"step-{step:012d}" != name:
            return Offer(name=name, digest=digest, proven=False, reason="its manifest is damaged, or of another step")
        numbers = tuple(int(part) for part in epoch.split(".") if part.isdecimal())
        return Offer(name=name, digest=digest, epoch=numbers, step=step)

    def _prove(self, folder: Path, offer: Offer, asked: ms.FindResume) -> Offer:
        """Return an offer with the verdict on this node's share; that of unchanged files is known from before."""
        key = (offer.digest, fingerprint_of(folder / offer.name), asked.share, asked.shares)
        known = self._proven.get(key)
        if known is not None:
            return known
        checkpoint = self._examine(folder / offer.name, asked.share, asked.shares).checkpoint
        proven = checkpoint.verdict is Verdict.PROVEN
        judged = replace(offer, proven=proven, reason=checkpoint.reason)
        self._proven = {**dict(list(self._proven.items())[-OFFERED_MAX:]), key: judged}
        return judged
