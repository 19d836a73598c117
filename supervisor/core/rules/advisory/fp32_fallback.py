"""Single precision where half was asked for: the training is correct, but slower and larger than expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Diagnosis
from supervisor.core.gauge import Gauge, Group, Observation, event_gauge, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp32Fallback:
    """The agent says that half precision was asked for and single is used, on a GPU.

    On the CPU single precision is expected and is not flagged.
    """

    name: ClassVar[str] = "fp32_fallback"
    group: ClassVar[Group] = "pace"
    enabled: bool = True

    def may_flag(self, history: History) -> bool:
        """Whether another precision is used than was asked for."""
        precision = history.reports.precision
        return not history.over and precision is not None and precision.asked != precision.used

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return whether it fell back, for as long as the attempt runs; no number is near to that."""
        what, precision = "half precision asked for, single used", history.reports.precision
        if history.over or precision is None:
            return not_applicable(what, ATTEMPT_ENDED if history.over else "precision not reported by this training")
        if "cpu" in (history.device, precision.device):
            return not_applicable(what, "it trains on the CPU")
        if precision.asked == precision.used or precision.used != "single":
            return (event_gauge(what, None),)
        why = f" ({precision.why})" if precision.why else ""
        text = f"{precision.asked} precision was asked for, {precision.used} is used{why}"
        return (event_gauge(what, Observation(message=text, can_save=True, diagnosis=FALLBACK)),)


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
