"""The rules, one file each; a rule holds no state, reads no clock and acts on nothing."""

from __future__ import annotations

from typing import ClassVar, Protocol

from supervisor.core.flags import RedFlag
from supervisor.core.history import History
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.disk_low import DiskLow
from supervisor.core.rules.gpu_fault import GpuFault
from supervisor.core.rules.gpu_idle import GpuIdle
from supervisor.core.rules.host_memory import HostMemory
from supervisor.core.rules.machine_fault import MachineFault
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.vram_high import VramHigh


class Rule(Protocol):
    """A check over the history of one attempt; its fields are its settings in `[jobs.NAME.rules.RULE]`."""

    name: ClassVar[str]

    @property
    def enabled(self) -> bool:
        """Whether it is asked at all."""
        ...

    @property
    def act(self) -> bool:
        """Whether its critical flags act; if not they are told as warnings."""
        ...

    def check(self, history: History) -> RedFlag | None:
        """Return what is wrong, or None."""
        ...


RULES: tuple[type[Rule], ...] = (
    Crash,
    GpuFault,
    NonFiniteLoss,
    Stall,
    StartTimeout,
    GpuIdle,
    VramHigh,
    HostMemory,
    DiskLow,
    MachineFault,
)
"""Every rule, in the order in which flags of equal severity are taken."""
