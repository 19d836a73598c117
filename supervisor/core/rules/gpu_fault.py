"""GPU fault: what the kernel's log says of a GPU that the job uses; the lines were read and classed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.findings import LAST_BOOT, FaultClass, FaultSeverity, KernelFinding
from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, event_gauge
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.remedies import causes

LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """A fault of a GPU in use, since the launch: a fatal one acts, the newest other one is a warning.

    What was saved after a fatal fault may hold wrong results, so checkpoints count as spoilt from that line on.

    A hang acts once it has lasted `hold_s`, any other fatal fault at once: from Linux 6.11 on the driver resets the
    ring that timed out, and reports within milliseconds that it succeeded. Where it does not, its own wait for the ring
    ends after two seconds, and the whole GPU is reset.
    """

    name: ClassVar[str] = "gpu_fault"
    group: ClassVar[Group] = "gpus"
    cause: ClassVar[str] = causes.GPU_HANG
    enabled: bool = True
    act: Act = True
    hold_s: float = 1.0

    def may_flag(self, history: History) -> bool:
        """Whether the kernel's log holds any finding."""
        return bool(history.kernel.findings)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return whether the kernel's log reports a fault; no number is near to that."""
        what = "fault of a GPU in use in the kernel log"
        found, fatal = self._find_fault(history)
        observed = None if found is None else _observe_fault(history, found, fatal=fatal)
        acts = found is None or fatal
        return (event_gauge(what, observed, Severity.acting(act=self.act and acts)),)

    def _find_fault(self, history: History) -> tuple[KernelFinding | None, bool]:
        """Return the first fatal finding, else the newest other one, and whether it is fatal; none that is held."""
        found = [
            finding
            for finding in history.kernel.findings
            if self._is_about(history, finding) and not self._is_held(history, finding)
        ]
        fatal = next((finding for finding in found if is_fatal(history, finding)), None)
        if fatal is not None:
            return fatal, True
        return (found[-1] if found and not history.over else None), False

    def _is_held(self, history: History, finding: KernelFinding) -> bool:
        """Whether the driver may still say that a hang is over; not waited for once the training has ended."""
        if history.over or finding.fault is not FaultClass.GPU_HANG or not is_fatal(history, finding):
            return False
        since = history.kernel.fatal_since.get(finding.key, finding.reported_at)
        return history.now.seconds_since(since) < self.hold_s

    @staticmethod
    def _is_about(history: History, finding: KernelFinding) -> bool:
        if finding.origin == LAST_BOOT or finding.severity is FaultSeverity.INFO:
            return False
        return finding.reported_at.seconds_since(history.launched_at) >= 0 and history.concerns(finding)


def _observe_fault(history: History, finding: KernelFinding, *, fatal: bool) -> Observation:
    gpu = finding.gpu or ""
    return Observation(
        message=message_of(finding, gpu or "a GPU"),
        since=_find_start(history, finding) if fatal else None,
        subject=gpu if fatal else f"{gpu} {finding.fault.value}",
        fault=finding.fault.value,
        diagnosis=diagnosis_of(finding),
    )


def is_fatal(history: History, finding: KernelFinding) -> bool:
    """Whether the attempt cannot go on: a page fault, say, takes only the process that made it."""
    return finding.fatal and not (finding.of_process and history.is_anothers(finding.pid))


def _find_start(history: History, finding: KernelFinding) -> Moment:
    """Return when the fault began for this attempt; one that was reported again or came back counts from then."""
    if finding.key in history.kernel.recovered:
        return history.kernel.fatal_since.get(finding.key, finding.reported_at)
    return finding.at if finding.at.seconds_since(history.launched_at) >= 0 else finding.reported_at


def message_of(finding: KernelFinding, device: str) -> str:
    """Return what the kernel reported and what repairs it, in one line."""
    what = f"{device}: {finding.fault.value}: {finding.line[:LINE_CHARACTERS]}"
    return what if finding.remedy is None else f"{what} (remedy: {finding.remedy})"


def diagnosis_of(finding: KernelFinding) -> Diagnosis | None:
    """Return the meaning of a kernel finding, its source and its remedy; None where neither is known."""
    cause = () if finding.what is None else (f"{finding.what} [{finding.source}]",)
    advice = () if finding.remedy is None else (finding.remedy,)
    return Diagnosis(causes=cause, advice=advice) if cause or advice else None
