"""What the kernel log holds of faults since an attempt began, and which of them were fatal and are over."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from supervisor.core.findings import KernelFinding
from supervisor.core.moments import Moment

KERNEL_KEPT = 200


@dataclass(slots=True)
class KernelLog:
    """Findings of one attempt, newest last, bounded."""

    findings: deque[KernelFinding] = field(default_factory=lambda: deque(maxlen=KERNEL_KEPT))
    fatal_since: dict[tuple[str, int], Moment] = field(default_factory=dict)
    """Of each of these that is fatal now, by its key: when it last became so."""
    recovered: set[tuple[str, int]] = field(default_factory=set)
    """Keys of those that were fatal and then over, whatever came after."""

    def add(self, findings: tuple[KernelFinding, ...]) -> None:
        """Take findings in; one of a known key is a newer state of the same event."""
        for finding in findings:
            place = next((place for place, item in enumerate(self.findings) if item.key == finding.key), None)
            if place is None:
                self.findings.append(finding)
            else:
                self.findings[place] = finding
        since = self.fatal_since
        self.fatal_since = {item.key: since.get(item.key, item.reported_at) for item in self.findings if item.fatal}
        ended = {item.key for item in self.findings if not item.fatal and item.key in since}
        self.recovered = {item.key for item in self.findings if item.key in self.recovered | ended}
