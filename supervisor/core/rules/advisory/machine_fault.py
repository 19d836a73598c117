"""Machine fault: kernel log faults of disks, memory and processors. It only warns; GPUs have `gpu_fault`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.findings import LAST_BOOT, FaultClass, FaultSeverity, KernelFinding
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.gauge import Gauge, Group, condition
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

    def check(self, history: History) -> RedFlag | None:
        """Flag the newest fault."""
        if history.over:
            return None
        found = next((finding for finding in reversed(history.kernel) if self._concerns(history, finding)), None)
        if found is None:
            return None
        device = found.device or "this machine"
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=message_of(found, device),
            subject=f"{device} {found.fault.value}",
            fault=found.fault.value,
            diagnosis=diagnosis_of(found),
        )

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return whether the kernel tells of a fault: no number is near to that."""
        return (condition(self.name, "fault of disk or machine in the kernel log", self.check(history)),)

    @staticmethod
    def _concerns(history: History, finding: KernelFinding) -> bool:
        if finding.origin == LAST_BOOT or finding.about not in ("disk", "host"):
            return False
        if finding.fault is FaultClass.OOM_KILL or finding.severity is FaultSeverity.INFO:
            return False
        return finding.told_at.seconds_since(history.launched_at) >= 0
