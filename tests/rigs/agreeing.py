"""What a rule concludes held against what it says it watches: the two are one computation seen twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from supervisor.core.flags import RedFlag
from supervisor.core.gauge import Gauge, Group
from supervisor.core.history import History
from supervisor.core.rules import Rule


def agrees(rule: Rule, history: History) -> None:
    """Fail where a rule flags and nothing that it watches is reached, or the other way round."""
    flag, watched = rule.check(history), rule.watch(history)
    assert watched, rule.name
    assert {gauge.rule for gauge in watched} == {rule.name}
    reached = [gauge.severity for gauge in watched if gauge.reached]
    assert (flag is None) == (not reached), (flag, watched)
    assert flag is None or flag.severity == max(reached), (flag, watched)
    assert all(gauge.share in (None, 1.0) for gauge in watched if gauge.reached), watched


@dataclass
class Agreement:
    """A rule that flags nothing and asks the others, each `every` times that it is asked."""

    name: ClassVar[str] = "agreement"
    group: ClassVar[Group] = "process"
    rules: Sequence[Rule]
    every: int = 1
    enabled: bool = True
    asked: int = field(default=0, init=False)

    def check(self, history: History) -> RedFlag | None:
        """Hold each rule against itself."""
        self.asked += 1
        if self.asked % self.every == 0:
            for rule in self.rules:
                agrees(rule, history)
        return None

    def watch(self, history: History) -> tuple[Gauge, ...]:
        """Return nothing that is of a training."""
        return (Gauge(rule=self.name, what="", not_watched=f"asked {self.asked} times at {history.now.unix_s}"),)
