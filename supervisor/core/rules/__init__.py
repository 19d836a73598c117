"""The rules, one file each; a rule holds no state, reads no clock and acts on nothing."""

from __future__ import annotations

from typing import ClassVar, Protocol

from supervisor.core.flags import Act, RedFlag
from supervisor.core.history import History
from supervisor.core.rules.best_metric import BestMetric
from supervisor.core.rules.busy_without_progress import BusyWithoutProgress
from supervisor.core.rules.checkpoint_bad import CheckpointBad
from supervisor.core.rules.checkpoint_overdue import CheckpointOverdue
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.data_starved import DataStarved
from supervisor.core.rules.dead_worker import DeadWorker
from supervisor.core.rules.deadline import Deadline
from supervisor.core.rules.disk_low import DiskLow
from supervisor.core.rules.ecc import Ecc
from supervisor.core.rules.fan import Fan
from supervisor.core.rules.fp32_fallback import Fp32Fallback
from supervisor.core.rules.fragmentation import Fragmentation
from supervisor.core.rules.generations import Generations
from supervisor.core.rules.gpu_fault import GpuFault
from supervisor.core.rules.gpu_idle import GpuIdle
from supervisor.core.rules.gpu_lost import GpuLost
from supervisor.core.rules.hang import Hang
from supervisor.core.rules.host_memory import HostMemory
from supervisor.core.rules.host_memory_slope import HostMemorySlope
from supervisor.core.rules.loss_plateau_or_divergence import LossPlateauOrDivergence
from supervisor.core.rules.loss_spike import LossSpike
from supervisor.core.rules.machine_fault import MachineFault
from supervisor.core.rules.milestone import Milestone
from supervisor.core.rules.non_finite_grad import NonFiniteGrad
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.power import Power
from supervisor.core.rules.resumed_loss import ResumedLoss
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.straggler_rank import StragglerRank
from supervisor.core.rules.thermal import Thermal
from supervisor.core.rules.throttling import Throttling
from supervisor.core.rules.throughput_drop import ThroughputDrop
from supervisor.core.rules.vram_high import VramHigh
from supervisor.core.rules.vram_leak import VramLeak
from supervisor.core.watched import Group, Watched


class Rule(Protocol):
    """A check over the history of one attempt; its fields are its settings in `[jobs.NAME.rules.RULE]`."""

    name: ClassVar[str]
    group: ClassVar[Group]

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

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return what it watches, at least one thing; `check` flags where one is reached, and at no other time."""
        ...


RULES: tuple[type[Rule], ...] = (
    Crash,
    GpuFault,
    NonFiniteLoss,
    NonFiniteGrad,
    Hang,
    BusyWithoutProgress,
    ResumedLoss,
    Stall,
    StartTimeout,
    GpuIdle,
    VramHigh,
    HostMemory,
    DiskLow,
    GpuLost,
    DeadWorker,
    Ecc,
    Fragmentation,
    LossSpike,
    LossPlateauOrDivergence,
    CheckpointBad,
    CheckpointOverdue,
    VramLeak,
    HostMemorySlope,
    Thermal,
    Throttling,
    Fan,
    Power,
    ThroughputDrop,
    DataStarved,
    StragglerRank,
    Fp32Fallback,
    Deadline,
    Milestone,
    BestMetric,
    Generations,
    MachineFault,
)
"""Every rule, in the order in which flags of equal severity are taken."""
