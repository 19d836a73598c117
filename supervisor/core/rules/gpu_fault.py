"""GPU fault: what the kernel's log says of a card that the job uses. It reads no log, and no line of another card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import FaultClass, KernelFinding

LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """A fault of a card in use, since the launch: a fatal one acts at once, the newest other one is told.

    What was saved after a fatal fault may hold what a dying card computed, so the trouble begins with its line.
    """

    name: ClassVar[str] = "gpu_fault"
    enabled: bool = True
    act: Act = True

    def check(self, history: History) -> RedFlag | None:
        """Flag the first fatal finding, or else the newest that is not."""
        found = [one for one in history.kernel if self._concerns(history, one)]
        fatal = next((one for one in found if one.fatal), None)
        if fatal is not None:
            return self._flag(history, fatal)
        return self._flag(history, found[-1]) if found and not history.over else None

    @staticmethod
    def _concerns(history: History, finding: KernelFinding) -> bool:
        # An OOM kill names a process, not a card: `crash` and `host_memory` speak of memory.
        if finding.fault is FaultClass.OOM_KILL or finding.at.seconds_since(history.launched_at) < 0:
            return False
        return history.uses(finding.gpu)

    def _flag(self, history: History, finding: KernelFinding) -> RedFlag:
        card = finding.gpu or ""
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act and finding.fatal),
            at=history.now,
            message=f"{card or 'a GPU'}: {finding.fault.value}: {finding.line[:LINE_CHARACTERS]}",
            since=finding.at if finding.fatal else None,
            subject=card if finding.fatal else f"{card} {finding.fault.value}",
            fault=finding.fault.value,
        )
