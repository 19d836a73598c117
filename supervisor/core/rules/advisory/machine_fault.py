"""Machine fault: kernel log faults of disks, memory and processors. It only warns; GPUs have `gpu_fault`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.findings import LAST_BOOT, FaultClass, FaultSeverity, KernelFinding
from supervisor.core.gauge import Gauge, Group, Observation, event_gauge
from supervisor.core.history import History
from supervisor.core.rules.gpu_fault import diagnosis_of, message_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFault:
    """The newest fault of a disk or of the machine since the launch: a checkpoint may not be written, a process hang.

    The kernel does not report which disk holds the training's files, so nothing is stopped. An OOM kill names a
    process: `crash` and `host_memory` report memory.
    """

    name: ClassVar[str] = "machine_fault"
    group: ClassVar[Group] = "process"
    enabled: bool = True

    def may_flag(self, history: History) -> bool:
        """Whether the kernel's log holds any finding."""
        return not history.over and bool(history.kernel.findings)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return whether the kernel's log reports a fault; no number is near to that."""
        kernel = () if history.over else history.kernel.findings
        found = next((finding for finding in reversed(kernel) if self._is_about(history, finding)), None)
        observed = None if found is None else _observe_fault(found)
        return (event_gauge("fault of disk or machine in the kernel log", observed),)

    @staticmethod
    def _is_about(history: History, finding: KernelFinding) -> bool:
        if finding.origin == LAST_BOOT or finding.about not in ("disk", "host"):
            return False
        if finding.fault is FaultClass.OOM_KILL or finding.severity is FaultSeverity.INFO:
            return False
        return finding.reported_at.seconds_since(history.launched_at) >= 0


def _observe_fault(finding: KernelFinding) -> Observation:
    device = finding.device or "this machine"
    return Observation(
        message=message_of(finding, device),
        subject=f"{device} {finding.fault.value}",
        fault=finding.fault.value,
        diagnosis=diagnosis_of(finding),
    )
