"""The rules, one file each; a rule holds no state, reads no clock and acts on nothing."""

from __future__ import annotations

from typing import ClassVar, Protocol

from supervisor.core.flags import Act, RedFlag
from supervisor.core.gauge import Gauge, Group, flag_reached
from supervisor.core.history import History
from supervisor.core.remedies.causes import CRASH, OF_FAULT
from supervisor.core.rules.advisory.best_metric import BestMetric
from supervisor.core.rules.advisory.checkpoint_unseen import CheckpointUnseen
from supervisor.core.rules.advisory.data_starved import DataStarved
from supervisor.core.rules.advisory.deadline import Deadline
from supervisor.core.rules.advisory.fan import Fan
from supervisor.core.rules.advisory.fp32_fallback import Fp32Fallback
from supervisor.core.rules.advisory.generations import Generations
from supervisor.core.rules.advisory.machine_fault import MachineFault
from supervisor.core.rules.advisory.milestone import Milestone
from supervisor.core.rules.advisory.other_trainings import OtherTrainings
from supervisor.core.rules.advisory.power import Power
from supervisor.core.rules.advisory.snapshot_overdue import SnapshotOverdue
from supervisor.core.rules.advisory.straggler_rank import StragglerRank
from supervisor.core.rules.advisory.throttling import Throttling
from supervisor.core.rules.busy_without_progress import BusyWithoutProgress
from supervisor.core.rules.checkpoint_bad import CheckpointBad
from supervisor.core.rules.checkpoint_overdue import CheckpointOverdue
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.dead_worker import DeadWorker
from supervisor.core.rules.disk_low import DiskLow
from supervisor.core.rules.ecc import Ecc
from supervisor.core.rules.fragmentation import Fragmentation
from supervisor.core.rules.gpu_fault import GpuFault
from supervisor.core.rules.gpu_idle import GpuIdle
from supervisor.core.rules.gpu_lost import GpuLost
from supervisor.core.rules.hang import Hang
from supervisor.core.rules.host_memory import HostMemory
from supervisor.core.rules.host_memory_slope import HostMemorySlope
from supervisor.core.rules.idle_job import IdleJob
from supervisor.core.rules.loss_plateau_or_divergence import LossPlateauOrDivergence
from supervisor.core.rules.loss_spike import LossSpike
from supervisor.core.rules.lost_process import LostProcess
from supervisor.core.rules.non_finite_grad import NonFiniteGrad
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.resumed_loss import ResumedLoss
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.stopped_process import StoppedProcess
from supervisor.core.rules.storage_wait import StorageWait
from supervisor.core.rules.thermal import Thermal
from supervisor.core.rules.throughput_drop import ThroughputDrop
from supervisor.core.rules.vram_high import VramHigh
from supervisor.core.rules.vram_leak import VramLeak


class Rule(Protocol):
    """Measures the history of one attempt; its fields are its settings in `[jobs.NAME.rules.RULE]`."""

    name: ClassVar[str]
    group: ClassVar[Group]

    @property
    def enabled(self) -> bool:
        """Whether the rule is checked at all."""
        ...

    def may_flag(self, history: History) -> bool:
        """Return False only where no gauge can be reached: asked several times a second, so it has to be cheap."""
        ...

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return its gauges, at least one: its flag is that of the reached one, of several of the most severe."""
        ...


class ActingRule(Rule, Protocol):
    """A rule whose critical flags may stop and retry a training."""

    cause: ClassVar[str]
    """Which of `remedies.causes.CAUSES` its flags have; a flag that names a fault with a cause of its own has that."""

    @property
    def act(self) -> Act:
        """Whether its critical flags stop the training, are warnings, or are only recorded."""
        ...


ACTING: tuple[type[ActingRule], ...] = (
    Crash,
    GpuFault,
    NonFiniteLoss,
    NonFiniteGrad,
    Hang,
    BusyWithoutProgress,
    ResumedLoss,
    StoppedProcess,
    StorageWait,
    Stall,
    StartTimeout,
    IdleJob,
    GpuIdle,
    VramHigh,
    HostMemory,
    DiskLow,
    GpuLost,
    DeadWorker,
    LostProcess,
    Ecc,
    Fragmentation,
    LossSpike,
    LossPlateauOrDivergence,
    CheckpointBad,
    CheckpointOverdue,
    VramLeak,
    HostMemorySlope,
    Thermal,
    ThroughputDrop,
)
"""The rules that may act."""

ADVISORIES: tuple[type[Rule], ...] = (
    SnapshotOverdue,
    Throttling,
    Fan,
    Power,
    DataStarved,
    StragglerRank,
    Fp32Fallback,
    Deadline,
    Milestone,
    BestMetric,
    Generations,
    CheckpointUnseen,
    MachineFault,
    OtherTrainings,
)
"""The rules that only warn or inform: they have no setting `act`, and their flags are never critical."""

RULES: tuple[type[Rule], ...] = (*ACTING, *ADVISORIES)
"""Every rule, in the order in which flags of equal severity are handled."""

_CAUSE_OF_RULE = {rule.name: rule.cause for rule in ACTING}


def flag_of(rule: Rule, history: History) -> RedFlag | None:
    """Return the flag of a rule's reached gauge; None where none is reached."""
    return flag_reached(rule.name, rule.measure(history), history.now) if rule.may_flag(history) else None


def cause_of(flag: RedFlag) -> str:
    """Return the cause of a flag by its fault, else by its rule; a flag of no rule (a failed launch) is a crash."""
    by_fault = OF_FAULT.get(flag.fault) if flag.fault is not None else None
    return by_fault or _CAUSE_OF_RULE.get(flag.rule, CRASH)


def act_of(rule: Rule) -> Act | None:
    """Return the setting `act` of a rule, None for one that only warns."""
    # Not isinstance: of a Protocol that takes 20 us, for each rule, in every answer about the status.
    act: Act | None = getattr(rule, "act", None)
    return act
