"""Machine fault: what the kernel says of disks, memory and processors under the job. It tells only, and of no card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.findings import LAST_BOOT, FaultClass, FaultSeverity, KernelFinding
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.rules.gpu_fault import diagnosis_of, message_of
from supervisor.core.watched import Group, Watched, condition


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFault:
    """The newest fault of a disk or of the machine since the launch: a checkpoint may not be written, a process hang.

    Which disk holds the training's files the kernel does not say, so nothing is done about it. An OOM kill names a
    process: `crash` and `host_memory` speak of memory.
    """

    name: ClassVar[str] = "machine_fault"
    group: ClassVar[Group] = "process"
    enabled: bool = True
    act: bool = True
    """It only tells, whatever stands here."""

    def check(self, history: History) -> RedFlag | None:
        """Flag the newest fault."""
        if history.over:
            return None
        found = next((one for one in reversed(history.kernel) if self._concerns(history, one)), None)
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

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return whether the kernel tells of a fault: no number is near to that."""
        return (condition(self.name, "the kernel's log tells of a fault of disk or machine", self.check(history)),)

    @staticmethod
    def _concerns(history: History, finding: KernelFinding) -> bool:
        if finding.origin == LAST_BOOT or finding.about not in ("disk", "host"):
            return False
        if finding.fault is FaultClass.OOM_KILL or finding.severity is FaultSeverity.INFO:
            return False
        return finding.told_at.seconds_since(history.launched_at) >= 0
