"""Single precision where half was asked for: the training is correct, but slower and larger than expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, condition, unwatched
from supervisor.core.history import History
from supervisor.core.unseen import ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp32Fallback:
    """The agent says that half precision was asked for and single is used, on a card.

    On the CPU single precision is expected and is not flagged.
    """

    name: ClassVar[str] = "fp32_fallback"
    group: ClassVar[Group] = "pace"
    enabled: bool = True

    def check(self, history: History) -> RedFlag | None:
        """Flag the fallback for as long as the attempt runs."""
        precision = history.told.precision
        if history.over or precision is None or "cpu" in (history.device, precision.device):
            return None
        if precision.asked == precision.used or precision.used != "single":
            return None
        why = f" ({precision.why})" if precision.why else ""
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"{precision.asked} precision was asked for, {precision.used} is used{why}",
            can_save=True,
            diagnosis=FALLBACK,
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return whether it fell back: no number is near to that."""
        what, precision = "half precision asked for, single used", history.told.precision
        if history.over or precision is None:
            return unwatched(self.name, what, ENDED if history.over else "precision not reported by this training")
        if "cpu" in (history.device, precision.device):
            return unwatched(self.name, what, "it trains on the CPU")
        return (condition(self.name, what, self.check(history)),)


FALLBACK = Diagnosis(
    ruled_out=("not a wrong result: single precision is the more exact one",),
    causes=(
        "ultralytics compares a prediction with and without AMP at the start and switches AMP off where they differ "
        "or where its test model cannot be had [ultralytics, check_amp]",
        "a GradScaler without an autocast around the forward pass [PyTorch docs, automatic mixed precision]",
    ),
    advice=(
        "amp=False makes it explicit; with AMP a batch takes about half the memory, so the batch may be too large",
    ),
)
