"""GPU lost: a GPU of the job is missing from the readings while others answer. A tool that fails for all is not this.

When it acts. It is missing, others answer, and no step was made since. The kernel's report of it is `gpu_fault`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.remedies import causes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLost:
    """A GPU in use that had answered `min_readings` times is missing for `hold_s` from rounds that others answer.

    It acts once no step was made for `no_step_s` either: a training that steps has its GPU.
    Where the job names no GPUs, it is not known whether it was this job's: it only warns.
    """

    name: ClassVar[str] = "gpu_lost"
    group: ClassVar[Group] = "gpus"
    cause: ClassVar[str] = causes.GPU_LOST
    enabled: bool = True
    act: Act = True
    hold_s: float = 15.0
    no_step_s: float = 30.0
    min_readings: int = 5

    def may_flag(self, history: History) -> bool:
        """Whether a GPU has been gone for `hold_s`."""
        several = not history.over and len(history.gpu_facts) >= 2
        return several and any(gone_s >= self.hold_s for _, gone_s in self._list_gone(history))

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long each GPU has been gone."""
        why = history.why_no_gpu_readings() or (
            "there is no other GPU that answers" if len(history.gpu_facts) < 2 else None
        )
        gone = tuple(self._list_gone(history))
        if why is not None or not gone:
            return not_applicable("GPUs gone from the readings", why or "too few readings of its GPUs")
        return tuple(
            Gauge(
                what=f"{gpu} gone from the readings, others answer",
                unit="s",
                now=gone_s,
                limit=self.hold_s,
                severity=Severity.acting(act=self.act and self._is_stuck(history, gpu) and gpu in history.gpus_used),
                observe=partial(self._observe_loss, history, gpu, gone_s),
            )
            for gpu, gone_s in gone
        )

    def _list_gone(self, history: History) -> Iterator[tuple[str, float]]:
        """Yield each GPU that is known well enough, and the seconds since it last answered."""
        read_at = history.gpus_read_at
        for gpu, facts in history.gpu_facts.items():
            if read_at is not None and history.uses(gpu) and facts.readings >= self.min_readings:
                yield gpu, history.absences.seconds(facts.last_at, read_at)

    def _is_stuck(self, history: History, gpu: str) -> bool:
        gone_at, last = history.gpu_facts[gpu].last_at, history.last_step_at
        if not history.hooked or last is None or last.seconds_since(gone_at) > 0:
            return False
        return history.known_s(gone_at) >= self.no_step_s

    def _observe_loss(self, history: History, gpu: str, gone_s: float) -> Observation:
        gone_at, last = history.gpu_facts[gpu].last_at, history.last_step_at
        stepped = last is not None and last.seconds_since(gone_at) > 0
        steps = "steps go on" if stepped else f"no step for {max(0.0, history.known_s(gone_at)):.0f} s"
        return Observation(
            message=f"{gpu}: gone from the readings for {gone_s:.0f} s while other GPUs answer; {steps}",
            since=gone_at if self._is_stuck(history, gpu) else None,
            subject=gpu,
            diagnosis=GONE,
        )


GONE = Diagnosis(
    ruled_out=("not a tool that fails: it reads the other GPUs",),
    causes=(
        "the GPU fell off the bus: power, slot, riser [kernel: amdgpu, device lost from bus]",
        "a reset that failed [kernel: amdgpu, GPU reset end with ret]",
        "it was taken away: unbound, or given to a virtual machine",
    ),
    advice=("lspci -s ADDRESS; a GPU that is gone comes back with a cold start [ROCm/ROCm#2689]",),
)
