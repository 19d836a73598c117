"""Storage wait: the training waits for a file system whose disk or server does not answer, and makes no step.

It goes on by itself as soon as there is an answer. A kill gains nothing: SIGKILL may not end the process, the next
attempt waits for the same file system, and the work since the last checkpoint is lost. So it warns, and no limit on
silence (`stall`, `start_timeout`, `gpu_idle`, `hang`) counts the time in which such a wait is seen and explains the
missing step (`core/stats/storage_waits.py` says when it does). With the wait's end they go on counting.

Of a training on several nodes a wait on one node holds up all: each reports its own, and its leader passes it on. What
only another node reports has a bound whatever the setting of `act`: after `limit_s` of it the limits on silence count.

When it acts. The waits since the last progress come to `limit_s` together; of a training whose steps are not seen, only
a single wait does, since whoever reads from a server for days waits for hours of them. A mount may never come back for
the process that waits, while a new one could use it; a file server that is restarted or repaired is back long before.

With `enabled = false` or `act = "shadow"` such a wait has the limits of any other standstill. What a framework itself
limits is not changed: PyTorch's NCCL and RCCL end the ranks that wait for one in a collective after 10 minutes (the
`timeout` of `init_process_group`), gloo after 30.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.flags import SHADOW, Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.rules.standstill import diagnosis_of

WAITS_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageWait:
    """A process of the job waits for a file system and no step is made: a warning after `warn_s`, a stop at `limit_s`.

    A rank's step on this node is progress as well: rank 0 may be on another one, whose steps are not read here.
    """

    name: ClassVar[str] = "storage_wait"
    group: ClassVar[Group] = "storage"
    cause: ClassVar[str] = causes.STALL_DATA
    enabled: bool = True
    act: Act = True
    warn_s: float = 30.0
    limit_s: float = 14400.0

    def may_flag(self, history: History) -> bool:
        """Whether the training waits for a file system at present."""
        storage = history.storage
        return storage.has_waited and storage.is_waiting(history.now) and not history.over

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return for how long file systems were waited for since the last progress."""
        what = "waits for a file system, and no step"
        if (why := history.why_not_stepping()) is not None:
            return not_applicable(what, why)
        now_s = _count_waited_s(history)
        warns = Gauge(
            what=what,
            unit="s",
            now=now_s,
            limit=self.warn_s,
            lacks=None if history.storage.is_waiting(history.now) else "a process that waits",
            observe=partial(self._observe, history, now_s),
        )
        return warns, replace(warns, limit=self.limit_s, severity=Severity.acting(act=self.act))

    def _observe(self, history: History, waited_s: float) -> Observation:
        own = [wait.words for wait in history.storage.own]
        waits = [*own, *(f"node {peer.node}: {peer.words}" for peer in history.storage.find_peers(history.now))]
        named = "; ".join(waits[:WAITS_NAMED])
        more = f" and {len(waits) - WAITS_NAMED} more" if len(waits) > WAITS_NAMED else ""
        known = history.training_stage
        stage = "no stage was seen yet" if known is None else f"stage {known.value}"
        alone = "it is left alone" if own else f"the limits of a standstill hold after {self.limit_s:.0f} s"
        at_limit = f"it is stopped after {self.limit_s:.0f} s" if self.act else alone
        at_limit = "the limits of a standstill hold" if self.act == SHADOW else at_limit
        then = f"it goes on when there is an answer, {at_limit}" if waited_s < self.limit_s else "there is no answer"
        return Observation(
            message=f"{named}{more}, {waited_s:.0f} s without a step ({stage}): {then}",
            diagnosis=diagnosis_of(history),
        )


def _count_waited_s(history: History) -> float:
    """Return for how long it has waited since the last progress, without a break where no progress is seen."""
    steps = [at for at in (history.last_step_at, history.last_rank_step_at) if at is not None]
    if steps:
        moments = [*steps, *([] if history.stage_since is None else [history.stage_since])]
        return history.storage.seconds(max(moments, key=lambda moment: moment.monotonic_s), history.now)
    return history.storage.unbroken_s(history.now)
