"""ECC: a GPU's error counters grow; only what is counted since the launch matters.

When it acts. Uncorrectable errors grew, and the kernel's log reports a fault of that GPU too. One without the other may
lie in memory that the training does not use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.findings import FaultClass
from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.gpu_facts import GpuFacts
from supervisor.core.history import History
from supervisor.core.readings import GpuReading
from supervisor.core.remedies import causes

NOT_REPORTED = "counter not reported by this GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ecc:
    """More uncorrectable errors than at the launch; or, as a warning, `tolerated_correctable` more corrected ones."""

    name: ClassVar[str] = "ecc"
    group: ClassVar[Group] = "gpus"
    cause: ClassVar[str] = causes.GPU_LOST
    enabled: bool = True
    act: Act = True
    tolerated_correctable: int = 100

    def may_flag(self, history: History) -> bool:
        """Whether a GPU has had errors since the launch."""
        return not history.over and any(
            history.gpu_facts[gpu].ecc_grew_at is not None
            or (_count_corrected(readings[-1], history.gpu_facts[gpu]) or 0) > self.tolerated_correctable
            for gpu, readings in history.readings_by_gpu().items()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how many errors each GPU has had since the launch, uncorrectable ones first."""
        if (why := history.why_no_gpu_readings()) is not None:
            return not_applicable("memory errors of its GPUs", why)
        gpus = [(gpu, history.gpu_facts[gpu], readings[-1]) for gpu, readings in history.readings_by_gpu().items()]
        uncorrectable = (self._measure_uncorrectable(history, gpu, facts) for gpu, facts, _ in gpus)
        return (
            *uncorrectable,
            *(self._measure_corrected(gpu, _count_corrected(newest, facts)) for gpu, facts, newest in gpus),
        )

    def _measure_uncorrectable(self, history: History, gpu: str, facts: GpuFacts) -> Gauge:
        acts = bool(self.act) and _is_in_kernel_log(history, gpu) and gpu in history.gpus_used
        return Gauge(
            what=f"uncorrectable memory errors of {gpu} grow",
            met=facts.ecc_grew_at is not None,
            severity=Severity.acting(act=acts),
            not_watched=NOT_REPORTED if facts.ecc_uncorrectable is None else None,
            observe=partial(_observe_uncorrectable, history, gpu, facts),
        )

    def _measure_corrected(self, gpu: str, more: int | None) -> Gauge:
        return Gauge(
            what=f"corrected memory errors of {gpu} since the launch",
            now=more,
            limit=self.tolerated_correctable + 1,
            not_watched=NOT_REPORTED if more is None else None,
            observe=partial(self._observe_corrected, gpu, more),
        )

    def _observe_corrected(self, gpu: str, more: int | None) -> Observation:
        return Observation(
            message=f"{gpu}: {more} memory errors were corrected since the launch (reported from "
            f"{self.tolerated_correctable} on)",
            can_save=True,
            subject=f"{gpu} correctable",
            diagnosis=CORRECTED,
        )


def _observe_uncorrectable(history: History, gpu: str, facts: GpuFacts) -> Observation:
    return Observation(
        message=f"{gpu}: uncorrectable memory errors grew from {facts.ecc_uncorrectable} since the launch"
        + (", also in the kernel log" if _is_in_kernel_log(history, gpu) else ""),
        since=facts.ecc_unchanged_at or facts.ecc_grew_at or history.now,
        subject=gpu,
        diagnosis=UNCORRECTABLE,
    )


def _is_in_kernel_log(history: History, gpu: str) -> bool:
    """Whether the kernel's log reports a fault of that GPU too."""
    return any(
        finding.gpu == gpu
        and finding.fault in (FaultClass.ECC_UNCORRECTABLE, FaultClass.PAGE_FAULT, FaultClass.GPU_RESET)
        for finding in history.kernel.findings
        if finding.at.seconds_since(history.launched_at) >= 0
    )


def _count_corrected(newest: GpuReading, facts: GpuFacts) -> int | None:
    if newest.ecc_correctable is None or facts.ecc_correctable is None:
        return None
    return newest.ecc_correctable - facts.ecc_correctable


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
