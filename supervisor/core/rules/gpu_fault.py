"""GPU fault: what the kernel's log says of a card that the job uses. It reads no log, and no line of another card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.findings import LAST_BOOT, FaultSeverity, KernelFinding
from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.watched import Group, Watched, condition

LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """A fault of a card in use, since the launch: a fatal one acts at once, the newest other one is told.

    What was saved after a fatal fault may hold what a dying card computed, so the trouble begins with its line.
    """

    name: ClassVar[str] = "gpu_fault"
    group: ClassVar[Group] = "cards"
    enabled: bool = True
    act: Act = True

    def check(self, history: History) -> RedFlag | None:
        """Flag the first fatal finding, or else the newest that is not."""
        found = [one for one in history.kernel if self._concerns(history, one)]
        fatal = next((one for one in found if is_fatal(history, one)), None)
        if fatal is not None:
            return self._flag(history, fatal, fatal=True)
        return self._flag(history, found[-1], fatal=False) if found and not history.over else None

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return whether the kernel tells of a fault: no number is near to that."""
        what = "the kernel's log tells of a fault of a card in use"
        return (condition(self.name, what, self.check(history), Severity.acting(act=self.act)),)

    @staticmethod
    def _concerns(history: History, finding: KernelFinding) -> bool:
        if finding.origin == LAST_BOOT or finding.severity is FaultSeverity.INFO:
            return False
        return finding.told_at.seconds_since(history.launched_at) >= 0 and history.concerns(finding)

    def _flag(self, history: History, finding: KernelFinding, *, fatal: bool) -> RedFlag:
        card = finding.gpu or ""
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act and fatal),
            at=history.now,
            message=message_of(finding, card or "a GPU"),
            since=_since(history, finding) if fatal else None,
            subject=card if fatal else f"{card} {finding.fault.value}",
            fault=finding.fault.value,
            diagnosis=diagnosis_of(finding),
        )


def is_fatal(history: History, finding: KernelFinding) -> bool:
    """Whether the attempt cannot go on: a page fault, say, takes only the process that made it."""
    return finding.fatal and not (finding.of_process and history.is_anothers(finding.pid))


def _since(history: History, finding: KernelFinding) -> Moment:
    """Return when the trouble began for this attempt: an event that is older than it told of itself anew."""
    return finding.at if finding.at.seconds_since(history.launched_at) >= 0 else finding.told_at


def message_of(finding: KernelFinding, device: str) -> str:
    """Return what the kernel saw and what cures it, in one line."""
    what = f"{device}: {finding.fault.value}: {finding.line[:LINE_CHARACTERS]}"
    return what if finding.remedy is None else f"{what} (remedy: {finding.remedy})"


def diagnosis_of(finding: KernelFinding) -> Diagnosis | None:
    """Return what stands behind a finding of the kernel: what it means, by whose word, and what cures it."""
    cause = () if finding.what is None else (f"{finding.what} [{finding.source}]",)
    advice = () if finding.remedy is None else (finding.remedy,)
    return Diagnosis(causes=cause, advice=advice) if cause or advice else None
