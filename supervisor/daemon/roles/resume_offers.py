"""What a node offers to resume from: generations of shards in the folder of all nodes, and the program's checkpoints.

It proves its share of them. The folder may hang: names and manifests are read by another process, and what was saved by
the prover alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from supervisor.children.files_apart import apart, apart_within
from supervisor.core.checkpoints.checkpoint import OTHER_FORMATS, Checkpoint, Fingerprint, Verdict
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.resume import Offer
from supervisor.daemon.checkpoints.candidates import list_matches
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.proving import Proof
from supervisor.runner.shared_generations import (
    GENERATION,
    list_generations,
    list_own,
    read_generation,
    read_own,
    remove_generations,
)
from supervisor.runner.unexamined import Unexamined

P = ParamSpec("P")
T = TypeVar("T")

OFFERED_MAX = 32
LOOK_LIMIT_S = 30.0
"""A launch must not wait for a file system for ever: it fails, and the leader asks what to resume from again."""

ExamineShare = Callable[[Path, int, int], Proof]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCheckpoints:
    """Where the program saves by itself, on a file system that all nodes share; without globs it counts for nothing."""

    globs: tuple[str, ...]
    cwd: str
    examine: Callable[[Path], Proof]
    loads_itself: bool = False
    """Whether no file is handed to the training; see `derive.loads_itself`."""


class ResumeOffers:
    """Of one node; asked in a thread of its own, before each launch."""

    def __init__(
        self,
        folder: Path | None,
        examine: ExamineShare,
        own: OwnCheckpoints | None = None,
        limit_s: float = LOOK_LIMIT_S,
    ) -> None:
        """`folder` is that of all nodes; None where the training has none, so that no generation is offered.

        `limit_s` is how long a file system may take for one answer.
        """
        self._folder, self._examine, self._limit_s = folder, examine, limit_s
        self._own = own if own is not None and own.globs else None
        self._lock = threading.Lock()
        self._unexamined = Unexamined()
        self._proven: dict[tuple[str, Fingerprint, int, int], Offer] = {}

    def find(self, asked: ms.FindResume) -> tuple[Offer, ...]:
        """Return what lies there, newest first, and prove down to the first that is not rejected.

        Raises OSError where the folder cannot be read, or does not answer in time.
        """
        with self._lock:
            offers = self._list(asked)
            found = {offer.name: offer for offer in offers}
            for offer in sorted(offers, key=lambda offer: offer.name in asked.passed_over):
                if offer.name in asked.rejected or offer.proven is False:
                    continue
                found[offer.name] = self._prove(offer, asked)
                if found[offer.name].proven:
                    break
            return tuple(found.values())

    def _list(self, asked: ms.FindResume) -> tuple[Offer, ...]:
        """Return what lies there, newest first: an exact generation comes before what the program saved."""
        generations = () if self._folder is None else self._look(list_generations, self._folder, OFFERED_MAX)
        if self._own is None:
            return generations
        paths = self._look(list_matches, self._own.globs, self._own.cwd)
        return (*generations, *self._look(list_own, paths, asked.since_unix_s, OFFERED_MAX))[:OFFERED_MAX]

    def _look(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Have another process look; raise TimeoutError with the place where that is not answered in time."""
        try:
            return apart_within(self._limit_s, work, *given, **named)
        except TimeoutError as error:
            raise TimeoutError(error.errno, error.strerror, str(given[0])) from None

    def locate(self, order: ms.Launch) -> Checkpoint | None:
        """Return what a launch resumes from as it lies here; None where it begins. Raises ValueError, OSError."""
        if order.resume_from is None:
            return None
        if self._own is not None and Path(order.resume_from).is_absolute():
            return self._locate_own(order, self._own)
        if self._folder is None or GENERATION.fullmatch(order.resume_from) is None:
            raise ValueError(f"the leader resumes from {order.resume_from}: no such generation is known here")
        offer = self._look(read_generation, self._folder, order.resume_from)
        path = self._folder / order.resume_from
        if offer.digest != order.resume_digest:
            raise ValueError(f"{path}: its manifest is not the one that was proven")
        return Checkpoint(
            path=str(path),
            fingerprint=self._look(fingerprint_of, path),
            step=offer.step,
            verdict=Verdict.PROVEN,
            kind="snapshot",
        )

    def _locate_own(self, order: ms.Launch, own: OwnCheckpoints) -> Checkpoint:
        path = str(order.resume_from)
        if path not in self._look(list_matches, own.globs, own.cwd):
            raise ValueError(f"the leader resumes from {path}: no checkpoint of the configuration is there")
        if self._look(read_own, path).digest != order.resume_digest:
            raise ValueError(f"{path}: is not what was proven")
        return Checkpoint(path=path, fingerprint=self._look(fingerprint_of, Path(path)), verdict=Verdict.PROVEN)

    def clear(self) -> None:
        """Remove the generations of a training that has finished: another of its name must not go on from them."""
        if self._folder is not None:
            apart(remove_generations, self._folder)

    def _prove(self, offer: Offer, asked: ms.FindResume) -> Offer:
        """Return an offer with the verdict on this node's share; that of unchanged files is known from before.

        Raises UnexaminedError where it could not be examined: the leader asks again.
        """
        folder = self._folder if GENERATION.fullmatch(offer.name) is not None else None
        if folder is None and asked.share > 0:
            return replace(offer, proven=True)  # by the node of share 0; its digest says whether this is the same
        path = Path(offer.name) if folder is None else folder / offer.name
        key = (offer.digest, self._look(fingerprint_of, path), asked.share, asked.shares)
        known = self._proven.get(key)
        if known is not None:
            return known
        if folder is not None:
            proof = self._examine(path, asked.share, asked.shares)
        else:
            assert self._own is not None
            proof = self._own.examine(path)
        self._unexamined.check(proof)
        checkpoint = proof.checkpoint
        proven = checkpoint.verdict is Verdict.PROVEN
        is_left = folder is None and self._own is not None and self._own.loads_itself
        loads_itself = is_left and not proven and checkpoint.reason in OTHER_FORMATS
        judged = replace(offer, proven=proven, reason=checkpoint.reason, loads_itself=loads_itself)
        self._proven = {**dict(list(self._proven.items())[-OFFERED_MAX:]), key: judged}
        return judged
