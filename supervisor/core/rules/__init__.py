"""The rules, one file each; a rule holds no state, reads no clock and acts on nothing."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from supervisor.core.flags import Act, RedFlag
from supervisor.core.history import History
from supervisor.core.rules.busy_without_progress import BusyWithoutProgress
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.disk_low import DiskLow
from supervisor.core.rules.gpu_fault import GpuFault
from supervisor.core.rules.gpu_idle import GpuIdle
from supervisor.core.rules.hang import Hang
from supervisor.core.rules.host_memory import HostMemory
from supervisor.core.rules.non_finite_grad import NonFiniteGrad
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.vram_high import VramHigh
from supervisor.core.watched import Watched


class Rule(Protocol):
    """A check over the history of one attempt; its fields are its settings in `[jobs.NAME.rules.RULE]`."""

    name: ClassVar[str]

    @property
    def enabled(self) -> bool:
        """Whether it is asked at all."""
        ...

    @property
    def act(self) -> Act:
        """Whether its critical flags act, are told as warnings, or are only recorded."""
        ...

    def check(self, history: History) -> RedFlag | None:
        """Return what is wrong, or None."""
        ...


@runtime_checkable
class Measures(Protocol):
    """A rule that measures something against a limit, and can say how near to it the training is."""

    def watch(self, history: History) -> Watched | None:
        """Return what it measures now; None where the rule has nothing to measure in this attempt."""
        ...


RULES: tuple[type[Rule], ...] = (
    Crash,
    GpuFault,
    NonFiniteLoss,
    NonFiniteGrad,
    Hang,
    BusyWithoutProgress,
    Stall,
    StartTimeout,
    GpuIdle,
    VramHigh,
    HostMemory,
    DiskLow,
)
"""Every rule, in the order in which flags of equal severity are taken."""
