"""ECC: a card's error counters grow. It counts from the launch on: what was there before says nothing of this training.

Proof for acting: uncorrectable errors grew, and the kernel's log told of a fault of that card too. One without the
other may lie in memory that the training does not use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.findings import FaultClass
from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, unwatched
from supervisor.core.gpu_facts import CardFacts
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.remedies import causes
from supervisor.core.unseen import no_cards


@dataclass(frozen=True, slots=True, kw_only=True)
class Ecc:
    """More uncorrectable errors than at the launch; or `tolerated_correctable` more corrected ones, which is told."""

    name: ClassVar[str] = "ecc"
    group: ClassVar[Group] = "cards"
    cause: ClassVar[str] = causes.GPU_LOST
    enabled: bool = True
    act: Act = True
    tolerated_correctable: int = 100

    def check(self, history: History) -> RedFlag | None:
        """Flag the first card with uncorrectable errors, or else the first with many corrected ones."""
        if history.over:
            return None
        cards = [(gpu, history.cards[gpu], readings[-1]) for gpu, readings in history.readings_by_gpu().items()]
        for gpu, card, _ in cards:
            if card.ecc_grew_at is not None:
                return self._uncorrectable(history, gpu, card)
        for gpu, card, newest in cards:
            more = _more(newest, card)
            if more is not None and more > self.tolerated_correctable:
                return self._corrected(history, gpu, more)
        return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return how many errors each card has had since the launch."""
        if (why := no_cards(history)) is not None:
            return unwatched(self.name, "memory errors of its cards", why)
        return tuple(
            gauge
            for gpu, readings in history.readings_by_gpu().items()
            for gauge in self._of_card(history, gpu, history.cards[gpu], readings[-1])
        )

    def _of_card(self, history: History, gpu: str, card: CardFacts, newest: GpuReading) -> tuple[Gauge, Gauge]:
        silent = "counter not reported by this GPU"
        spoilt = Gauge(
            rule=self.name,
            what=f"uncorrectable memory errors of {gpu} grow",
            met=card.ecc_grew_at is not None,
            severity=Severity.acting(act=self._acts(history, gpu)),
            not_watched=silent if card.ecc_uncorrectable is None else None,
        )
        more = _more(newest, card)
        corrected = Gauge(
            rule=self.name,
            what=f"corrected memory errors of {gpu} since the launch",
            now=more,
            limit=self.tolerated_correctable + 1,
            not_watched=silent if more is None else None,
        )
        return spoilt, corrected

    def _acts(self, history: History, gpu: str) -> bool:
        return bool(self.act) and _heard(history, gpu) and gpu in history.gpus_used

    def _uncorrectable(self, history: History, gpu: str, card: CardFacts) -> RedFlag:
        grew_at = card.ecc_grew_at or history.now
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self._acts(history, gpu)),
            at=history.now,
            message=f"{gpu}: uncorrectable memory errors grew from {card.ecc_uncorrectable} since the launch"
            + (", also in the kernel log" if _heard(history, gpu) else ""),
            since=card.ecc_sound_at or grew_at,
            subject=gpu,
            diagnosis=UNCORRECTABLE,
        )

    def _corrected(self, history: History, gpu: str, more: int) -> RedFlag:
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"{gpu}: {more} memory errors were corrected since the launch (told from "
            f"{self.tolerated_correctable} on)",
            can_save=True,
            subject=f"{gpu} correctable",
            diagnosis=CORRECTED,
        )


def _heard(history: History, gpu: str) -> bool:
    """Whether the kernel's log tells of a fault of that card too."""
    return any(
        finding.gpu == gpu
        and finding.fault in (FaultClass.ECC_UNCORRECTABLE, FaultClass.PAGE_FAULT, FaultClass.GPU_RESET)
        for finding in history.kernel
        if finding.at.seconds_since(history.launched_at) >= 0
    )


def _more(newest: GpuReading, card: CardFacts) -> int | None:
    if newest.ecc_correctable is None or card.ecc_correctable is None:
        return None
    return newest.ecc_correctable - card.ecc_correctable


UNCORRECTABLE = Diagnosis(
    ruled_out=("not an old error: the counter was lower at the launch",),
    causes=("failing memory", "heat or voltage at their limit"),
    advice=(
        "what was computed since may be wrong: go back to a checkpoint from before",
        "the driver retires bad pages at its next start: reboot [kernel docs, amdgpu RAS]",
    ),
)
CORRECTED = Diagnosis(
    ruled_out=("not a wrong result: each of them was corrected",),
    causes=("memory that begins to fail, heat",),
    advice=("watch whether the uncorrectable ones follow: supervisorctl gpus",),
)
