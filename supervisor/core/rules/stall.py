"""Stall: the step counter stands still. Judged by step numbers alone, never by log activity or load.

Heartbeat threads keep printing while a step loop is wedged, and a wedged kernel shows 99 % GPU use (issue 1381 of the
PortOS project, the owner's nights of 14 and 15 November): neither says anything about progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """No step for `limit_s` while training, or a validation or checkpoint longer than its own limit.

    If the newest failure of a hook is younger than the last step, the hook may be at fault: that is only told.
    A training that stands still spoils nothing: what it saved between its last step and the hang is as sound as
    its proof says, and a file that it was writing just then is not proven.
    Before the first step, of the attempt or of a further training in one process, `start_timeout` watches instead.
    """

    name: ClassVar[str] = "stall"
    enabled: bool = True
    act: Act = True
    limit_s: float = 60.0
    validate_limit_s: float = 3600.0
    checkpoint_limit_s: float = 900.0

    def check(self, history: History) -> RedFlag | None:
        """Flag the stage in which the training stands still longer than that stage may last."""
        limit_s, since = self._limit_s(history.stage), history.quiet_since()
        if history.over or history.train_ended or history.starting or limit_s is None or since is None:
            return None
        still_s = history.now.seconds_since(since)
        if still_s < limit_s:
            return None
        stage = history.stage.value if history.stage else "unknown"
        last = f", last step {history.steps[-1].step}" if history.steps else ""
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act and history.hooked),
            at=history.now,
            message=f"no step for {still_s:.0f} s in stage {stage} (limit {limit_s:.0f} s){last}",
        )

    def _limit_s(self, stage: Stage | None) -> float | None:
        match stage:
            case Stage.VALIDATE:
                return self.validate_limit_s
            case Stage.CHECKPOINT:
                return self.checkpoint_limit_s
            case Stage.ENDED:
                return None
            case Stage.SETUP | Stage.WARMUP | Stage.STEP | None:
                return self.limit_s
