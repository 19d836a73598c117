"""What holds of the gauges of every rule, whatever the history: asked of each story that a test tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from supervisor.core.gauge import Gauge, Group
from supervisor.core.history import History
from supervisor.core.rules import Rule, flag_of
from tests.rigs.declared import check_declared


def agrees(rule: Rule, history: History) -> None:
    """Fail where a gauge is reached that `may_flag` leaves out, or where the flag is not that of the worst one."""
    flag, gauges = flag_of(rule, history), rule.measure(history)
    assert gauges, rule.name
    for value in (flag, *gauges):
        check_declared(value)
    reached = [gauge.severity for gauge in gauges if gauge.reached]
    assert (flag is None) == (not reached), (flag, gauges)
    assert flag is None or (flag.rule, flag.severity) == (rule.name, max(reached)), (flag, gauges)
    assert all(gauge.share in (None, 1.0) for gauge in gauges if gauge.reached), gauges


@dataclass
class Agreement:
    """A rule that flags nothing and asks the others, each `every` times that it is asked."""

    name: ClassVar[str] = "agreement"
    group: ClassVar[Group] = "process"
    rules: Sequence[Rule]
    every: int = 1
    enabled: bool = True
    asked: int = field(default=0, init=False)

    def may_flag(self, history: History) -> bool:
        """Hold each rule against itself."""
        self.asked += 1
        if self.asked % self.every == 0:
            for rule in self.rules:
                agrees(rule, history)
        return False

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return nothing that is of a training."""
        return (Gauge(what="", not_watched=f"asked {self.asked} times at {history.now.unix_s}"),)
