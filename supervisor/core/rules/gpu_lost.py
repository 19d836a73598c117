"""GPU lost: a card of the job is gone from the readings while others answer. A sensor that is silent for all is none.

Proof for acting: it is gone, others answer, and no step was made since. The kernel's own word for it is `gpu_fault`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLost:
    """A card in use that had answered `min_readings` times is missing for `hold_s` from rounds that others answer.

    It acts once no step was made for `quiet_s` either: a training that steps has its card, whatever the tool says.
    Where the job names no cards, nobody knows that it was this one's: that is only told.
    """

    name: ClassVar[str] = "gpu_lost"
    enabled: bool = True
    act: Act = True
    hold_s: float = 15.0
    quiet_s: float = 30.0
    min_readings: int = 5

    def check(self, history: History) -> RedFlag | None:
        """Flag the first card that is gone."""
        read_at = history.gpus_read_at
        if history.over or read_at is None or history.device == "cpu" or len(history.cards) < 2:
            return None
        for gpu, card in history.cards.items():
            gone_s = read_at.seconds_since(card.last_at)
            if history.uses(gpu) and card.readings >= self.min_readings and gone_s >= self.hold_s:
                return self._flag(history, gpu, gone_s)
        return None

    def _flag(self, history: History, gpu: str, gone_s: float) -> RedFlag:
        gone_at = history.cards[gpu].last_at
        last = history.last_step_at
        stepped = last is not None and last.seconds_since(gone_at) > 0
        quiet_s = history.now.seconds_since(gone_at)
        stuck = history.hooked and last is not None and not stepped and quiet_s >= self.quiet_s
        steps = "steps go on" if stepped else f"no step for {quiet_s:.0f} s"
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act and stuck and gpu in history.gpus_used),
            at=history.now,
            message=f"{gpu}: gone from the readings for {gone_s:.0f} s while other cards answer; {steps}",
            since=gone_at if stuck else None,
            subject=gpu,
            diagnosis=GONE,
        )


GONE = Diagnosis(
    ruled_out=("not a tool that fails: it reads the other cards",),
    causes=(
        "the card fell off the bus: power, slot, riser [kernel: amdgpu, device lost from bus]",
        "a reset that failed [kernel: amdgpu, GPU reset end with ret]",
        "somebody took it away: unbound, or given to a virtual machine",
    ),
    advice=("lspci -s ADDRESS; a card that is gone comes back with a cold start [ROCm/ROCm#2689]",),
)
